"""What a process's watchdog finds stuck, what it does then, and how long a member could receive no messages."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from spotwise.mesh.process.pulse import FRESH_S, Attention, Pulse, has_pulse
from spotwise.mesh.process.watchdog import EXIT_STUCK, LOOK_S, Watchdog, WatchedExecutor, WatchedPart
from tests.contracts.waiting import until

LIMIT_S = 10.0


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A watchdog that looks when the test lets it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.watchdog = Watchdog(LIMIT_S, end=lambda status: None, monotonic=self.clock)

    def look(self, seconds: float, step_s: float = LOOK_S) -> list[WatchedPart]:
        """Look for some seconds, as its thread does; return the parts that were found stuck."""
        found: dict[str, WatchedPart] = {}
        for _ in range(round(seconds / step_s)):
            self.clock.now += step_s
            found |= {part.name: part for part in self.watchdog.look()}
        return list(found.values())


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_work_without_progress_for_its_limit_is_stuck(bench: Bench) -> None:
    part, _ = bench.watchdog.part("engine"), bench.watchdog.part("idle")
    part.begin()
    assert bench.look(LIMIT_S - LOOK_S) == []
    assert bench.look(2 * LOOK_S) == [part]


def test_progress_starts_the_wait_anew(bench: Bench) -> None:
    """An end of one, or the begin of another, of several under way; a part whose last work has ended waits for nothing."""
    part = bench.watchdog.part("engine")
    part.begin()
    for _ in range(5):
        assert bench.look(LIMIT_S - 1) == []
        part.begin()
        part.end()
    assert bench.look(LIMIT_S + 1) == [part]
    part.end()
    assert bench.look(5 * LIMIT_S) == []


def test_the_longest_limit_of_what_is_under_way_holds(bench: Bench) -> None:
    """Work that is expected to take long may; what begins after it has its own limit again."""
    part = bench.watchdog.part("engine")
    part.begin(100.0)
    part.begin()
    assert bench.look(90.0) == []
    part.end()
    part.end()
    part.begin()
    assert bench.look(LIMIT_S + 1) == [part]


def test_a_pause_of_the_whole_process_is_not_counted(bench: Bench) -> None:
    """A suspended machine or process looks hours later, and finds nothing stuck."""
    part = bench.watchdog.part("engine")
    part.begin()
    for _ in range(3):
        bench.clock.now += 3600.0
        assert bench.watchdog.look() == []
    assert bench.look(LIMIT_S) == [part]


def test_a_part_that_was_dropped_or_forgotten_is_not_stuck(bench: Bench) -> None:
    """A lost engine has nothing under way, and one too many ends are no debt."""
    part = bench.watchdog.part("engine")
    part.begin()
    part.drop()
    part.end()
    assert bench.look(5 * LIMIT_S) == []
    part.begin()
    bench.watchdog.forget(part)
    bench.watchdog.forget(part)
    assert bench.look(5 * LIMIT_S) == []


def test_what_waits_for_others_has_three_times_as_long(bench: Bench) -> None:
    """The part that it waits for, in another process, is to be found first."""
    part = bench.watchdog.part("engine")
    part.begin()
    part.waits = True
    assert bench.look(3 * LIMIT_S - 1) == []
    assert bench.look(2) == [part]


def test_calls_of_watched_threads_are_work(bench: Bench) -> None:
    """A call that waits behind one that is stuck does not hide it."""
    part = bench.watchdog.part("copies")
    go_on = threading.Event()
    with WatchedExecutor(1, "copies", part) as executor:
        calls = [executor.submit(go_on.wait, 30.0), executor.submit(lambda: True)]
        try:
            assert bench.look(LIMIT_S + 1) == [part]
        finally:
            go_on.set()
        assert all(call.result(30.0) for call in calls)
    assert bench.look(5 * LIMIT_S) == []


class TestThread:
    """The watchdog's own thread, with limits below a second."""

    def ended(self, work: str) -> tuple[list[int], list[list[str]]]:
        """Let a part or the loop get stuck; return statuses and goodbyes."""
        statuses: list[int] = []
        goodbyes: list[list[str]] = []

        async def main() -> None:
            ended = threading.Event()

            def end(status: int) -> None:
                statuses.append(status)
                ended.set()

            watchdog = Watchdog(0.6, end)
            watchdog.say_goodbye_with(lambda stuck: goodbyes.append([part.name for part in stuck]))
            async with watchdog.watching():
                watchdog.watch_loop()
                if work == "part":
                    watchdog.part("engine").begin()
                    await asyncio.to_thread(ended.wait, 30.0)
                elif work == "loop":
                    ended.wait(30.0)
                else:
                    await asyncio.sleep(2.0)

        asyncio.run(main())
        return statuses, goodbyes

    def test_a_stuck_part_says_goodbye_and_the_process_ends(self, capfd: pytest.CaptureFixture[str]) -> None:
        """The log has the stacks of all threads, more than a hundred here, by their names."""
        began_s = time.monotonic()
        go_on = threading.Event()
        idle = [threading.Thread(target=go_on.wait, name=f"idle {number}", daemon=True) for number in range(120)]
        for thread in idle:
            thread.start()
        try:
            statuses, goodbyes = self.ended("part")
        finally:
            go_on.set()
            for thread in idle:
                thread.join(30.0)
        assert (statuses, goodbyes) == ([EXIT_STUCK], [["engine"]])
        assert time.monotonic() - began_s >= 0.6
        logged = capfd.readouterr()
        assert "engine" in logged.out + logged.err
        assert "test_watchdog.py" in logged.err
        assert {f"thread idle {number}:" for number in range(120)} <= set(logged.err.splitlines())

    def test_a_blocked_loop_ends_the_process_without_goodbye(self) -> None:
        """No loop is left to send it."""
        assert self.ended("loop") == ([EXIT_STUCK], [])

    def test_a_live_loop_without_work_is_left_alone(self) -> None:
        """As long as it calls back."""
        assert self.ended("nothing") == ([], [])


