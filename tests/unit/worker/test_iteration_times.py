"""How long iterations took."""

from __future__ import annotations

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.core.costs.cost_model import BatchShape, IterationTime
from spotwise.mesh.grpc.control import RecentIterations
from spotwise.worker.runtime import IterationTimes


def batch(tokens: int) -> Batch:
    """Return a batch of one prompt."""
    return Batch((BatchRow("a@1", 0, tokens, (0,)),))


def shape(tokens: int) -> BatchShape:
    """Return the shape of that batch."""
    return BatchShape(tokens, tokens * tokens / 2, 0, 0)


def test_times_are_numbered_and_returned_from_a_number_on() -> None:
    """Times are numbered, so that a reader fetches each only once."""
    times = IterationTimes()
    assert times.since(0) == RecentIterations(0, ())
    for number in (1, 2, 3):
        times.ordered(BatchShape.of(batch(number)), 10.0 * number)
        times.ended(10.0 * number + number)
    assert times.since(1) == RecentIterations(3, (IterationTime(shape(2), 2.0), IterationTime(shape(3), 3.0)))
    assert times.since(3).times == ()
    assert times.since(99).times == ()


def test_one_that_waited_for_another_begins_with_its_end() -> None:
    """In a pipeline an iteration's time starts with the end of the one before it."""
    times = IterationTimes()
    times.ordered(BatchShape.of(batch(1)), 1.0)
    times.ordered(BatchShape.of(batch(2)), 1.5)
    times.ended(4.0)
    times.ended(6.0)
    assert [time.seconds for time in times.since(0).times] == [3.0, 2.0]


def test_a_failed_iteration_is_not_counted() -> None:
    times = IterationTimes()
    times.ordered(BatchShape.of(batch(1)), 1.0)
    times.ended(2.0, failed=True)
    assert times.since(0) == RecentIterations(0, ())


def test_old_times_are_forgotten() -> None:
    """The oldest are dropped, so that a worker does not grow; the numbers continue."""
    times = IterationTimes()
    for number in range(10_000):
        times.ordered(BatchShape.of(batch(1)), float(number))
        times.ended(number + 0.5)
    recent = times.since(0)
    assert recent.last == 10_000
    assert 1000 < len(recent.times) < 10_000
    assert times.since(9_998).times == recent.times[-2:]
