"""The supervisor's record of its mesh for other commands: `state.json`, replaced atomically at every change."""

from __future__ import annotations

import contextlib
import os
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from spotwise.cli.launch.mesh_servers import WORKER, MeshServers
from spotwise.cli.launch.options import MeshOptions
from spotwise.mesh.embedded.child_process import ProcessIdentity


class ServiceState(StrEnum):
    """The state of a process of the mesh."""

    WAITING = "waiting"
    STARTING = "starting"
    HEALTHY = "healthy"
    RESTARTING = "restarting"
    LEFT = "left"


class RecordedService(BaseModel):
    """One process of the mesh; `process` is None before its first start and after it left."""

    model_config = ConfigDict(extra="ignore")

    state: ServiceState = ServiceState.WAITING
    process: ProcessIdentity | None = None
    restarts: int = 0


class RunState(BaseModel):
    """One running mesh.

    Attributes:
        ready: all services have been healthy once, so that the mesh serves requests.
        nats_url, redis_url: the servers it uses, embedded or not, with the passwords of commands.
        servers: the same for every process.
        services: services by id, embedded servers included.
    """

    model_config = ConfigDict(extra="ignore")

    supervisor: ProcessIdentity
    ready: bool
    options: MeshOptions
    nats_url: str
    redis_url: str
    servers: MeshServers | None = None
    started_unix_s: float
    services: dict[str, RecordedService]

    def worker_urls(self) -> tuple[str, str]:
        """Return broker's and store's URL for a worker that joins."""
        return (self.nats_url, self.redis_url) if self.servers is None else self.servers.urls(WORKER)

    def processes(self) -> tuple[ProcessIdentity, ...]:
        """Every recorded process but the supervisor."""
        return tuple(service.process for service in self.services.values() if service.process is not None)


def write_state(path: Path, state: RunState) -> None:
    """Replace the file atomically, readable by its owner only (it holds passwords); raises `OSError` (full disk, no folder)."""
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
    """Read a mesh's state; None without a running mesh, or where the record is damaged or another version's."""
    try:
        return RunState.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
