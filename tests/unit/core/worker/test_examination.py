"""Tests of failing iterations: the batch runs again in parts until the failing sequences are known."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from spotwise.core.messages import mesh as m
from spotwise.core.requests.request import FinishReason
from spotwise.core.requests.sampling import SampledToken
from spotwise.core.worker import commands as c
from tests.unit.core.builders import only
from tests.unit.core.worker.bench import WorkerBench, deltas, error_delta, rows, stream_of


def names(count: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[:count]


class FailingBench(WorkerBench):
    """A bench whose engine fails on the given sequences, or on every batch."""

    def __init__(self, culprits: str = "", *, blocks: int = 200) -> None:
        super().__init__(blocks=blocks)
        self.culprits = culprits
        self.is_broken = False
        self.batches: list[str] = []

    def run(self, commands: Iterable[c.WorkerCommand], iterations: int) -> list[c.WorkerCommand]:
        """Let the engine run so many iterations at most; return all commands."""
        issued = list(commands)
        order = only(issued, c.RunIteration)
        while order and iterations:
            members = [row.sequence_id for row in order[-1].batch.rows]
            self.batches.append("".join(sequence_id.removesuffix("@1") for sequence_id in members))
            iterations -= 1
            fails = self.is_broken or any(culprit in self.batches[-1] for culprit in self.culprits)
            sampled = tuple(SampledToken(sequence_id, 60) for sequence_id in members)
            answer = self.feed(c.IterationFailed("bad luck") if fails else c.IterationFinished(sampled))
            order = only(answer, c.RunIteration)
            issued += answer
        return issued


def batch_of(culprits: str, count: int) -> tuple[FailingBench, list[c.WorkerCommand]]:
    """Return a bench with `count` decoding sequences whose joint iteration is about to run."""
    bench = FailingBench(culprits, blocks=20 * count)
    for name in names(count):
        bench.decode(name)
    commands = bench.iterate(a=51)
    assert len(rows(commands)) == count
    return bench, commands


def errors(commands: list[c.WorkerCommand]) -> dict[int, m.TokenDelta]:
    """Return the streams that ended with an error."""
    return {delta.attempt_id: delta for delta in deltas(commands) if delta.finish_reason is FinishReason.ERROR}


def stream(name: str) -> int:
    return stream_of(name).attempt_id


def test_the_culprit_ends_with_an_error_and_the_others_continue() -> None:
    """The culprit is found by bisection, and the others have every token once."""
    bench, commands = batch_of("c", 8)
    issued = bench.run(commands, 9)
    assert bench.batches == ["abcdefgh", "abcd", "ab", "cd", "c", "d", "efgh", "c", "abdefgh"]
    assert list(errors(issued)) == [stream("c")]
    error = errors(issued)[stream("c")]
    assert (error.error, error.retryable) == ("the engine fails with this request: bad luck", False)
    for name in "bdefgh":
        indexes = [delta.token_index for delta in deltas(issued) if delta.attempt_id == stream(name)]
        assert indexes == [1, 2]


@pytest.mark.parametrize("count", [3, 7, 16, 26])
@pytest.mark.parametrize("culprits", ["a", "b", "ac"])
def test_all_culprits_are_found_within_three_iterations_a_member(culprits: str, count: int) -> None:
    bench, commands = batch_of(culprits, count)
    issued = bench.run(commands, 1)
    while len(errors(issued)) < len(culprits):
        issued += bench.run(issued[-3:], 1)
        assert len(bench.batches) <= 3 * count + 1
    assert set(errors(issued)) == {stream(name) for name in culprits}
    assert not any(error.retryable for error in errors(issued).values())


def test_a_batch_that_fails_only_as_a_whole_fails_no_sequence() -> None:
    """If both halves succeed, all members continue together."""
    bench, _ = batch_of("", 4)
    answer = bench.feed(c.IterationFailed("out of memory"))
    issued = bench.run(answer, 3)
    assert bench.batches == ["ab", "cd", "abcd"]
    assert errors(issued) == {}


def test_no_other_sequence_runs_while_a_batch_is_examined() -> None:
    """A sequence that arrives during the examination joins the batch after it."""
    bench, commands = batch_of("b", 2)
    issued = bench.run(commands, 1)
    bench.decode("z")
    bench.run(issued[-3:], 4)
    assert bench.batches == ["ab", "a", "b", "b", "az"]


def test_one_that_leaves_meanwhile_is_examined_no_more() -> None:
    """A sequence that is cancelled during the examination is left out of the remaining parts."""
    bench, commands = batch_of("b", 3)
    issued = bench.run(commands, 1)
    assert rows(issued[-1:]) == ["a@1"]
    bench.feed(m.CancelRequest("b", 1))
    bench.run(issued[-3:], 3)
    assert bench.batches == ["abc", "a", "c", "ac"]


def test_a_sequence_that_is_there_alone_is_given_back() -> None:
    """Tried twice: its failure does not show whether it or the engine is at fault, so another worker may try."""
    bench = FailingBench("r")
    issued = bench.run(bench.in_place("r"), 5)
    assert bench.batches == ["r", "r"]
    delta = error_delta(issued[-3:])
    assert (delta.retryable, delta.suspects) == (True, ("w",))
    assert "the engine failed with this request alone: bad luck" in delta.error
    bench.assert_empty()
    assert bench.role.state is m.MemberState.READY


def test_a_prompt_is_tried_again_from_where_it_was() -> None:
    """A failed prompt runs again from its first position, and its first token follows the second run."""
    bench = FailingBench()
    first = bench.in_place("r")
    again = bench.feed(c.IterationFailed("bad luck"))
    assert [order.batch for order in only(first, c.RunIteration)] == [
        order.batch for order in only(again, c.RunIteration)
    ]
    assert [delta.token_index for delta in deltas(bench.iterate(r=50))] == [0]


class TestBrokenEngine:
    """An engine that fails for every request."""

    def test_all_is_given_back_and_the_worker_ends(self) -> None:
        """After the third request that failed alone the worker ends, and no request is reported as at fault."""
        bench, commands = batch_of("", 16)
        bench.is_broken = True
        issued = bench.run(commands, 50)
        assert len(bench.batches) < 16
        assert len(errors(issued)) == 16
        assert all(error.retryable and error.suspects == ("w",) for error in errors(issued).values())
        (leave,) = only(issued, c.Leave)
        assert leave.failure == "the engine fails for every request: bad luck"
        bench.assert_empty()

    def test_requests_that_come_one_by_one(self) -> None:
        """Two may be at fault themselves; with the third the worker ends."""
        bench = FailingBench()
        bench.is_broken = True
        for name in "ab":
            issued = bench.run(bench.in_place(name), 5)
            assert error_delta(issued[-3:]).retryable
            assert only(issued, c.Leave) == []
        issued = bench.run(bench.in_place("c"), 5)
        assert len(only(issued, c.Leave)) == 1
        assert bench.role.state is m.MemberState.DRAINING

    def test_a_success_between_them_clears_the_engine(self) -> None:
        """Two requests at fault, then one that is not, and so on: the worker stays."""
        bench = FailingBench("abdefghi")
        for name in "abcdecfgchi":
            issued = bench.run(bench.in_place(name), 2)
            assert only(issued, c.Leave) == []
            if name == "c":
                bench.feed(m.CancelRequest("c", 1))
                bench.feed(c.IterationFinished(()))

    def test_a_worker_that_was_to_leave_anyway_leaves_in_order(self) -> None:
        """A worker that was draining anyway leaves in order, so that no supervisor restarts it."""
        bench = FailingBench()
        bench.is_broken = True
        commands = bench.in_place("a")
        for name in "bcd":
            bench.in_place(name)
        bench.feed(m.Drain("w", bench.now + 100.0))
        issued = bench.run(commands, 20)
        issued += bench.tick(2.0)
        assert [leave.failure for leave in only(issued, c.Leave)] == [""]
