"""Time of a mesh's first start: traces and price files are relative to it, also after a restart of the watcher."""

from __future__ import annotations

import os
from pathlib import Path


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
