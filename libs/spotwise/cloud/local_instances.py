"""The provider `local`: processes of this computer.

An instance is a session of processes that outlives this provider, and ends with its supervisor where it has one; a provider
that opens the folder again knows it. Spot and on-demand differ in name only.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spotwise.cloud.instances import (
    AcquiredInstance,
    AcquireRequest,
    NoCapacity,
    ProviderRefused,
    ProviderUnavailable,
    in_order,
    require_mesh_name,
)
from spotwise.cloud.local_processes import Launch, MachineProcess, StartError, execute, start_machine
from spotwise.cloud.local_state import LocalFolder, LocalMachine, LocalState
from spotwise.core.access.secret_variables import environment_for
from spotwise.core.messages.fleet import InstanceState

_POLL_S = 0.02
#: Time for killed processes to end; one stuck in the kernel takes longer, and `instances` still lists its machine.
_KILL_PATIENCE_S = 10.0
_ADDRESS = "127.0.0.1"
#: The service that instances are: devices of groups.
_INSTANCE = "worker"
#: Tag of an order whose value is its instances' zone: here zones are names only.
ZONE_TAG = "zone"


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """Instance types and limits of this computer.

    Attributes:
        folder: holds the state and a log for each instance; shared by all meshes under one limit.
        commands: program and arguments of each instance type. `{instance_id}`, `{instance_type}`, `{market}` and
            `{mesh}` in an argument are replaced. The program stays in the foreground, and exits on SIGTERM.
        limit: concurrent instances of all types and meshes.
        grace_s: time from SIGTERM to SIGKILL.
        unset: variables of this process's environment that instances do not get, nor its secrets.
        env: variables that they get beside it, or in its place.
        supervisor: `PID:START` of the process with which instances end, however it does; empty: they outlive all others.
    """

    folder: Path
    commands: Mapping[str, tuple[str, ...]]
    limit: int
    grace_s: float = 30.0
    unset: frozenset[str] = frozenset()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    supervisor: str = ""

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise ValueError(f"limit {self.limit}: 0 instances or more")
        if self.grace_s < 0:
            raise ValueError(f"grace_s {self.grace_s}: 0 s or more")
        if empty := [name for name, argv in self.commands.items() if not argv]:
            raise ValueError(f"the command of instance type {empty[0]!r} is empty")


@dataclass(frozen=True, slots=True)
class _Departure:
    """Progress of one release after SIGTERM.

    Attributes:
        late_ids: machines whose first process left before others, which then received SIGTERM too.
        killed_unix_s: time of the first SIGKILL, by machine.
    """

    late_ids: set[str] = field(default_factory=set)
    killed_unix_s: dict[str, float] = field(default_factory=dict)


class LocalInstances:
    """An `InstanceProvider` over processes of this computer.

    Args:
        mesh: name of the mesh that owns the instances.
        options: instance types and limits.
        now: seconds since the epoch.
        run: runs the launcher of a machine.
    """

    def __init__(
        self,
        mesh: str,
        options: LocalOptions,
        now: Callable[[], float] = time.time,
        run: Callable[[Launch], str] = execute,
    ) -> None:
        self._mesh = require_mesh_name(mesh)
        self._options = options
        self._folder = LocalFolder(options.folder)
        self._now = now
        self._run = run

    async def acquire(self, request: AcquireRequest) -> list[AcquiredInstance]:
        """Start the ordered processes, or as many as the limit allows.

        Raises:
            NoCapacity: the limit is reached.
            ProviderRefused: none of the types has a command, or a program cannot be run.
        """
        return await asyncio.to_thread(self._acquire, request)

    async def release(self, instance_ids: Sequence[str]) -> None:
        """End machines by SIGTERM, and by SIGKILL after the grace period; return when all their processes have ended.

        Raises:
            ProviderUnavailable: killed processes still run.
        """
        await self._see_all_off(await asyncio.to_thread(self._let_go, instance_ids, self._options.grace_s))

    async def reclaim(self, instance_ids: Sequence[str]) -> None:
        """End machines by SIGKILL at once, as a cloud that takes them back; return when all their processes have ended.

        Raises:
            ProviderUnavailable: killed processes still run.
        """
        await self._see_all_off(await asyncio.to_thread(self._let_go, instance_ids, 0.0))

    def use(self, options: LocalOptions) -> None:
        """Take other commands and limits for what is acquired from now on.

        Raises:
            ValueError: the folder is another one.
        """
        if options.folder.absolute() != self._folder.path:
            raise ValueError(f"the folder stays {self._folder.path}; start another provider for {options.folder}")
        self._options = options

    async def instances(self) -> list[AcquiredInstance]:
        """Return this mesh's instances; kills released ones whose grace period is over."""
        return await asyncio.to_thread(self._own)

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    async def _see_all_off(self, machines: list[LocalMachine]) -> None:
        departure = _Departure()
        while machines:
            machines = await asyncio.to_thread(self._see_off, machines, departure)
            await asyncio.sleep(_POLL_S if machines else 0)
        await asyncio.to_thread(self._own)

    # --- run in a thread ----------------------------------------------------------------------------------------------

    def _acquire(self, request: AcquireRequest) -> list[AcquiredInstance]:
        with self._folder.locked() as lock_fd:
            state = self._folder.read(self._now())
            ordered = [each for each in state.machines if (each.mesh, each.token) == (self._mesh, request.token)]
            if not ordered:
                ordered = self._order(request, state)
                state.machines += ordered
                self._folder.write(state)
            waiting = [each for each in ordered if self._folder.state_of(each) is InstanceState.STARTING]
            try:
                for machine in waiting:
                    self._start(machine, lock_fd)
            except (StartError, OSError) as error:
                # Machines that started stay in the state; a machine that cannot start is no instance.
                never = [each for each in waiting if self._folder.process(each) is None]
                state.machines = [each for each in state.machines if each not in never]
                ordered = [each for each in ordered if each not in never]
                self._folder.write(state)
                if not ordered:
                    raise ProviderRefused(f"instance type {never[0].instance_type!r}: {error}") from error
            return in_order([self._acquired(machine) for machine in ordered])

    def _order(self, request: AcquireRequest, state: LocalState) -> list[LocalMachine]:
        """Return the machines of a new order, as many as the limit allows."""
        instance_type = self._runnable(request.instance_types)
        used = sum(machine.gone_unix_s is None for machine in state.machines)
        count = min(request.count, self._options.limit - used)
        if count <= 0:
            raise NoCapacity(
                request.instance_types, request.market, f"{used} of {self._options.limit} are in use; raise the limit"
            )
        return [
            LocalMachine(
                id=self._name(request.token, number),
                mesh=self._mesh,
                token=request.token,
                instance_type=instance_type,
                market=request.market,
                tags=dict(request.tags),
                launched_unix_s=self._now(),
            )
            for number in range(count)
        ]

    def _runnable(self, instance_types: Sequence[str]) -> str:
        """Return the first type whose program exists."""
        for instance_type in instance_types:
            argv = self._options.commands.get(instance_type)
            if argv is not None and shutil.which(argv[0]) is not None:
                return instance_type
        named = [name for name in instance_types if name in self._options.commands]
        if named:
            raise ProviderRefused(
                f"instance type {named[0]!r}: no program {self._options.commands[named[0]][0]!r} here"
            )
        offered = ", ".join(sorted(self._options.commands)) or "none"
        raise ProviderRefused(f"no instance type {' or '.join(instance_types)} here; there is {offered}")

    def _name(self, token: str, number: int) -> str:
        """Return an instance's id, a function of folder, mesh, order and number."""
        place = f"{self._folder.path}/{self._mesh}/{token}/{number}"
        return f"local-{hashlib.sha256(place.encode()).hexdigest()[:12]}"

    def _start(self, machine: LocalMachine, lock_fd: int) -> MachineProcess:
        values = {
            "{instance_id}": machine.id,
            "{instance_type}": machine.instance_type,
            "{market}": machine.market.value,
            "{mesh}": machine.mesh,
        }
        inherited = environment_for(_INSTANCE, os.environ)
        argv = []
        for word in self._options.commands.get(machine.instance_type, ()):
            for name, value in values.items():
                word = word.replace(name, value)
            argv.append(word)
        if not argv:
            raise StartError("it has no command any more")
        return start_machine(
            argv,
            known_at=self._folder.known_at(machine),
            log=self._folder.log(machine),
            folder=self._folder.path,
            env={
                **{name: value for name, value in inherited.items() if name not in self._options.unset},
                **self._options.env,
            },
            mark=self._folder.mark(machine),
            lock_fd=lock_fd,
            supervisor=self._options.supervisor,
            run=self._run,
        )

    def _let_go(self, instance_ids: Sequence[str], grace_s: float) -> list[LocalMachine]:
        """Send SIGTERM once, or SIGKILL without grace, to this mesh's machines with these ids; return those still running."""
        with self._folder.locked():
            now_unix_s = self._now()
            state = self._folder.read(now_unix_s)
            leaving = []
            for machine in state.machines:
                if machine.mesh != self._mesh or machine.id not in instance_ids or machine.gone_unix_s is not None:
                    continue
                process = self._folder.process(machine)
                if machine.kill_at_unix_s is None and process is not None and grace_s:
                    process.terminate()
                if machine.kill_at_unix_s is None or not grace_s:
                    machine.kill_at_unix_s = now_unix_s + grace_s
                if process is not None and not grace_s:
                    process.kill()
                leaving.append(machine)
            self._folder.write(state)
            return leaving

    def _see_off(self, machines: list[LocalMachine], departure: _Departure) -> list[LocalMachine]:
        """Return the leaving machines that still run; kill those whose grace period is over."""
        now_unix_s = self._now()
        left = []
        for machine in machines:
            process = self._folder.process(machine)
            if process is None or not process.is_alive():
                continue
            left.append(machine)
            assert machine.kill_at_unix_s is not None
            if now_unix_s >= machine.kill_at_unix_s:
                killed_unix_s = departure.killed_unix_s.setdefault(machine.id, now_unix_s)
                process.kill()
                if now_unix_s > killed_unix_s + _KILL_PATIENCE_S:
                    raise ProviderUnavailable(
                        f"{machine.id} (pid {process.pid}) was killed and is still there; look at it"
                    )
            elif machine.id not in departure.late_ids and process.left_behind():
                departure.late_ids.add(machine.id)
                process.terminate()
        return left

    def _own(self) -> list[AcquiredInstance]:
        with self._folder.locked():
            now_unix_s = self._now()
            state = self._folder.read(now_unix_s)
            for machine in state.machines:
                if machine.mesh != self._mesh or machine.gone_unix_s is not None:
                    continue
                process = self._folder.process(machine)
                if process is None:
                    continue
                # The process that released the machine may have ended before killing it.
                is_overdue = machine.kill_at_unix_s is not None and now_unix_s >= machine.kill_at_unix_s
                # Its guard stays until all others have ended: it was killed.
                if is_overdue or (machine.kill_at_unix_s is None and process.left_behind()):
                    process.kill()
            self._folder.write(state)
            return in_order([self._acquired(machine) for machine in state.machines if machine.mesh == self._mesh])

    def _acquired(self, machine: LocalMachine) -> AcquiredInstance:
        return AcquiredInstance(
            id=machine.id,
            instance_type=machine.instance_type,
            market=machine.market,
            state=self._folder.state_of(machine),
            launched_unix_s=machine.launched_unix_s,
            token=machine.token,
            tags=dict(machine.tags),
            address=_ADDRESS,
            zone=machine.tags.get(ZONE_TAG),
            gone_unix_s=machine.gone_unix_s,
        )
