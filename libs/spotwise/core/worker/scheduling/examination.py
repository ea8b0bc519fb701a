"""Finds the sequence that an iteration failed of, by group testing in halves.

Law: members of a failed iteration run again in halves, one part an iteration and nothing else, down to single sequences.
A sequence that failed alone runs alone once more, after all other parts.
If it fails again, it ends with an error where anything has succeeded since, else another worker retries it.
`REQUESTS_IN_A_ROW` requests that fail alone without a success between them are an engine that fails for every request.
Of n members no more than 3 n iterations follow.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum

from spotwise.core.worker.sequences.sequence import Sequence

#: Requests that fail alone in a row before the engine is given up; one or two may be at fault themselves.
REQUESTS_IN_A_ROW = 3


class ExaminationVerdict(StrEnum):
    """What follows from an iteration that failed."""

    TRY_AGAIN = "try_again"  #: undecided
    CULPRIT = "culprit"  #: its one member is at fault
    GIVE_BACK = "give_back"  #: its one member or the engine is at fault
    ENGINE_FAILS = "engine_fails"  #: the engine is at fault


class Examination:
    """Runs the members of failed iterations again, in ever smaller parts."""

    def __init__(self) -> None:
        self._parts: deque[list[Sequence]] = deque()
        self._is_open = False
        self._has_success = False  #: since it was opened
        self._failed_alone: set[str] = set()  #: sequences, since it was opened
        self._in_a_row: dict[str, None] = {}  #: requests that failed alone since the last success

    def next_part(self) -> list[Sequence] | None:
        """Return the sequences that are to run next, alone, in order of arrival; `None` when nothing is examined."""
        while self._parts:
            runnable = [sequence for sequence in self._parts[0] if sequence.is_runnable]
            if runnable:
                return runnable
            self._parts.popleft()
        self._is_open = False
        return None

    def skip_part(self) -> None:
        """Leave the next part to ordinary iterations: it finds no blocks now."""
        self._parts.popleft()

    def succeeded(self, members: list[tuple[Sequence, int]]) -> None:
        """Note the members of an iteration that succeeded."""
        self._has_success = True
        if self._in_a_row:
            self._in_a_row.clear()
        if self._parts:
            self._take_out([sequence for sequence, _ in members])

    def failed(self, members: list[Sequence]) -> ExaminationVerdict:
        """Note the members, in order, of an iteration that failed; return what follows."""
        if not self._is_open:
            self._is_open, self._has_success = True, False
            self._failed_alone.clear()
        self._take_out(members)
        if len(members) > 1:
            half = len(members) // 2
            self._parts.extendleft((members[half:], members[:half]))
        if len(members) != 1:
            return ExaminationVerdict.TRY_AGAIN
        (alone,) = members
        self._in_a_row[alone.choice_id] = None
        if len(self._in_a_row) >= REQUESTS_IN_A_ROW:
            self._parts.clear()
            return ExaminationVerdict.ENGINE_FAILS
        if alone.sequence_id not in self._failed_alone:
            self._failed_alone.add(alone.sequence_id)
            self._parts.append(members)
            return ExaminationVerdict.TRY_AGAIN
        return ExaminationVerdict.CULPRIT if self._has_success else ExaminationVerdict.GIVE_BACK

    def _take_out(self, members: list[Sequence]) -> None:
        ids = {sequence.sequence_id for sequence in members}
        for part in self._parts:
            part[:] = [sequence for sequence in part if sequence.sequence_id not in ids]
