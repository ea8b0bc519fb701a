"""The end of a mesh's local instances: they outlive its services, so that `spotwise down` has to end them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from spotwise.cloud.local_instances import LocalInstances, LocalOptions
from spotwise.cloud.mesh_start import forget_mesh_start
from spotwise.core.messages.fleet import InstanceState


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
