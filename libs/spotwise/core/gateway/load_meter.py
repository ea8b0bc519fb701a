"""Counts a gateway's requests for the planner.

Law: every sequence that a client requests counts once, when it arrives: each of the choices of an API request, and one that is
rejected later, for it is load that could not be served. A further attempt is no request.
A sequence that ends in order counts with its output tokens at its end: by a stop token, its length or a stop string. One that
its client leaves, or that fails, does not.
What a report has, no other has: the loss of one costs no more than that. Only late requests, those without a token for
`LATE_S`, are in every report: they are a queue that arrivals of the last seconds say nothing of.
"""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.messages.fleet import LoadReported

#: Seconds between two reports, and between two of a gateway that has nothing to report: it is there, and idle.
LOAD_REPORT_S, IDLE_REPORT_S = 1.0, 5.0
#: A request without a token for so long is late.
LATE_S = 30.0
#: Arrivals of a report at most: 16 kB. A gateway with more makes several reports at a time.
MOST_ARRIVALS = 2000


class LoadMeter:
    """The requests since the last report; `report_s`: seconds between two."""

    def __init__(self, gateway_id: str, incarnation: int, report_s: float = LOAD_REPORT_S) -> None:
        self._gateway_id = gateway_id
        self._incarnation = incarnation
        self._report_s = report_s
        self._reports = 0
        self._reported_s: float | None = None
        self._full: list[LoadReported] = []
        self._begin()

    def _begin(self) -> None:
        self._arrivals_s: list[float] = []
        self._prompt_tokens = self._finished = self._output_tokens = 0

    def arrived(self, prompt_tokens: int, now: float) -> None:
        """Count a sequence that a client requests."""
        self._arrivals_s.append(now)
        self._prompt_tokens += prompt_tokens
        if len(self._arrivals_s) == MOST_ARRIVALS:
            self._full.append(self._make())

    def finished(self, output_tokens: int) -> None:
        """Count a sequence that ended in order."""
        self._finished += 1
        self._output_tokens += output_tokens

    def is_due(self, now: float) -> bool:
        """Return whether `reports` has some; the first one is due at once, so that a planner learns of the gateway."""
        if self._reported_s is None:
            return True
        is_idle = not (self._arrivals_s or self._finished or self._full)
        return now - self._reported_s >= (max(self._report_s, IDLE_REPORT_S) if is_idle else self._report_s)

    def reports(self, late: int, now: float) -> list[LoadReported]:
        """Return what there is to report; `late`: requests that are."""
        self._reported_s = now
        due, self._full = self._full, []
        if self._arrivals_s or self._finished or not due:
            due.append(self._make())
        due[-1] = replace(due[-1], late=late)
        return due

    def _make(self) -> LoadReported:
        self._reports += 1
        counts = self._prompt_tokens, self._finished, self._output_tokens
        report = LoadReported(self._gateway_id, self._incarnation, self._reports, tuple(self._arrivals_s), *counts)
        self._begin()
        return report
