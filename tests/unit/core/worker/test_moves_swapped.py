"""Sequences whose KV is on the host move as well: it is swapped in first, and every way out of that leaves nothing behind."""

from __future__ import annotations

import pytest

from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.requests.record import KvTarget
from spotwise.core.worker import commands as c
from spotwise.core.worker.sequences.move import RESERVED_WITHIN_S, RETURNED_WITHIN_S
from tests.unit.core.builders import ledger, one, only, sent
from tests.unit.core.worker.bench import WorkerBench, deltas, error_delta, row_of, rows
from tests.unit.core.worker.test_swaps import POLICY, one_leaves

ROOM = KvTarget("x", 3, "x:2", (7, 8, 9))
ORDER = m.MoveRequest("a", 1, "planner", "x")


def on_the_host() -> WorkerBench:
    """Return a bench on which `a` (39 computed tokens, three blocks) is on the host; `o` runs, and three blocks are free."""
    bench = WorkerBench(blocks=4, policy=POLICY)
    bench.in_place("a", prompt=38)
    bench.iterate(a=51)
    bench.in_place("n", prompt=17)
    bench.iterate(a=52)
    bench.swapped("a")
    bench.in_place("o", prompt=8)
    bench.iterate(n=2)
    assert (bench.pool.free_blocks, bench.host.free_blocks) == (3, 17)
    return bench


def ended(commands: list[c.WorkerCommand]) -> list[m.MoveEnded]:
    return [message for message in sent(commands, "planner") if isinstance(message, m.MoveEnded)]


def refusal(commands: list[c.WorkerCommand]) -> str:
    """The reason of the one report, which is a refusal."""
    (report,) = ended(commands)
    assert report.outcome is m.MoveOutcome.REFUSED
    return report.reason


def asked(commands: list[c.WorkerCommand]) -> list[m.ReserveKv]:
    return [message for message in sent(commands, "x") if isinstance(message, m.ReserveKv)]


@pytest.fixture
def bench() -> WorkerBench:
    """`a` is on the host, and was ordered to move."""
    made = on_the_host()
    made.feed(ORDER)
    return made


def test_it_is_swapped_in_and_then_moves() -> None:
    """The target is asked once the KV is on the device; all of it is copied, and both pools are free in the end."""
    bench = on_the_host()
    commands = bench.feed(ORDER)
    (swap,) = only(commands, c.SwapIn)
    assert (swap.sequence_id, len(swap.block_ids), asked(commands)) == ("a@1", 3, [])
    (reservation,) = asked(bench.swapped("a", after_s=RESERVED_WITHIN_S / 2))
    assert (reservation.kv_tokens, reservation.source_id, reservation.hop) == (48, "w", 1)
    assert ended(bench.tick(after_s=RESERVED_WITHIN_S * 0.9)) == []  # since it was asked, not since the order
    (push,) = only(bench.feed(m.KvReserved("a", 1, 0, ROOM)), h.OpenPush)
    assert (len(push.source_block_ids), push.written_tokens) == (3, 39)
    (commit,) = only(bench.feed(h.PushCaughtUp("a", 1, 1)), h.CommitPush)
    assert commit.handoff.num_tokens == 39
    (report,) = ended(bench.delivered("a"))
    assert (report.outcome, report.tokens) == (m.MoveOutcome.MOVED, 39)
    bench.feed(m.MoveAcknowledged("a", 1, "x", 1))
    bench.iterate(o=2)
    bench.assert_empty()


def test_it_decodes_until_it_is_copied_where_its_turn_comes(bench: WorkerBench) -> None:
    """Back on the device, it is a sequence like any other."""
    bench.swapped("a")
    assert row_of(bench.iterate(o=2), "a") == (39, 1)
    (push,) = only(bench.feed(m.KvReserved("a", 1, 0, ROOM)), h.OpenPush)
    assert push.written_tokens == 39
    bench.feed(h.PushCaughtUp("a", 1, 1))
    (commit,) = only(bench.iterate(a=53), h.CommitPush)
    assert commit.handoff.num_tokens == 40


def test_where_the_device_has_no_room_it_is_refused() -> None:
    """It stays where it is, and the planner learns why."""
    bench, _ = one_leaves()
    bench.swapped("a")
    commands = bench.feed(ORDER)
    assert refusal(commands) == "its KV is on the host, and the device has no free blocks for it"
    assert (only(commands, c.SwapIn), asked(commands), bench.host.free_blocks) == ([], [], 17)


def test_while_it_is_being_swapped_it_is_refused() -> None:
    """On its way out, and on its way back for its own turn."""
    bench, _ = one_leaves()
    assert refusal(bench.feed(ORDER)) == "its KV is not on the device"
    bench.swapped("a")
    bench.iterate(n=2)
    assert refusal(bench.feed(ORDER)) == "its KV is not on the device"


