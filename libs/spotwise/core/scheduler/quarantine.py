"""Quarantine for pairs of workers between which KV hand-offs fail.

Law: after hand-offs of `FAILURES` requests failed with no success in between, a pair gets no hand-offs for a while.
Then one request tries the pair; other requests avoid it until that trial can no longer fail.
Each further failure doubles the quarantine, up to `LONGEST_S`; a success, or a trial without a failure, ends it.
A success counts if its request was placed after the last failure: failures are reported at once, successes at a request's end.
Records of workers that left or restarted, and those unchanged for `FORGOTTEN_S`, are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.messages.members import QuarantinedPair

#: Failed requests before a pair counts as bad; one may have met a restart.
FAILURES = 2
#: Seconds of a pair's first quarantine, and of the longest.
FIRST_S = 30.0
LONGEST_S = 300.0
#: Seconds for which others avoid a pair on trial: a push that cannot connect has failed by then.
TRIAL_S = 10.0
#: Seconds without a change after which a pair's record is dropped.
FORGOTTEN_S = 300.0

Pair = tuple[str, str]


@dataclass(slots=True)
class _Record:
    """A pair's failures; `rests` counts its quarantines, `is_due` marks the next hand-off as a trial."""

    failures: int = 0
    failed_s: float = 0.0
    rests: int = 0
    until_s: float = 0.0
    is_due: bool = False


class Quarantine:
    """Records failures of pairs and names the pairs to avoid."""

    def __init__(self) -> None:
        self._records: dict[Pair, _Record] = {}

    def __bool__(self) -> bool:
        return bool(self._records)

    def failed(self, pair: Pair, now: float) -> None:
        """Count a failed hand-off."""
        record = self._records.setdefault(pair, _Record())
        record.failures += 1
        record.failed_s = now
        is_resting = record.is_due and now < record.until_s  # then an attempt of before has failed late
        if record.failures >= FAILURES and not is_resting:
            record.until_s = now + min(FIRST_S * 2.0**record.rests, LONGEST_S)
            record.rests += 1
            record.is_due = True

    def succeeded(self, pair: Pair, placed_s: float) -> None:
        """Count a hand-off of a request that was placed at `placed_s`."""
        record = self._records.get(pair)
        if record is not None and placed_s > record.failed_s:
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
        """Drop old records."""
        if self._records:
            self._records = {
                pair: record
                for pair, record in self._records.items()
                if now - max(record.failed_s, record.until_s) < FORGOTTEN_S
            }

    def avoided(self, now: float) -> frozenset[Pair]:
        """Return the pairs that get no hand-off now."""
        return frozenset(pair for pair, record in self._records.items() if now < record.until_s)

    def shown(self, now: float) -> tuple[QuarantinedPair, ...]:
        """Return the quarantined pairs for display, in order."""
        return tuple(
            QuarantinedPair(*pair, record.failures, record.until_s)
            for pair, record in sorted(self._records.items())
            if now < record.until_s
        )
