"""Announcements of sequences that moved here.

Law: the gateway and the scheduler of a sequence that moved here are told, every `REPEAT_S` until the gateway acknowledges it;
also after the sequence has ended, for its last tokens wait there for this message. The worker does not leave before that.
A gateway that is silent for `SILENT_AFTER_S` is given up: it will submit another attempt, or is gone.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.messages import mesh as m
from spotwise.core.requests.record import sequence_id
from spotwise.core.worker.sequences.sequence import Sequence
from spotwise.core.worker.sequences.table import SequenceTable

REPEAT_S = 0.4
SILENT_AFTER_S = 20.0


@dataclass(slots=True)
class _Announcement:
    report: m.RequestMoved
    stream: m.StreamRef
    scheduler_id: str
    since_s: float
    sent_s: float


class Arrivals:
    """The announcements that are not acknowledged."""

    def __init__(self, table: SequenceTable) -> None:
        self._table = table
        self._open: dict[str, _Announcement] = {}

    def __len__(self) -> int:
        return len(self._open)

    def announce(self, sequence: Sequence, token_ids: tuple[int, ...], now: float) -> None:
        """Tell gateway and scheduler of a sequence that arrived with these tokens of its attempt."""
        report = m.RequestMoved(
            choice_id=sequence.choice_id,
            epoch=sequence.epoch,
            attempt_id=sequence.stream.attempt_id,
            worker_id=self._table.worker_id,
            source_id=sequence.source_id,
            hop=sequence.hop,
            first_index=sequence.output_tokens - len(token_ids),
            token_ids=token_ids,
        )
        sequence.announced = True
        announcement = _Announcement(report, sequence.stream, sequence.scheduler_id, now, now)
        self._open[sequence.sequence_id] = announcement
        self._send(announcement)

    def acknowledged(self, answer: m.MoveAcknowledged) -> None:
        """Stop repeating it."""
        key = sequence_id(answer.choice_id, answer.epoch)
        announcement = self._open.get(key)
        if announcement is not None and answer.hop >= announcement.report.hop:
            del self._open[key]

    def fence(self, choice_id: str, epoch: int) -> None:
        """Forget announcements of ended attempts."""
        for key, announcement in list(self._open.items()):
            report = announcement.report
            if report.choice_id == choice_id and report.epoch <= epoch:
                del self._open[key]

    def tick(self, now: float) -> None:
        """Repeat what is not acknowledged."""
        for key, announcement in list(self._open.items()):
            if now - announcement.since_s > SILENT_AFTER_S:
                del self._open[key]
            elif now - announcement.sent_s >= REPEAT_S:
                announcement.sent_s = now
                self._send(announcement)

    def was_away(self, seconds: float) -> None:
        """Extend the gateways' time by one in which none could be heard."""
        for announcement in self._open.values():
            announcement.since_s += seconds

    def _send(self, announcement: _Announcement) -> None:
        self._table.emit(m.to_gateway(announcement.stream, announcement.report))
        if announcement.scheduler_id:
            self._table.emit(m.Send(announcement.scheduler_id, announcement.report))
