"""Tests of the scheduling step: the sequences that are swapped out, and in."""

from __future__ import annotations

from spotwise.core.messages.worker import StreamRef
from spotwise.core.requests.request import RequestState
from spotwise.core.worker.kv.preemptive_allocator import SchedulingStep
from spotwise.core.worker.scheduling.policy import KeyedPolicy
from spotwise.core.worker.sequences.sequence import Sequence


class Planned(KeyedPolicy):
    """An order in which each sequence's next run is known."""

    def __init__(self, next_runs_s: list[float]) -> None:
        super().__init__()
        self._planned_s = next_runs_s

    def next_runs_s(self, ordered: object, now: float) -> list[float]:
        return self._planned_s


class Held:
    """Sequences by id, with blocks, and seconds until they run."""

    def __init__(self, *held: tuple[str, int, float]) -> None:
        self.sequences = [Sequence(id_, 1, StreamRef("g", 1), RequestState.RUNNING, 0.0) for id_, _, _ in held]
        self.blocks = {id_: blocks for id_, blocks, _ in held}
        self.step = SchedulingStep(Planned([run_s for _, _, run_s in held]), self.sequences, 0.0)

    def blocks_of(self, sequence: Sequence) -> int:
        return self.blocks[sequence.choice_id]

    def leave(self, lacking: int) -> list[str]:
        chosen, freed = self.step.last_to_run(self.sequences, self.blocks_of, lacking)
        assert freed == sum(map(self.blocks_of, chosen))
        return [sequence.choice_id for sequence in chosen]

    def come_back(self, spare: int) -> list[str]:
        return [each.choice_id for each in self.step.first_to_run(self.sequences, self.blocks_of, spare)]


class TestLeave:
    """The last to run goes first."""

    def test_as_few_as_it_takes_the_last_to_run_first(self) -> None:
        """Blocks add up until there are enough."""
        idle = Held(("soon", 9, 1.0), ("last", 2, 7.0), ("late", 3, 5.0))
        assert idle.leave(2) == ["last"]
        assert idle.leave(3) == ["last", "late"]
        assert idle.leave(99) == ["last", "late", "soon"]
        assert idle.leave(0) == []

    def test_of_equals_the_last_goes(self) -> None:
        assert Held(("a", 1, 1.0), ("b", 1, 1.0)).leave(1) == ["b"]

    def test_whose_blocks_others_hold_too_is_passed_over(self) -> None:
        """A sequence whose blocks are all shared is not swapped out, since no block would become free."""
        assert Held(("a", 1, 1.0), ("shared", 0, 9.0)).leave(1) == ["a"]


class TestReturn:
    """The first to run comes back first."""

    def test_as_many_as_there_is_room_for(self) -> None:
        """Sequences are swapped in, in order of their next run, while free blocks suffice."""
        away = Held(("late", 1, 5.0), ("soon", 3, 1.0), ("next", 2, 2.0))
        assert away.come_back(5) == ["soon", "next"]
        assert away.come_back(6) == ["soon", "next", "late"]

    def test_no_sequence_passes_one_that_does_not_fit(self) -> None:
        """Else a large one would never come back."""
        assert Held(("large", 3, 1.0), ("small", 1, 2.0)).come_back(2) == []
