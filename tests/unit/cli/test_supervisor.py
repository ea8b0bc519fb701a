"""When processes are started again, and when the mesh gives up; with real, trivial processes."""

from __future__ import annotations

import errno
import io
import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from spotwise.cli.errors import CommandError
from spotwise.cli.launch.service_process import StopOrder
from spotwise.cli.launch.supervision import liveness, state_file, supervised_process
from spotwise.cli.launch.supervision.run_state import RunState, read_state, write_state
from spotwise.cli.launch.supervision.service_logs import LogFollower, log_tail, reason_for_not_serving
from spotwise.cli.launch.supervision.stop_signals import StopSignals
from spotwise.cli.launch.supervision.supervised_process import RestartLimit, SupervisedProcess
from spotwise.cli.launch.supervision.supervisor import Supervisor
from spotwise.cli.report import Report
from spotwise.mesh.embedded.child_process import ChildProcess, ProcessIdentity, is_alive, start_child
from tests.unit.cli.builders import run_state


def test_restarts_come_ever_more_slowly_and_become_too_many() -> None:
    """Five deaths within a minute are not too often, the sixth is; the pauses grow to a minute."""
    limit = RestartLimit()
    now_s, delays, too_often = 0.0, [], []
    for _ in range(11):
        delays.append(limit.delay_after_death(now_s))
        too_often.append(limit.too_often(now_s))
        now_s += delays[-1]
    assert delays == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert too_often[:7] == [False] * 5 + [True] * 2
    assert not too_often[-1]  # so slowly that it is no longer often


def test_old_deaths_are_forgotten() -> None:
    limit = RestartLimit()
    assert {limit.delay_after_death(hour * 3600.0) for hour in range(20)} == {0.25}
    assert not limit.too_often(20 * 3600.0)


class World:
    """A supervisor of one process, of which every start but the first may fail."""

    def __init__(
        self,
        folder: Path,
        commands: list[str],
        *,
        is_essential: bool = True,
        others: int = 0,
        order: StopOrder = StopOrder.WORKER,
        services: tuple[str, str] = ("", ""),
    ) -> None:
        self.output = io.StringIO()
        self.children: list[ChildProcess] = []
        self.state_path = folder / "state.json"
        log_path = folder / "worker.log"
        command = itertools.chain(commands, itertools.repeat(commands[-1]))

        def start() -> ChildProcess:
            self.children.append(start_child(["sh", "-c", next(command)], log_path=log_path))
            return self.children[-1]

        self.process = SupervisedProcess(
            "worker",
            order,
            log_path,
            start,
            lambda _pid: True,
            self.shows_life,
            is_essential=is_essential,
            service=services[0],
        )
        self.silent: set[int] = set()

        def start_other() -> ChildProcess:
            return start_child(["sleep", "600"], log_path=folder / "other.log")

        self.processes = [self.process] + [
            SupervisedProcess(
                f"other-{number}",
                order,
                log_path,
                start_other,
                lambda _pid: True,
                lambda _pid: True,
                service=services[1],
            )
            for number in range(others)
        ]
        self.state = run_state(supervisor=ProcessIdentity(os.getpid(), 0), ready=False)

    def shows_life(self, pid: int) -> bool:
        return pid not in self.silent

    def stop_after(self, children: int) -> None:
        """Let the mesh be stopped once its process was started so often."""
        start = self.process._start

        def counted() -> ChildProcess:
            child = start()
            if len(self.children) == children:
                os.kill(os.getpid(), signal.SIGTERM)
            return child

        self.process._start = counted

    def run(self, on_ready: Callable[[], None]) -> int:
        """Supervise until the end, and do this once all is up."""

        def ready() -> None:
            recorded = read_state(self.state_path)
            assert recorded is not None
            assert recorded.ready
            on_ready()

        report = Report(Console(file=self.output, width=200))
        with StopSignals() as signals:
            return Supervisor(self.processes, self.state, self.state_path, signals, report, verbose=False).run(ready)

    def run_and_kill(self) -> int:
        """Supervise until the end, the first child being killed once all is up."""
        return self.run(lambda: os.kill(self.children[0].pid, signal.SIGKILL))


def test_a_process_that_dies_again_and_again_ends_the_mesh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After five restarts: exit status 1, its log's end, nothing left, no record."""
    monkeypatch.setattr(supervised_process, "FIRST_DELAY_S", 0.001)
    world = World(tmp_path, ["sleep 600", "echo out of luck; exit 7"])
    assert world.run_and_kill() == 1
    assert len(world.children) == 6
    assert "worker keeps dying (exit status 7)" in world.output.getvalue()
    assert "out of luck" in world.output.getvalue()
    assert not world.state_path.exists()


