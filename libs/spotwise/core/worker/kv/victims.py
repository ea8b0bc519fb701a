"""Which sequences are preempted for which.

Law: a growing sequence preempts the last arrival behind it.
A prompt preempts, as few as suffice, decodes of lower rank, the lowest first; of equals the last arrival.
Ranks: a prompt's is its wait times `PROMPT_WEIGHT`; a decode's is its age here times (1 + its preemptions).
A victim decodes here, is in no iteration and was preempted fewer than `max_preemptions` times.
The first arrival that runs here is never a prompt's victim; nor, where prompts come first, is a prompt that is being computed.
Source: prompts first on a mixed machine, Splitwise (Patel et al., ISCA 2024), section 4.3.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from spotwise.core.worker.policy import WorkerPolicy
from spotwise.core.worker.sequences.sequence import Sequence
from spotwise.core.worker.sequences.table import SequenceTable

#: Seconds of a decode's age that weigh as much as one of a prompt's wait: a decode shows its client progress, and ten seconds
#: of decoding are an answer of common length.
PROMPT_WEIGHT = 10.0


class Victims:
    """Chooses victims."""

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
        raise AssertionError("a sequence that needs blocks is held")

    def of_prompt(self, waited_s: float, now: float, suffices: Callable[[list[str]], bool]) -> list[Sequence]:
        """Return a prompt's victims; none where all together do not suffice. `suffices` takes the ids of candidates."""
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
    """Return a decode's rank in seconds."""
    return (now - sequence.arrived_s) * (1 + sequence.preemptions)


def _is_being_computed(sequence: Sequence) -> bool:
    return sequence.in_prompt_phase or not sequence.is_decoding


def _needed(chosen: list[Sequence], suffices: Callable[[list[str]], bool]) -> list[Sequence]:
    """Leave out, the highest rank first, victims that the others make unnecessary."""
    needed = chosen
    for sequence in reversed(chosen):
        others = [victim for victim in needed if victim is not sequence]
        if suffices(_ids(others)):
            needed = others
    return needed


def _ids(sequences: list[Sequence]) -> list[str]:
    return [sequence.sequence_id for sequence in sequences]
