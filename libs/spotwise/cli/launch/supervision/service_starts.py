"""Starts the processes of services: forked from one that has imported their modules, where that is possible.

Workers that compute import torch, which takes seconds: they have a fork server of their own, so that no other service waits
for it. A service is executed as a new program where its server has ended or cannot fork.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

from spotwise.cli.launch.run_folder import RunFolder
from spotwise.cli.launch.service_process import PYTHON_ENV, ServiceProcess, may_fork
from spotwise.core.access.secret_variables import environment_for
from spotwise.mesh.embedded.child_process import ChildProcess, start_child
from spotwise.mesh.embedded.fork_server import ForkServer, reap_orphans


class ServiceStarts:
    """Starts of a mesh's services, and the fork servers behind them.

    Args:
        services: all that will be started.
        environ: the supervisor's environment.
        say: told of starts that no fork server could make.
    """

    def __init__(
        self,
        services: Sequence[ServiceProcess],
        folder: RunFolder,
        environ: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._environ = environ
        self._say = say
        self._servers: dict[tuple[str, ...], ForkServer] = {}
        if may_fork(environ):
            env = {**environment_for("", environ), **PYTHON_ENV}
            for later in sorted({service.later_imports for service in services}, reverse=True):  # the slowest first
                modules = dict.fromkeys(service.module for service in services if service.later_imports == later)
                log_path = folder.log_path(f"fork-server-{len(self._servers)}")
                self._servers[later] = ForkServer([*modules], later, log_path, env)

    @classmethod
    @contextlib.contextmanager
    def opened(
        cls,
        services: Sequence[ServiceProcess],
        folder: RunFolder,
        environ: Mapping[str, str],
        say: Callable[[str], None],
    ) -> Iterator[Self]:
        """Run the fork servers meanwhile."""
        starts = cls(services, folder, environ, say)
        try:
            yield starts
        finally:
            for server in starts._servers.values():
                server.close()

    def may_start(self, service: ServiceProcess) -> bool:
        """Whether a start takes no longer than the system takes for it: a fork server may still import."""
        server = self._servers.get(service.later_imports)
        return server is None or server.is_settled()

    def start(self, service: ServiceProcess) -> ChildProcess:
        """Start one.

        Raises:
            OSError: the system refuses.
        """
        log_path = self._folder.log_path(service.service_id)
        pulse_path = self._folder.pulse_path(service.service_id)
        env = {**service.environment(self._environ), "SPOTWISE_PULSE_FILE": str(pulse_path)}
        if (server := self._servers.get(service.later_imports)) is not None:
            try:
                return server.start(service.module, log_path=log_path, env=env)
            except OSError as error:
                self._say(f"{service.service_id} is executed, which takes longer: {error}")
        return start_child(service.argv, log_path=log_path, env=env)

    def reap(self, supervised: Sequence[int]) -> None:
        """Reap what services left behind, which comes to this process while there are fork servers."""
        if self._servers:
            reap_orphans([*supervised, *(server.pid for server in self._servers.values())])
