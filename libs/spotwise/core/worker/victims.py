"""Who loses its blocks to whom.

Law: a sequence that decodes and runs out of blocks takes those of the last arrival behind it. A prompt that has waited for
`preempt_after_s` without a block takes those of sequences that decode, arrived before it or not, as few as it needs, and none
where they would not do (prompts first on a mixed machine: Splitwise, section 4.3). It may take them from whom it outranks:

- a prompt's rank is its wait, times `PROMPT_WEIGHT`;
- a decode's rank is its age on this worker, times one more than it was preempted.

So a prompt that waits outranks younger decodes first and older ones later, a decode grows out of its reach by age and by every
preemption, and equals leave one another alone. The lowest rank loses first; of equals, the last arrival.

Invariants: a victim decodes here, has been preempted fewer than `max_preemptions` times and takes part in no iteration; where
prompts come first, nobody whose prompt is being computed is a victim; the first arrival of those that run here for themselves
is never one of a prompt's. That of a sequence which decodes is never one that came before it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from spotwise.core.worker.policy import WorkerPolicy
from spotwise.core.worker.sequence import Sequence
from spotwise.core.worker.sequence_table import SequenceTable

#: A second that a prompt waits weighs as much as so many of a decode's age. What decodes has made its client wait already and
#: shows progress since; ten seconds of decoding are an answer of common length.
PROMPT_WEIGHT = 10.0


class Victims:
    """Chooses victims; it takes nothing from them."""

    def __init__(self, table: SequenceTable, policy: WorkerPolicy) -> None:
        self._table = table
        self._policy = policy

    def of_growth(self, needy: Sequence) -> Sequence | None:
        """Return the last arrival behind `needy` that may lose its blocks."""
        for sequence in reversed(self._table):
            if sequence is needy:
                return None
            if self._may_lose(sequence):
                return sequence
        raise AssertionError("who needs blocks is held")

    def of_prompt(self, waited_s: float, now: float, suffices: Callable[[list[str]], bool]) -> list[Sequence]:
        """Return whose blocks a prompt takes that has waited so long, or nobody where that would not do.

        Args:
            waited_s: by the prompt.
            now: Unix time.
            suffices: tells whether the prompt would have room if these sequences gave up their blocks.
        """
        prompt_rank = PROMPT_WEIGHT * waited_s
        ranked = [
            (rank, -place, sequence)
            for place, sequence in enumerate(self._all_but_the_top())
            if self._may_lose(sequence) and (rank := decode_rank(sequence, now)) < prompt_rank
        ]
        ranked.sort(key=lambda entry: entry[:2])
        in_order = [sequence for _, _, sequence in ranked]
        enough = bisect_left(range(len(in_order)), True, key=lambda last: suffices(_ids(in_order[: last + 1])))
        return [] if enough == len(in_order) else _needed(in_order[: enough + 1], suffices)

    def _all_but_the_top(self) -> list[Sequence]:
        return [sequence for sequence in self._table if sequence.is_preemptible][1:]

    def _may_lose(self, sequence: Sequence) -> bool:
        return (
            sequence.is_preemptible
            and sequence.preemptions < self._policy.max_preemptions
            and not sequence.in_iteration
            and not (self._policy.prompts_take_blocks and _is_being_computed(sequence))
        )


def decode_rank(sequence: Sequence, now: float) -> float:
    """Return what a prompt must outrank to take a decode's blocks, in seconds."""
    return (now - sequence.arrived_s) * (1 + sequence.preemptions)


def _is_being_computed(sequence: Sequence) -> bool:
    """Tell whether a prompt, or a preempted sequence, is not computed to its end yet."""
    return sequence.in_prompt_phase or not sequence.is_decoding


def _needed(chosen: list[Sequence], suffices: Callable[[list[str]], bool]) -> list[Sequence]:
    """Leave out, the highest rank first, who need not lose its blocks because of another one's."""
    needed = chosen
    for sequence in reversed(chosen):
        others = [victim for victim in needed if victim is not sequence]
        if suffices(_ids(others)):
            needed = others
    return needed


def _ids(sequences: list[Sequence]) -> list[str]:
    return [sequence.sequence_id for sequence in sequences]