@pytest.mark.parametrize(("is_essential", "others"), [(False, 0), (True, 1)], ids=["not essential", "another worker"])
def test_what_the_mesh_can_do_without_never_ends_it(
    is_essential: bool, others: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planner, or one worker of several, dies eight times: it is restarted, and that is reported."""
    monkeypatch.setattr(supervised_process, "FIRST_DELAY_S", 0.001)
    world = World(tmp_path, ["sleep 600", "exit 7"], is_essential=is_essential, others=others)
    world.stop_after(9)
    assert world.run_and_kill() == 0
    assert len(world.children) == 9
    assert "died (exit status 7) again and again; the mesh continues without it" in world.output.getvalue()


@pytest.mark.parametrize(
    ("services", "status"),
    [(("scheduler", "scheduler"), 0), (("scheduler", "planner"), 1), (("", ""), 1)],
    ids=["a standby", "another service", "servers"],
)
def test_a_service_with_another_process_does_not_end_the_mesh(
    services: tuple[str, str], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby takes over, and clients reach another gateway; broker and store are one of a kind."""
    monkeypatch.setattr(supervised_process, "FIRST_DELAY_S", 0.001)
    world = World(tmp_path, ["sleep 600", "exit 7"], others=1, order=StopOrder.CONTROL, services=services)
    world.stop_after(9)
    assert world.run_and_kill() == status


def test_a_process_that_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "_PERIOD_S", 0.02)
    world = World(tmp_path, ["exec sleep 600"], others=1)
    world.state.options = world.state.options.model_copy(update={"hang_timeout_s": 0.2})
    world.stop_after(2)

    def on_ready() -> None:
        os.kill(world.children[0].pid, signal.SIGSTOP)
        world.silent.add(world.children[0].pid)

    assert world.run(on_ready) == 0
    assert world.children[0].exit_code() == -signal.SIGKILL
    assert len(world.children) == 2
    assert "worker has shown no activity for 0.2 s" in world.output.getvalue()


def test_a_full_disk_is_reported_once_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record that cannot be written is written when there is room again."""
    monkeypatch.setattr(supervised_process, "FIRST_DELAY_S", 0.001)
    monkeypatch.setattr(state_file, "_TRY_AGAIN_S", 0.01)
    world = World(tmp_path, ["sleep 600", "exec sleep 600"])
    written: list[RunState] = []
    tries = itertools.count()

    def write(path: Path, state: RunState) -> None:
        if state.ready and 1 <= next(tries) < 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(state.model_copy(deep=True))
        write_state(path, state)
        if len(world.children) == 2 and written[-1].services["worker"].restarts == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(state_file, "write_state", write)
    assert world.run_and_kill() == 0
    assert world.output.getvalue().count("cannot be written (No space left on device)") == 1
    assert "is written again" in world.output.getvalue()
    assert written[-1].services["worker"].restarts == 1


def test_a_disk_that_is_full_at_the_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other command would find the mesh; nothing is left running."""
    world = World(tmp_path, ["exec sleep 600"])

    def write(path: Path, state: RunState) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(state_file, "write_state", write)
    with pytest.raises(CommandError, match="No space left on device; free some space"):
        world.run_and_kill()
    assert not is_alive(world.children[0].identity)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_signal_stops_the_mesh_in_order(number: signal.Signals, tmp_path: Path) -> None:
    """Exit status 0, nothing left, no record; afterwards the signal means what it meant before."""
    before = signal.getsignal(number)
    world = World(tmp_path, ["exec sleep 600"])
    assert world.run(lambda: os.kill(os.getpid(), number)) == 0
    assert world.children[0].exit_code() == -signal.SIGTERM
    assert not is_alive(world.children[0].identity)
    assert not world.state_path.exists()
    assert signal.getsignal(number) is before


def test_an_unexpected_error_leaves_nothing_running(tmp_path: Path) -> None:
    """Whatever goes wrong in the supervisor itself, its processes are stopped."""
    world = World(tmp_path, ["exec sleep 600"])

    def fail() -> None:
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        world.run(fail)
    assert not is_alive(world.children[0].identity)


def test_only_a_second_ctrl_c_means_at_once() -> None:
    """A terminal that closes sends SIGHUP more than once, and that is no hurry."""
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        assert (signals.stop_requested, signals.at_once) == (True, False)
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.at_once


def test_a_broken_pipe_silences_the_report_and_nothing_else() -> None:
    """`spotwise up | head` keeps running when head has exited."""

    class Broken(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError("input/output error")

    report = Report(Console(file=Broken()))
    with report.starting():
        report.progress({})
        report.say("unread")
    report.say("unread")


def test_the_end_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert log_tail(path) == []
    path.write_text("".join(f"line {number}\n" for number in range(100_000)))
    assert log_tail(path, 2) == ["line 99998", "line 99999"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "2026Z [error    ] cannot_serve     error='the model: \\'a b\\' is \"c\"' member=prompt-0",
            "the model: 'a b' is \"c\"",
        ),
        ('2026Z [error    ] cannot_serve     error="it\'s gone" member=prompt-0', "it's gone"),
        ("2026Z [error    ] cannot_serve     error=gone member=prompt-0", "gone"),
        ('{"error": "the model: gone", "event": "cannot_serve", "level": "error"}', "the model: gone"),
        ('{"event": "cannot_serve"}', None),
        ("cannot_serve is mentioned", None),
        ("Traceback (most recent call last):", None),
    ],
)
def test_a_services_reason_for_not_serving_is_read(line: str, reason: str | None) -> None:
    assert reason_for_not_serving(["2026Z [info     ] loading", line, "bye"]) == reason


def test_a_start_that_one_service_refuses_is_explained_in_one_line(tmp_path: Path) -> None:
    world = World(
        tmp_path, ["echo more; echo \"[error] cannot_serve  error='no tensor x' member=worker\"; sleep 0.1; exit 1"]
    )
    world.process._is_healthy = lambda _pid: False
    assert world.run_and_kill() == 1
    assert [line for line in world.output.getvalue().splitlines() if line] == [
        "error: worker cannot serve: no tensor x"
    ]


def test_followed_logs_show_complete_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower = LogFollower({"token-0": path})
    assert list(follower.new_lines()) == []
    path.write_text("one\ntw")
    assert list(follower.new_lines()) == [("token-0", "one")]
    with path.open("a") as log:
        log.write("o\n")
    assert list(follower.new_lines()) == [("token-0", "two")]
    assert list(follower.new_lines()) == []
