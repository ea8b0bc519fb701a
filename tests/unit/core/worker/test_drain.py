"""How a worker leaves."""

from __future__ import annotations

from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import MemberState
from spotwise.core.worker import commands as c
from tests.unit.core.builders import ledger, only, sent
from tests.unit.core.worker.bench import STOP_TOKEN, WorkerBench, deltas, error_delta, rows


def drain(bench: WorkerBench, grace_s: float = 30.0) -> list[c.WorkerCommand]:
    return bench.feed(m.Drain("w", bench.now + grace_s, "spot notice"))


def test_a_notice_for_another_worker_is_ignored(bench: WorkerBench) -> None:
    bench.feed(m.Drain("other", bench.now))
    assert bench.role.state is MemberState.READY
    assert bench.tick(after_s=100.0) == []


def test_an_idle_worker_leaves_after_lingering(bench: WorkerBench) -> None:
    """Work sent before the news spread still finds it; it leaves once."""
    assert drain(bench) == []
    assert bench.role.state is MemberState.DRAINING
    assert bench.tick(after_s=0.9) == []
    assert bench.tick(after_s=0.1) == [c.Leave()]
    assert bench.tick(after_s=1.0) == []


def test_a_short_notice_leaves_no_time_to_linger(bench: WorkerBench) -> None:
    drain(bench, grace_s=0.2)
    assert bench.tick(after_s=0.2) == [c.Leave()]


def test_devices_stay_where_every_notice_says_so(bench: WorkerBench) -> None:
    """A re-shape leaves its devices in the mesh; a machine that is taken away meanwhile does not."""
    bench.feed(m.Drain("w", bench.now + 30.0, "re-shape", devices_stay=True))
    bench.feed(m.Drain("w", bench.now + 60.0, "re-shape", devices_stay=True))
    assert bench.role.leaves_at_s == bench.now + 30.0
    assert bench.tick(after_s=1.0) == [c.Leave(devices_stay=True)]
    bench = WorkerBench()
    bench.feed(m.Drain("w", bench.now + 30.0, "re-shape", devices_stay=True))
    bench.feed(m.Drain("w", bench.now + 60.0, "spot notice"))
    assert bench.tick(after_s=1.0) == [c.Leave()]


def test_it_takes_no_reservation_and_finishes_what_it_has(bench: WorkerBench) -> None:
    """The running sequence gets every token, then the worker leaves."""
    bench.decode("r")
    drain(bench)
    assert only(bench.reserve("new"), m.KvRefused)[0].reason == "draining"
    assert bench.tick(after_s=5.0) == []
    assert rows(bench.iterate(r=51)) == ["r@1"]
    commands = bench.iterate(r=STOP_TOKEN)
    assert commands[-1] == c.Leave()
    bench.assert_empty()


def test_a_prompt_with_a_valid_reservation_is_still_computed(bench: WorkerBench) -> None:
    """The assignment was made before the scheduler knew."""
    drain(bench)
    bench.prefill("p")
    commands = bench.iterate(after_s=2.0, p=50)
    assert len(only(commands, c.PushKv)) == 1
    assert only(commands, c.Leave) == []
    assert bench.delivered("p")[-1] == c.Leave()


def test_at_the_deadline_it_gives_back_what_it_holds(bench: WorkerBench) -> None:
    """Reserved, waiting and pushed requests are given back: gateways may retry at once, and other workers free reservations."""
    bench.prefill("pushed")
    bench.iterate(pushed=50)
    bench.reserve("reserved")
    bench.start("waiting")
    drain(bench, grace_s=2.0)
    commands = bench.tick(after_s=2.0)
    assert [delta.retryable for delta in deltas(commands)] == [True] * 3
    assert len(ledger(commands, "failed")) == 3
    assert only(sent(commands, "t"), m.CancelRequest) == [m.CancelRequest("pushed", 1), m.CancelRequest("waiting", 1)]
    assert only(commands, c.Leave) == []  # the push still reads its blocks
    assert bench.feed(h.HandoffFailed("pushed", 1, "cancelled"))[-1] == c.Leave()
    bench.assert_empty()


def test_at_the_deadline_it_waits_for_the_iteration_in_flight(bench: WorkerBench) -> None:
    """The worker gives the sequence back once, and leaves when the engine is idle."""
    bench.decode("r")
    drain(bench, grace_s=2.0)
    assert error_delta(bench.tick(after_s=2.0)).retryable
    assert bench.tick(after_s=0.1) == []
    assert bench.iterate(r=51) == [c.DropSequence("r@1"), c.Leave()]


def test_an_earlier_deadline_counts_and_a_later_one_does_not(bench: WorkerBench) -> None:
    """The machine goes when it goes."""
    bench.decode("r")
    drain(bench, grace_s=10.0)
    drain(bench, grace_s=3.0)
    drain(bench, grace_s=20.0)
    assert deltas(bench.tick(after_s=2.9)) == []
    assert error_delta(bench.tick(after_s=0.1)).retryable
