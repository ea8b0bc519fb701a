"""One process under supervision: its start, its state, its restarts and their limit."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from spotwise.cli.launch.service_process import StopOrder
from spotwise.cli.launch.supervision.liveness import Probe
from spotwise.cli.launch.supervision.run_state import RecordedService, ServiceState
from spotwise.mesh.embedded.child_process import ChildProcess

MAX_RESTARTS = 5
WINDOW_S = 60.0
FIRST_DELAY_S = 0.25
MAX_DELAY_S = 60.0


class RestartLimit:
    """The recent deaths of one process."""

    def __init__(self) -> None:
        self._deaths_s: deque[float] = deque()
        self._in_a_row = 0
        self._due_s: float | None = None

    def delay_after_death(self, now_s: float) -> float:
        """Seconds until the next restart: doubles with each early death, up to `MAX_DELAY_S`; reset after `WINDOW_S` alive."""
        if self._due_s is not None and now_s - self._due_s >= WINDOW_S:
            self._in_a_row = 0
        self._deaths_s.append(now_s)
        delay_s = min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(self._in_a_row, 32))
        self._in_a_row += 1
        self._due_s = now_s + delay_s
        return delay_s

    def too_often(self, now_s: float) -> bool:
        """Whether it died more than `MAX_RESTARTS` times within `WINDOW_S`."""
        while self._deaths_s and now_s - self._deaths_s[0] >= WINDOW_S:
            self._deaths_s.popleft()
        return len(self._deaths_s) > MAX_RESTARTS


class SupervisedProcess:
    """A process of the mesh across its restarts.

    Args:
        is_healthy: tells whether the process with this pid is ready to serve.
        shows_life: tells whether the process with this pid gives a sign of life; None for unknown.
        is_essential: the mesh serves no request without it; for workers, and processes of one `service`, without any of them.
        service: what it is one process of; empty: of nothing that others are, too.
        may_start: tells whether a start would not wait.
    """

    def __init__(
        self,
        service_id: str,
        stop_order: StopOrder,
        log_path: Path,
        start: Callable[[], ChildProcess],
        is_healthy: Callable[[int], bool],
        shows_life: Probe | None = None,
        *,
        is_essential: bool = True,
        service: str = "",
        may_start: Callable[[], bool] = lambda: True,
    ) -> None:
        self.service_id = service_id
        self.stop_order = stop_order
        self.log_path = log_path
        self.shows_life = shows_life
        self.is_essential = is_essential
        self.service = service
        self.may_start = may_start
        self.state = ServiceState.WAITING
        self._start = start
        self._is_healthy = is_healthy
        self._child: ChildProcess | None = None
        self._restarts = 0
        self._restart_limit = RestartLimit()
        self._restart_at_s = 0.0
        self._started_s = 0.0
        self.is_ending = False

    def start(self) -> None:
        """Start it.

        Raises:
            EmbeddedServerError: it is an embedded server, and did not come up.
            OSError: the system refuses the start.
        """
        self._child = None
        self._started_s = time.monotonic()
        self._child = self._start()
        self.is_ending = False
        self.state = ServiceState.STARTING

    def check_health(self) -> None:
        """Update its state once it has become healthy."""
        if self._child is not None and self.state is ServiceState.STARTING and self._is_healthy(self._child.pid):
            self.state = ServiceState.HEALTHY

    def exit_code(self) -> int | None:
        """Its exit code; None while it runs and before its first start."""
        return None if self._child is None else self._child.exit_code()

    def is_running(self) -> bool:
        """Whether it has a process to stop."""
        return self._child is not None and self._child.exit_code() is None

    @property
    def pid(self) -> int | None:
        """Its pid; None where it has none."""
        return None if self._child is None else self._child.pid

    def starts_too_long(self, now_s: float, limit_s: float) -> bool:
        """Whether it was started more than `limit_s` ago and has not been healthy since."""
        return self.state is ServiceState.STARTING and now_s - self._started_s > limit_s

    def plan_restart(self, now_s: float) -> float:
        """Record its death; returns the seconds until its restart."""
        delay_s = self._restart_limit.delay_after_death(now_s)
        self.state = ServiceState.RESTARTING
        self._restart_at_s = now_s + delay_s
        return delay_s

    def dies_too_often(self, now_s: float) -> bool:
        """Whether it exceeded the limit of deaths."""
        return self._restart_limit.too_often(now_s)

    def restart_when_due(self, now_s: float) -> None:
        """Start it again once its delay is over; raises `EmbeddedServerError` as `start`."""
        if self.state is ServiceState.RESTARTING and now_s >= self._restart_at_s and self.may_start():
            self._restarts += 1
            self.start()

    def terminate(self) -> None:
        """Request its end."""
        if self._child is not None:
            self._child.terminate()

    def kill(self) -> None:
        """End it at once."""
        if self._child is not None:
            self._child.kill()

    def end_hung(self) -> None:
        """Kill it without waiting; its exit is then handled as any death."""
        self.is_ending = True
        if self._child is not None:
            self._child.end()

    def record(self) -> RecordedService:
        """The record of it for other commands."""
        process = self._child.identity if self._child is not None and self.is_running() else None
        return RecordedService(state=self.state, process=process, restarts=self._restarts)
