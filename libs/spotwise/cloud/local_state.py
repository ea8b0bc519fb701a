"""The persisted state of the provider `local` (market step).

One file, replaced atomically under the folder's lock. An order is written before its first machine starts, so that it is never
bought again; a machine without a process file was never started.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from spotwise.cloud.instances import InstanceState, Market, ProviderRefused
from spotwise.cloud.local_processes import MachineProcess

#: How long a machine that has gone is told of, and its log is kept.
KEEP_GONE_S = 86_400.0


class LocalMachine(BaseModel):
    """One machine that was ordered.

    Attributes:
        id: of the instance.
        mesh, token, instance_type, market, tags: of the order.
        launched_unix_s: when.
        kill_at_unix_s: when it is ended by force; `None` until released.
        gone_unix_s: when it was first seen to have gone.
    """

    model_config = ConfigDict(extra="forbid")

    id: str
    mesh: str
    token: str
    instance_type: str
    market: Market
    tags: dict[str, str]
    launched_unix_s: float
    kill_at_unix_s: float | None = None
    gone_unix_s: float | None = None


class LocalState(BaseModel):
    """All machines of a folder, whichever mesh they are of, in order of time."""

    model_config = ConfigDict(extra="forbid")

    machines: list[LocalMachine] = []


class LocalFolder:
    """The files of this computer's machines.

    Args:
        path: made where it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def log(self, machine: LocalMachine) -> Path:
        """Return where a machine's output goes."""
        return self.path / f"{machine.id}.log"

    def known_at(self, machine: LocalMachine) -> Path:
        """Return where a machine's first process is named."""
        return self.path / f"{machine.id}.process"

    def mark(self, machine: LocalMachine) -> str:
        """Return what tells a machine's processes from all others of this computer."""
        return str(self.path / machine.id)

    def process(self, machine: LocalMachine) -> MachineProcess | None:
        """Return a machine's first process; `None` where it was never started."""
        return MachineProcess.read(self.known_at(machine), self.mark(machine))

    def state_of(self, machine: LocalMachine) -> InstanceState:
        """Return where a machine is in its life, as last noted."""
        if machine.gone_unix_s is not None:
            return InstanceState.GONE
        if machine.kill_at_unix_s is not None:
            return InstanceState.LEAVING
        return InstanceState.STARTING if self.process(machine) is None else InstanceState.RUNNING

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the folder's lock for the length of a block, and yield its descriptor.

        The kernel lets go of it when every process that has the descriptor has closed it, however it ended.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield lock.fileno()

    def read(self, now_unix_s: float) -> LocalState:
        """Return what is known, with those noted as gone that have gone since; forget those that went long ago.

        Raises:
            ProviderRefused: the file cannot be read.
        """
        path = self.path / "instances.json"
        try:
            state = LocalState.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return LocalState()
        except ValidationError:
            # To begin anew would lose machines that run, and buy again what was bought.
            raise ProviderRefused(
                f"{path} is damaged: end the processes that the *.process files beside it name, then delete the folder"
            ) from None
        kept = []
        for machine in state.machines:
            if machine.gone_unix_s is None and self._has_gone(machine):
                machine.gone_unix_s = now_unix_s
            if machine.gone_unix_s is not None and now_unix_s - machine.gone_unix_s > KEEP_GONE_S:
                self.known_at(machine).unlink(missing_ok=True)
                self.log(machine).unlink(missing_ok=True)
            else:
                kept.append(machine)
        return LocalState(machines=kept)

    def write(self, state: LocalState) -> None:
        """Replace what is known."""
        draft = self.path / "instances.json.draft"
        draft.write_text(state.model_dump_json(indent=1))
        draft.replace(self.path / "instances.json")

    def _has_gone(self, machine: LocalMachine) -> bool:
        process = self.process(machine)
        if process is None:
            return machine.kill_at_unix_s is not None  # released before it was started
        return not process.is_alive()
