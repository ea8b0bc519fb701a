"""A system that keeps its configuration, beside one that has the best at any time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.parallel.config import ParallelConfig
from spotwise.files.spot_traces import SpotEvent, SpotEventKind, SpotTrace
from spotwise.simulator.spotserve.own_fleet import COMPARED
from spotwise.simulator.spotserve.run import SpotOutcome
from spotwise.simulator.spotserve.serving import serve
from spotwise.simulator.spotserve.systems import SPOTSERVE
from tests.unit.simulator.spotserve import spot_worlds as tiny

EAGER, KEEPS = SPOTSERVE, replace(SPOTSERVE, name="keeps", keeps=True)
#: Between these rates six tiny instances are better off with other pipelines.
LIGHT, HEAVY = 0.1, 9.0


def alternating(every_s: float, end_s: float) -> SpotTrace:
    """Six instances that stay, and a load that is light and heavy in turn."""
    events = [SpotEvent(0.0, SpotEventKind.ADD, tuple("abcdef"), LIGHT)]
    for step in range(1, int(end_s / every_s)):
        events.append(SpotEvent(every_s * step, SpotEventKind.LOAD, (), HEAVY if step % 2 else LIGHT))
    return SpotTrace("alternating", (*events, SpotEvent(end_s, SpotEventKind.DONE)))


def configs(outcome: SpotOutcome) -> list[tuple[float, str]]:
    return [(change.time_s, str(change.config)) for change in outcome.changes]


def shapes(outcome: SpotOutcome) -> int:
    """Return how many shapes were deployed one after another."""
    found: list[ParallelConfig] = []
    for change in outcome.changes:
        if change.config is not None and (not found or found[-1] != change.config.shape):
            found.append(change.config.shape)
    return len(found)


@pytest.mark.parametrize("every_s", [7.0, 20.0, 45.0])
def test_a_load_that_alternates_changes_nothing_twice_within_the_hold(every_s: float) -> None:
    """The eager one follows every change of the load; the other one goes to what serves both loads, and back only where the
    light load lasts longer than the hold: then half the latency is worth a pause of a fifth of a second.
    """
    trace, times_s = alternating(every_s, 600.0), tuple(5.0 * number for number in range(110))
    eager, kept = (serve(tiny.run(trace, times_s, system, required_rate=LIGHT)) for system in (EAGER, KEEPS))
    assert len(eager.requests) == len(kept.requests) == 110
    assert shapes(eager) >= 0.8 * 600.0 / every_s
    assert shapes(kept) == 2 if every_s < 30.0 else shapes(kept) <= shapes(eager)


def test_a_loss_leaves_the_shape_and_a_newcomer_is_taken_at_once() -> None:
    """Of three pipelines of two instances two are left, and are three again as soon as there is an instance more."""
    trace = tiny.trace((0.0, "add", "a b c d e f"), (20.0, "remove", "a"), (40.0, "add", "g"), end_s=60.0)
    kept = serve(tiny.run(trace, (5.0, 30.0, 70.0), KEEPS, required_rate=HEAVY))
    first = kept.changes[0].config
    assert first is not None and first.pipelines == 3
    assert [config for _, config in configs(kept)] == [str(replace(first, data=data)) for data in (3, 2, 3)]
    assert kept.changes[2].time_s <= 41.0


def test_what_does_not_fit_any_more_is_replaced() -> None:
    """A shape of more instances than are left is given up at once, and every request is answered."""
    trace = tiny.trace((0.0, "add", "a b c d"), (40.0, "remove", "c d"), end_s=100.0)
    kept = serve(tiny.run(trace, (5.0, 50.0), KEEPS))
    first, *_, last = (change.config for change in kept.changes)
    assert first is not None and last is not None and first.pipeline_devices == 8 and last.pipeline_devices == 4
    assert not kept.unfinished and kept.changes[-1].time_s <= 40.0


def test_spotwise_keeps_and_eager_does_not() -> None:
    """They differ in nothing else."""
    assert COMPARED["spotwise"].keeps and not COMPARED["eager"].keeps
    assert replace(COMPARED["eager"], keeps=True, name="spotwise") == COMPARED["spotwise"]
    assert not SPOTSERVE.keeps
