"""The first start of a mesh, and the end of its local instances, which outlive its services."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from spotwise.cloud.local_instances import LocalInstances, LocalOptions
from spotwise.core.messages.fleet import InstanceState


def mesh_start(folder: Path, mesh: str, now_unix_s: float) -> float:
    """Return the Unix time at which this was first called for a mesh, kept in a folder, which is created if missing.

    Raises:
        ValueError: the file that keeps it is damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, mesh)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(f"{now_unix_s!r}\n")
    try:
        os.link(draft, path)  # the first one stays
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    try:
        return float(path.read_text())
    except ValueError:
        raise ValueError(f"{path} holds no time; delete it, and the mesh's time begins anew") from None


def forget_mesh_start(folder: Path, mesh: str) -> None:
    """Let a mesh's time begin anew; idempotent."""
    _path(folder, mesh).unlink(missing_ok=True)


def _path(folder: Path, mesh: str) -> Path:
    return folder / f"{mesh}.started"


async def release_mesh(folder: Path, mesh: str, grace_s: float = 30.0) -> list[str]:
    """Release all instances that a mesh has in a folder, and let its traces and prices begin anew; return the instances' ids.

    Args:
        folder: state of the provider `local`; one that is missing has no instances.
        grace_s: time from SIGTERM to SIGKILL.

    Raises:
        ProviderUnavailable: killed processes still run.
        ProviderRefused: the state is damaged.
    """
    if not await asyncio.to_thread(folder.is_dir):
        return []
    provider = LocalInstances(mesh, LocalOptions(folder, {}, limit=0, grace_s=grace_s))
    ids = [each.id for each in await provider.instances() if each.state is not InstanceState.GONE]
    await provider.release(ids)
    forget_mesh_start(folder, mesh)
    return ids
