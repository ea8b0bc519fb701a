"""What the supervisor tells other commands about its mesh: `state.json`, replaced atomically at every change."""

from __future__ import annotations

import contextlib
import os
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from spotwise.cli.options import MeshOptions
from spotwise.mesh.child_process import ProcessIdentity


class ServiceState(StrEnum):
    """How a process of the mesh is doing."""

    WAITING = "waiting"
    STARTING = "starting"
    HEALTHY = "healthy"
    RESTARTING = "restarting"
    LEFT = "left"


class RecordedService(BaseModel):
    """One process of the mesh.

    Attributes:
        state: how it is doing.
        process: who it is; None before its first start and after it left.
        restarts: how often it was started again.
    """

    model_config = ConfigDict(extra="ignore")

    state: ServiceState = ServiceState.WAITING
    process: ProcessIdentity | None = None
    restarts: int = 0


class RunState(BaseModel):
    """One running mesh.

    Attributes:
        supervisor: its process.
        ready: whether every service was healthy once, so the mesh is open for requests.
        options: what it was started with.
        nats_url, redis_url: the servers it uses, embedded or not, with their passwords.
        started_unix_s: when.
        services: by id, embedded servers included.
    """

    model_config = ConfigDict(extra="ignore")

    supervisor: ProcessIdentity
    ready: bool
    options: MeshOptions
    nats_url: str
    redis_url: str
    started_unix_s: float
    services: dict[str, RecordedService]

    def processes(self) -> tuple[ProcessIdentity, ...]:
        """Every recorded process but the supervisor."""
        return tuple(service.process for service in self.services.values() if service.process is not None)


def write_state(path: Path, state: RunState) -> None:
    """Replace the file; a reader sees the old state or the new one, never a part. It holds passwords: only its owner reads it.

    Raises:
        OSError: the disk is full, or the folder gone.
    """
    draft = path.with_suffix(".draft")
    try:
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(state.model_dump_json(indent=2))
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def read_state(path: Path) -> RunState | None:
    """The state of a mesh; None where none was started or it was stopped, or an incompatible version wrote it."""
    try:
        return RunState.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
