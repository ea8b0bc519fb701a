"""Which sequence an iteration failed of.

Law: an iteration that failed computed nothing for anybody. Its members are tried again in halves, one part an iteration, until
a part succeeds or is one sequence alone. Nothing else runs meanwhile.

1. A sequence that failed alone is tried alone once more, after all other parts.
2. If it fails again and anything has succeeded since the examination began, the fault is its own: it ends with an error.
3. If nothing has, the fault may be the engine's: the sequence is given back, to be tried on another worker.
4. `REQUESTS_IN_A_ROW` requests that failed alone, with no success between them, are an engine that fails for every request.

Source: group testing by halves; Orca (section 4.1) leaves iterations that fail open.

Invariants: of n members no more than 3 n iterations follow; a sequence that took part in a success is not examined any more.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum

from spotwise.core.worker.sequence import Sequence

#: Requests that fail alone one after the other, before the engine is given up. One or two may be at fault themselves.
REQUESTS_IN_A_ROW = 3


class ExaminationVerdict(StrEnum):
    """What follows from an iteration that failed."""

    TRY_AGAIN = "try_again"  #: nothing is known yet
    CULPRIT = "culprit"  #: its one member is at fault
    GIVE_BACK = "give_back"  #: its one member or the engine is at fault
    ENGINE_FAILS = "engine_fails"  #: the engine is at fault


class Examination:
    """Tries the members of failed iterations again, in ever smaller parts."""

    def __init__(self) -> None:
        self._parts: deque[list[Sequence]] = deque()
        self._is_open = False
        self._has_success = False  #: since it was opened
        self._failed_alone: set[str] = set()  #: sequences, since it was opened
        self._in_a_row: dict[str, None] = {}  #: requests that failed alone since the last success

    def next_part(self) -> list[Sequence] | None:
        """Return those that are to run next and nobody else, in order of arrival; `None` where there is nothing to examine."""
        while self._parts:
            runnable = [sequence for sequence in self._parts[0] if sequence.is_runnable]
            if runnable:
                return runnable
            self._parts.popleft()
        self._is_open = False
        return None

    def skip_part(self) -> None:
        """Leave the next part to ordinary iterations: it has no room now."""
        self._parts.popleft()

    def succeeded(self, members: list[tuple[Sequence, int]]) -> None:
        """Note who took part, with how many tokens, in an iteration that did what it was to do."""
        self._has_success = True
        if self._in_a_row:
            self._in_a_row.clear()
        if self._parts:
            self._take_out([sequence for sequence, _ in members])

    def failed(self, members: list[Sequence]) -> ExaminationVerdict:
        """Take in who took part in an iteration that failed, in order, and say what follows."""
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
