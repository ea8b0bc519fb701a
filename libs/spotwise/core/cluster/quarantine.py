"""Pairs of workers between which hand-offs fail.

Law: a pair whose hand-offs failed for `FAILURES` requests, with none in between that went well, gets no hand-offs for a
while. Then it is tried with one request; while that one may still fail, others go elsewhere. A failure lets it rest for twice
as long as the last time, `LONGEST_S` at most; a success, or a trial without a failure, frees it. What happened to a worker
that has left or was restarted is forgotten, and so is a pair of which nothing was heard for `FORGOTTEN_S`.

Failures are reported with the next attempt, successes with the end of a request: a success counts for a pair if its request
was placed after the last failure.

Invariants: only pairs of workers that are there are kept; while nothing fails, nothing is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.members import QuarantinedPair

#: Requests whose hand-off failed before a pair is believed to be bad; one may have met a restart.
FAILURES = 2
#: How long a bad pair rests first, and at most.
FIRST_S = 30.0
LONGEST_S = 300.0
#: How long others keep away from a pair that is tried again: a push that cannot connect has failed by then.
TRIAL_S = 10.0
#: After so long without news a pair is like any other.
FORGOTTEN_S = 300.0

Pair = tuple[str, str]


@dataclass(slots=True)
class _Record:
    """What is known of a pair; `rests` counts its quarantines, `is_due` says that the next hand-off is a trial."""

    failures: int = 0
    failed_s: float = 0.0
    rests: int = 0
    until_s: float = 0.0
    is_due: bool = False


class Quarantine:
    """Remembers failures of pairs, and says which pairs to avoid."""

    def __init__(self) -> None:
        self._records: dict[Pair, _Record] = {}

    def __bool__(self) -> bool:
        return bool(self._records)

    # --- what happened ------------------------------------------------------------------------------------------------

    def failed(self, pair: Pair, now: float) -> None:
        """Note that a request's hand-off failed."""
        record = self._records.setdefault(pair, _Record())
        record.failures += 1
        record.failed_s = now
        is_resting = record.is_due and now < record.until_s  # then an attempt of before has failed late
        if record.failures >= FAILURES and not is_resting:
            record.until_s = now + min(FIRST_S * 2.0**record.rests, LONGEST_S)
            record.rests += 1
            record.is_due = True

    def went_well(self, pair: Pair, asked_s: float) -> None:
        """Note that a request that was placed at `asked_s` was handed off."""
        record = self._records.get(pair)
        if record is not None and asked_s > record.failed_s:
            del self._records[pair]

    def tried(self, pair: Pair, now: float) -> None:
        """Note that a request is placed on a pair."""
        record = self._records.get(pair)
        if record is not None and record.is_due:
            record.is_due = False
            record.until_s = now + TRIAL_S

    def forget(self, worker_id: str) -> None:
        """Forget a worker that is gone."""
        self._records = {pair: record for pair, record in self._records.items() if worker_id not in pair}

    def expire(self, now: float) -> None:
        """Forget old news."""
        if self._records:
            self._records = {
                pair: record
                for pair, record in self._records.items()
                if now - max(record.failed_s, record.until_s) < FORGOTTEN_S
            }

    # --- questions ----------------------------------------------------------------------------------------------------

    def avoided(self, now: float) -> frozenset[Pair]:
        """Return the pairs that get no hand-off now."""
        return frozenset(pair for pair, record in self._records.items() if now < record.until_s)

    def shown(self, now: float) -> tuple[QuarantinedPair, ...]:
        """Return the same for people, in order."""
        return tuple(
            QuarantinedPair(*pair, record.failures, record.until_s)
            for pair, record in sorted(self._records.items())
            if now < record.until_s
        )
