"""KV of another numerics class: refused where the policy says so, and never mixed with other requests' KV."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.messages.numerics import Crossing
from spotwise.core.requests.record import KvHandoff, KvTarget
from spotwise.core.worker import commands as c
from spotwise.core.worker.policy import WorkerPolicy
from tests.unit.core.builders import AMX, DOT, only, sent
from tests.unit.core.worker.bench import HERE, WorkerBench, stream_of

OWN, FOREIGN = DOT.name, AMX.name
CACHING = WorkerPolicy(watermark=0.0)
PROMPT = tuple(range(100, 132))


def bench_of(crossing: Crossing = Crossing.COUNT) -> WorkerBench:
    return WorkerBench(policy=replace(CACHING, crossing=crossing), numerics_class=OWN)


def arrive(bench: WorkerBench, numerics_class: str, *, mixed: bool = False) -> list[c.WorkerCommand]:
    """A prompt's KV comes, which was computed in this class."""
    bench.reserve("a", numerics_class=numerics_class)
    bench.load("a", prompt=PROMPT)
    handoff = KvHandoff("a", 1, 32, 50, None, (), numerics_class, mixed)
    return bench.feed(c.KvArrived(handoff, 4096, 0.25, "shm"))


@pytest.mark.parametrize(
    ("crossing", "numerics_class", "is_refused"),
    [
        (Crossing.REFUSE, FOREIGN, True),
        (Crossing.REFUSE, OWN, False),
        (Crossing.REFUSE, "", False),
        (Crossing.COUNT, FOREIGN, False),
    ],
)
def test_no_blocks_are_reserved_for_kv_that_is_refused(
    crossing: Crossing, numerics_class: str, is_refused: bool
) -> None:
    """The refusal names both classes; a sequence that moves goes on at its source."""
    bench = bench_of(crossing)
    refusals = only(bench.reserve("r", numerics_class=numerics_class), m.KvRefused)
    assert bool(refusals) is is_refused
    assert all(OWN in each.reason and FOREIGN in each.reason for each in refusals)
    assert bool(bench.pool.used_blocks) is not is_refused


@pytest.mark.parametrize(("numerics_class", "cached"), [(OWN, 16), (FOREIGN, 0)])
def test_other_requests_do_not_find_foreign_kv(numerics_class: str, cached: int) -> None:
    """Of equal prompts the second one computes its own, though blocks of the first have the same tokens."""
    bench = bench_of()
    arrive(bench, numerics_class)
    bench.iterate(a=51)
    bench.start("b", prompt=32, target=HERE)
    bench.load("b", prompt=PROMPT)
    (order,) = only(bench.iterate(a=52), c.RunIteration)
    (row,) = (row for row in order.batch.rows if row.sequence_id == "b@1")
    assert row.first_position == cached


def test_a_worker_names_its_class_with_tokens_and_with_kv() -> None:
    bench = bench_of()
    bench.prefill("r")
    commands = bench.iterate(r=50)
    (batch,) = only(commands, m.TokenBatch)
    (push,) = only(commands, c.PushKv)
    assert batch.numerics_class == push.handoff.numerics_class == OWN
    assert not push.handoff.has_foreign_kv


@pytest.mark.parametrize(
    ("numerics_class", "mixed", "told"),
    [(OWN, False, (50,)), (FOREIGN, False, (50,)), (FOREIGN, True, ())],
)
def test_a_move_tells_tokens_only_where_all_are_of_one_class(
    numerics_class: str, mixed: bool, told: tuple[int, ...]
) -> None:
    """Else the gateway could not say in which class each was computed, and waits for the source's message."""
    bench = bench_of()
    order = m.ReserveKv("a", 1, stream_of("a"), "s", 0, 40, 10, 3.0, "x", 1, numerics_class=numerics_class)
    bench.feed(order)
    bench.load("a", prompt=PROMPT)
    commands = bench.feed(c.KvArrived(KvHandoff("a", 1, 32, 50, None, (), numerics_class, mixed), 4096, 0.25, "shm"))
    (report,) = [each for each in sent(commands, "g") if isinstance(each, m.RequestMoved)]
    assert report.token_ids == told
    assert report.source_class == ("" if mixed else numerics_class)
    assert report.first_index == (0 if told else 1)


@pytest.mark.parametrize(("numerics_class", "is_foreign"), [(OWN, False), (FOREIGN, True)])
def test_foreign_kv_stays_foreign_when_it_moves_on(numerics_class: str, is_foreign: bool) -> None:
    bench = bench_of()
    arrive(bench, numerics_class)
    bench.iterate(a=51)
    bench.feed(m.MoveRequest("a", 1, "planner", "x"))
    bench.feed(m.KvReserved("a", 1, 0, KvTarget("x", 3, "x:2", (7, 8, 9))))
    bench.feed(h.PushCaughtUp("a", 1, 1))
    (push,) = only(bench.iterate(a=52), h.CommitPush)
    assert (push.handoff.numerics_class, push.handoff.has_foreign_kv) == (OWN, is_foreign)