class TestPulse:
    """A file that is touched while the loop goes round."""

    async def test_a_loop_that_goes_round_has_a_pulse_and_a_blocked_one_has_none(self, tmp_path: Path) -> None:
        """Not before the process watches its loop: a start may block it."""
        path = tmp_path / "pulse"
        watchdog = Watchdog(1e9, pulse_file=path)
        async with watchdog.watching():
            await asyncio.sleep(2 * LOOK_S)
            assert not path.exists()
            watchdog.watch_loop()
            await until(lambda: has_pulse(path))
            assert path.stat().st_mode & 0o777 == 0o600
            time.sleep(3 * LOOK_S)  # noqa: ASYNC251
            touched_s = path.stat().st_mtime
            time.sleep(3 * LOOK_S)  # noqa: ASYNC251
            assert path.stat().st_mtime == touched_s
            await until(lambda: path.stat().st_mtime > touched_s)

    def test_an_old_touch_is_no_sign_of_life(self, tmp_path: Path) -> None:
        """Nor one of the future, by which the clock was set back."""
        path = tmp_path / "pulse"
        assert not has_pulse(path)
        Pulse(path).beat()
        assert has_pulse(path)
        for seconds in (-2 * FRESH_S, 2 * FRESH_S):
            os.utime(path, (0, time.time() + seconds))
            assert not has_pulse(path)
            Pulse(path).beat()
            assert has_pulse(path)

    def test_a_pulse_that_cannot_be_written_breaks_nothing(self, tmp_path: Path) -> None:
        """The other signs of life remain."""
        path = tmp_path / "missing" / "pulse"
        Pulse(path).beat()
        Pulse(None).beat()
        assert not has_pulse(path)


class TestAttention:
    """Ticks every 0.2 s, heartbeats every 0.25 s."""

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def attention(self, clock: Clock) -> Attention:
        return Attention(0.25, 0.2, clock)

    def test_in_time_and_hearing_itself_it_is_never_away(self, clock: Clock, attention: Attention) -> None:
        for _ in range(20):
            clock.now += 0.6
            attention.received_own_heartbeat()
            assert attention.away_s() == 0.0

    def test_a_suspended_process_was_away(self, clock: Clock, attention: Attention) -> None:
        clock.now += 3.0
        assert attention.away_s() == pytest.approx(3.0)
        attention.received_own_heartbeat()
        clock.now += 0.2
        assert attention.away_s() == 0.0

    def test_a_suspended_broker_is_time_away(self, clock: Clock, attention: Attention) -> None:
        """A suspended broker counts as away from the third missing heartbeat until one arrives."""
        away_s = 0.0
        for _ in range(15):
            clock.now += 0.2
            away_s += attention.away_s()
        assert away_s == pytest.approx(3.0 - 0.6)
        attention.received_own_heartbeat()
        clock.now += 0.2
        assert attention.away_s() == 0.0
