"""The persisted state of the provider `local`.

One file, replaced atomically under the folder's lock. An order is written before its first machine starts, so that it is never
bought again; a machine without a process file was never started.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from spotwise.cloud.instances import ProviderRefused
from spotwise.cloud.local_processes import MachineProcess
from spotwise.core.messages.fleet import InstanceState, Market

#: How long a machine that has gone is listed, and its log is kept.
KEEP_GONE_S = 86_400.0


class LocalMachine(BaseModel):
    """State of one ordered machine.

    Attributes:
        id: id of the instance.
        mesh, token, instance_type, market, tags: the order's values.
        launched_unix_s: time of the order.
        kill_at_unix_s: end of its grace period; `None` until released.
        gone_unix_s: when it was first found to have gone.
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
    """All machines of a folder, of all meshes, ordered by time."""

    model_config = ConfigDict(extra="forbid")

    machines: list[LocalMachine] = []


class LocalFolder:
    """The state folder: machines, their process files and logs.

    Args:
        path: created if missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def log(self, machine: LocalMachine) -> Path:
        """Return the path of a machine's log."""
        return self.path / f"{machine.id}.log"

    def known_at(self, machine: LocalMachine) -> Path:
        """Return the path of a machine's process file."""
        return self.path / f"{machine.id}.process"

    def mark(self, machine: LocalMachine) -> str:
        """Return the value of `MARK` in the environment of a machine's processes, unique on this computer."""
        return str(self.path / machine.id)

    def process(self, machine: LocalMachine) -> MachineProcess | None:
        """Return a machine's first process; `None`: it was never started."""
        return MachineProcess.read(self.known_at(machine), self.mark(machine))

    def state_of(self, machine: LocalMachine) -> InstanceState:
        """Return a machine's state as last recorded."""
        if machine.gone_unix_s is not None:
            return InstanceState.GONE
        if machine.kill_at_unix_s is not None:
            return InstanceState.LEAVING
        return InstanceState.STARTING if self.process(machine) is None else InstanceState.RUNNING

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the folder's lock inside the block, and yield its descriptor.

        The kernel releases the lock when every process with the descriptor has closed it or ended.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield lock.fileno()

    def read(self, now_unix_s: float) -> LocalState:
        """Read the state, mark machines that have gone since, and remove machines that went long ago.

        Raises:
            ProviderRefused: the file is damaged.
        """
        path = self.path / "instances.json"
        try:
            state = LocalState.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return LocalState()
        except ValidationError:
            # An empty state would lose running machines and buy orders again.
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
        """Replace the state atomically."""
        draft = self.path / "instances.json.draft"
        draft.write_text(state.model_dump_json(indent=1))
        draft.replace(self.path / "instances.json")

    def _has_gone(self, machine: LocalMachine) -> bool:
        process = self.process(machine)
        if process is None:
            return machine.kill_at_unix_s is not None  # released before it was started
        return not process.is_alive()