def test_a_second_order_does_not_disturb_its_return(bench: WorkerBench) -> None:
    """One swap, one reservation."""
    commands = bench.feed(m.MoveRequest("a", 1, "planner", "y"))
    assert (refusal(commands), only(commands, c.SwapIn)) == ("it is on its way to x", [])
    assert len(asked(bench.swapped("a"))) == 1


def test_cancelled_on_its_way_back_it_ends_when_the_copy_has(bench: WorkerBench) -> None:
    """The planner is answered once; the target, which was not asked, hears nothing."""
    commands = bench.feed(m.CancelRequest("a", 1))
    assert [report.outcome for report in ended(commands)] == [m.MoveOutcome.ENDED]
    assert sent(commands, "x") == []
    assert bench.pool.free_blocks == 0
    commands = bench.swapped("a")
    assert (ended(commands), asked(commands)) == ([], [])
    bench.iterate(o=2)
    bench.assert_empty()


def test_a_worker_that_must_leave_gives_it_back(bench: WorkerBench) -> None:
    """Its gateway has it computed elsewhere; the worker leaves when the copy has ended."""
    bench.feed(m.Drain("w", bench.now + 0.5))
    bench.iterate(o=2)
    commands = bench.tick(after_s=1.0)
    assert error_delta(commands).retryable
    assert [report.outcome for report in ended(commands)] == [m.MoveOutcome.ENDED]
    assert only(commands, c.Leave) == []
    commands = bench.swapped("a")
    assert (ended(commands), only(commands, c.Leave)) == ([], [c.Leave()])
    bench.assert_empty()


def test_kv_that_is_lost_on_its_way_is_computed_again_here(bench: WorkerBench) -> None:
    """The move is refused, and the host blocks come free."""
    commands = bench.feed(c.SwapFailed("a@1", "a bad page"))
    assert refusal(commands) == "its KV was lost on the way from the host"
    assert ledger(commands, "move_failed") == [
        {"token_worker": "x", "reason": "its KV was lost on the way from the host"}
    ]
    assert (sent(commands, "x"), bench.host.free_blocks) == ([], 20)
    assert row_of(bench.iterate(o=2), "a") == (0, 40)


def test_kv_that_does_not_come_back_in_time_is_waited_for_no_longer(bench: WorkerBench) -> None:
    """The target is never asked; the sequence goes on here when the copy ends after all."""
    assert ended(bench.tick(after_s=RETURNED_WITHIN_S * 0.9)) == []
    commands = bench.tick(after_s=RETURNED_WITHIN_S * 0.2)
    assert refusal(commands) == "its KV did not come back from the host in time"
    assert sent(commands, "x") == []
    commands = bench.swapped("a")
    assert (asked(commands), ended(commands)) == ([], [])
    assert row_of(bench.iterate(o=2), "a") == (39, 1)


def test_time_in_which_the_worker_heard_nothing_does_not_count(bench: WorkerBench) -> None:
    """As for answers of a target."""
    bench.now += 60.0
    assert ended(bench.feed(m.Tick(60.0))) == []
    bench.swapped("a")
    bench.now += 60.0
    assert ended(bench.feed(m.Tick(60.0))) == []


@pytest.mark.parametrize("has_left", [False, True], ids=["leaving", "left"])
def test_swapped_out_again_before_the_target_answered_it_is_refused(has_left: bool, bench: WorkerBench) -> None:
    """The reservation is cancelled, and the sequence waits on the host for its turn."""
    bench.swapped("a")
    bench.iterate(o=2)
    bench.in_place("p", prompt=30)
    assert len(only(bench.iterate(a=53), c.SwapOut)) == 1
    if has_left:
        assert rows(bench.swapped("a")) == ["p@1"]
    commands = bench.feed(m.KvReserved("a", 1, 0, ROOM))
    assert refusal(commands) == ("its KV was swapped out meanwhile" if has_left else "its KV is not on the device")
    assert sent(commands, "x") == [m.CancelRequest("a", 1)]
    assert only(commands, h.OpenPush) == []
    if not has_left:
        bench.swapped("a")
    bench.iterate(p=2)
    bench.swapped("a")
    commands = bench.iterate(a=2)
    assert (ended(commands), len(deltas(commands))) == ([], 1)
    bench.assert_empty()


def test_a_survey_counts_its_tokens_unless_it_is_being_swapped() -> None:
    """So that a planner orders it moved, or has it computed again."""
    bench = on_the_host()
    tokens = {}
    for step in ("host", "returning"):
        answer = one(sent(bench.feed(m.SurveyWorker("planner", 4)), "planner"), m.WorkerSurveyed)
        tokens[step] = {each.choice_id: each.tokens for each in answer.sequences}["a"]
        bench.feed(ORDER)
    assert tokens == {"host": 39, "returning": 0}
