"""A worker's home pool is part of its report, and restricts nothing."""

from __future__ import annotations

from spotwise.core.messages import mesh as m
from spotwise.core.worker import commands as c
from tests.unit.core.builders import only
from tests.unit.core.worker.bench import WorkerBench, rows


def test_an_order_to_change_the_home_pool_becomes_a_command(bench: WorkerBench) -> None:
    for pool in (m.Pool.PROMPT, m.Pool.PROMPT, m.Pool.TOKEN):
        assert bench.feed(m.ChangeHomePool("w", pool)) == [c.TakeHomePool(pool)]


def test_an_order_to_another_worker_is_none() -> None:
    assert WorkerBench().feed(m.ChangeHomePool("w2", m.Pool.PROMPT)) == []


def test_running_sequences_continue_over_a_change_of_home_pool() -> None:
    bench = WorkerBench(blocks=40)
    bench.decode("d")
    bench.prefill("h")
    bench.in_place("p")
    bench.feed(m.ChangeHomePool("w", m.Pool.PROMPT))
    ordered = rows(bench.iterate(d=50))
    bench.decode("e")
    ordered += rows(bench.iterate(d=50, h=50, p=50))
    assert {"d@1", "h@1", "p@1", "e@1"} <= set(ordered)
    assert only(bench.tick(), c.Leave) == []
