"""Supervises the processes of one mesh: starts them, waits for their health, restarts dead ones, stops them in order.

No child outlives the supervisor: a signal and a failure lead through the same ordered stop, and the kernel ends the children of
a killed supervisor (`mesh/embedded/child_process.py`). Only repeated deaths of an essential process end the mesh.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from spotwise.cli.launch.service_process import StopOrder
from spotwise.cli.launch.supervision.liveness import LivenessWatch, Probe
from spotwise.cli.launch.supervision.run_state import RunState, ServiceState
from spotwise.cli.launch.supervision.service_logs import LogFollower, LogRotation, log_tail, reason_for_not_serving
from spotwise.cli.launch.supervision.state_file import StateFile
from spotwise.cli.launch.supervision.stop_signals import StopSignals
from spotwise.cli.launch.supervision.supervised_process import SupervisedProcess
from spotwise.cli.report import Report
from spotwise.mesh.embedded.servers import EmbeddedServerError

EXIT_STOPPED = 0
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

_GRACE_S = 5.0
_LOOP_PAUSE_S = 0.05


class MeshFailedError(Exception):
    """The mesh failed at or after its start; the message says why, and the logs of `processes` more."""

    def __init__(self, message: str, processes: Sequence[SupervisedProcess]) -> None:
        super().__init__(message)
        self.processes = tuple(processes)


class Supervisor:
    """The supervisor of one mesh.

    Args:
        processes: in start order; embedded servers first.
        state: the mesh's record, without its services yet.
        verbose: shows the services' logs.
        further_logs: files to bound beside the processes' logs.
        between_looks: called several times a second.
    """

    def __init__(
        self,
        processes: Sequence[SupervisedProcess],
        state: RunState,
        state_path: Path,
        signals: StopSignals,
        report: Report,
        *,
        verbose: bool,
        further_logs: Sequence[Path] = (),
        between_looks: Callable[[], None] = lambda: None,
    ) -> None:
        self._processes = tuple(processes)
        self._state = state
        self._state_file = StateFile(state_path, report)
        self._signals = signals
        self._report = report
        self._between_looks = between_looks
        self._log_rotation = LogRotation(
            [*(process.log_path for process in processes), *further_logs], state.options.log_bytes
        )
        self._log_follower = LogFollower(
            {process.service_id: process.log_path for process in processes} if verbose else {}
        )

    def run(self, on_ready: Callable[[], None]) -> int:
        """Run the mesh until a stop request or a failure; calls `on_ready` once it serves.

        Returns:
            The command's exit status: 0 stopped on request, 1 failed, 130 stopped before it was up.
        """
        try:
            with self._report.starting():
                self._start()
            if self._signals.stop_requested:
                return EXIT_INTERRUPTED
            self._state.ready = True
            self._state_file.write(self._state)
            on_ready()
            with LivenessWatch(self._state.options.hang_timeout_s or None) as liveness:
                while not self._signals.stop_requested:
                    self._end_hung(liveness)
                    self._mend()
                    self._record()
                    self._pause()
            return EXIT_STOPPED
        except MeshFailedError as failure:
            self._explain(failure)
            return EXIT_FAILED
        finally:
            self._stop()
            self._state_file.remove()

    def _start(self) -> None:
        deadline_s = time.monotonic() + self._state.options.start_timeout_s
        while not self._signals.stop_requested:
            for process in self._processes:
                if process.state is ServiceState.WAITING and process.may_start():
                    self._start_one(process)
            for process in self._processes:
                if process.exit_code() is not None:
                    raise _ended_while_starting(process)
                process.check_health()
            self._record()
            self._show_progress()
            late = [process for process in self._processes if process.state is not ServiceState.HEALTHY]
            if not late:
                return
            if time.monotonic() > deadline_s:
                names = ", ".join(process.service_id for process in late)
                allowed_s = self._state.options.start_timeout_s
                raise MeshFailedError(f"not healthy after {allowed_s:.0f} s (--timeout): {names}", late)
            self._pause()

    def _start_one(self, process: SupervisedProcess) -> None:
        try:
            process.start()
        except EmbeddedServerError as error:
            raise MeshFailedError(str(error), []) from error
        except OSError as error:
            raise MeshFailedError(f"{process.service_id} cannot be started: {error}", []) from error
        self._record()
        self._show_progress()

    def _end_hung(self, liveness: LivenessWatch) -> None:
        now_s = time.monotonic()
        options = self._state.options
        targets: dict[str, tuple[int, Probe]] = {}
        for process in self._processes:
            pid = process.pid
            if pid is None or process.is_ending or not process.is_running():
                continue
            if process.state is ServiceState.HEALTHY and process.shows_life is not None:
                targets[process.service_id] = (pid, process.shows_life)
                if liveness.hung().get(process.service_id) == pid:
                    silence = f"{process.service_id} has shown no activity for {options.hang_timeout_s:g} s"
                    self._report.say(f"{silence}, while others have; ending it", style="yellow")
                    process.end_hung()
            elif process.starts_too_long(now_s, options.start_timeout_s):
                self._report.say(
                    f"{process.service_id} was not healthy {options.start_timeout_s:g} s after its start: ending it",
                    style="yellow",
                )
                process.end_hung()
        liveness.watch(targets)

    def _mend(self) -> None:
        for process in self._processes:
            if process.state is ServiceState.STARTING or process.state is ServiceState.HEALTHY:
                self._watch(process)
            elif process.state is ServiceState.RESTARTING:
                try:
                    process.restart_when_due(time.monotonic())
                except (EmbeddedServerError, OSError) as error:
                    self._report.say(f"{process.service_id}: {error}", style="red")
                    self._schedule_restart(process)

    def _watch(self, process: SupervisedProcess) -> None:
        code = process.exit_code()
        if code is None:
            was_healthy = process.state is ServiceState.HEALTHY
            process.check_health()
            if process.state is ServiceState.HEALTHY and not was_healthy:
                self._report.say(f"{process.service_id} is healthy again", style="green")
        elif code == 0 and process.stop_order is StopOrder.WORKER:
            # A drained worker leaves by itself; any other process has no reason to.
            process.state = ServiceState.LEFT
            self._report.say(f"{process.service_id} has left")
        else:
            self._schedule_restart(process)

    def _schedule_restart(self, process: SupervisedProcess) -> None:
        ending = _ending(process)
        now_s = time.monotonic()
        delay_s = process.plan_restart(now_s)
        again = ""
        if process.dies_too_often(now_s):
            if self._is_needed(process):
                raise MeshFailedError(f"{process.service_id} keeps dying ({ending})", [process])
            again = f" again and again; the mesh continues without it; see {process.log_path}"
        self._report.say(
            f"{process.service_id} died ({ending}){again}; starting it again in {delay_s:g} s", style="yellow"
        )

    def _is_needed(self, process: SupervisedProcess) -> bool:
        """Whether the mesh serves no request without this process: any one worker can run both phases, a standby takes over,
        and clients reach any gateway.
        """
        if not process.is_essential:
            return False
        is_worker = process.stop_order is StopOrder.WORKER
        return not any(
            other.state is ServiceState.HEALTHY
            for other in self._processes
            if other is not process
            and (
                other.stop_order is StopOrder.WORKER
                if is_worker
                else bool(other.service) and other.service == process.service
            )
        )

    def _record(self) -> None:
        services = {process.service_id: process.record() for process in self._processes}
        if services != self._state.services or self._state_file.is_behind:
            self._state.services = services
            self._state_file.write(self._state)

    def _show_progress(self) -> None:
        self._report.progress({process.service_id: process.state for process in self._processes})

    def _pause(self) -> None:
        self._between_looks()
        self._report.log_lines(self._log_follower.new_lines())
        self._log_rotation.rotate_when_due(time.monotonic())
        time.sleep(_LOOP_PAUSE_S)

    def _explain(self, failure: MeshFailedError) -> None:
        self._report.say(f"error: {failure}", style="bold red")
        for process in failure.processes:
            self._report.log_end(f"the end of {process.log_path}:", log_tail(process.log_path))

    def _stop(self) -> None:
        if any(process.is_running() for process in self._processes):
            self._report.say("stopping ...")
        for turn in StopOrder:
            leaving = [process for process in self._processes if process.stop_order is turn and process.is_running()]
            for process in leaving:
                process.terminate()
            deadline_s = time.monotonic() + _GRACE_S
            while any(process.is_running() for process in leaving) and not self._signals.at_once:
                if time.monotonic() > deadline_s:
                    break
                time.sleep(_LOOP_PAUSE_S / 5)
            for process in leaving:
                if process.is_running():
                    self._report.say(f"{process.service_id} did not leave by itself; ended", style="yellow")
                    process.kill()


def _ended_while_starting(process: SupervisedProcess) -> MeshFailedError:
    """Give the reason on one line where the process logged one, else the end of its log."""
    reason = reason_for_not_serving(log_tail(process.log_path))
    if reason is not None:
        return MeshFailedError(f"{process.service_id} cannot serve: {reason}", [])
    return MeshFailedError(f"{process.service_id} ended while starting ({_ending(process)})", [process])


def _ending(process: SupervisedProcess) -> str:
    code = process.exit_code()
    if code is None:
        return "it did not come up"
    return f"signal {-code}" if code < 0 else f"exit status {code}"
