"""Every request of a run as a row of a CSV file, written as it ends: memory does not grow with their number."""

from __future__ import annotations

import csv
from typing import TextIO

from spotwise.simulator.runs.metrics import RunMetrics
from spotwise.simulator.world.observation import Arrival, CompletedRequest

#: Of a row, in order; seconds where they end in `_s`. A run at a trace's own rate has no `rate`; what a request does not have,
#: or a failed one has not got, is empty.
COLUMNS = (
    "rate",
    "seed",
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "priority",
    "cached_tokens",
    "ttft_s",
    "tbt_s",
    "e2e_s",
    "finished_s",
    "prompt_machine",
    "token_machine",
    "failure",
)


class RequestRows:
    """Writes a header, and each request's row when it ends. Times are from the run's start."""

    def __init__(self, file: TextIO, rate: float | None, seed: int) -> None:
        self._rows = csv.writer(file, lineterminator="\n")
        self._rows.writerow(COLUMNS)
        self._run = ("" if rate is None else rate, seed)

    def request_completed(self, request: CompletedRequest) -> None:
        """Write an answered request."""
        arrival = request.arrival
        self._rows.writerow(
            (
                *self._run,
                arrival.at_s,
                arrival.prompt_tokens,
                arrival.output_tokens,
                arrival.priority,
                request.cached_tokens,
                request.ttft_s,
                request.tbt_s,
                request.e2e_s,
                request.finished_s,
                *(request.machines or ("", "")),
                "",
            )
        )

    def request_failed(self, arrival: Arrival, reason: str) -> None:
        """Write a request without an answer."""
        sizes = (arrival.at_s, arrival.prompt_tokens, arrival.output_tokens, arrival.priority)
        self._rows.writerow((*self._run, *sizes, *[""] * 7, reason))


class MetricsAndRows:
    """The `Observer` of a run that keeps both its figures and its requests' rows."""

    def __init__(self, metrics: RunMetrics, rows: RequestRows) -> None:
        self._metrics, self._rows = metrics, rows
        self.iterations_ended = metrics.iterations_ended
        self.tokens_spaced = metrics.tokens_spaced

    def request_completed(self, request: CompletedRequest) -> None:
        """Pass an answered request on."""
        self._rows.request_completed(request)
        self._metrics.request_completed(request)

    def request_failed(self, arrival: Arrival, reason: str) -> None:
        """Pass a failed request on."""
        self._rows.request_failed(arrival, reason)
        self._metrics.request_failed(arrival, reason)
