"""The load of all gateways, from their reports.

Law: a report counts once; a repeated one, and one that a later one of its gateway has overtaken, is ignored. A lost one costs
its requests only, and a gateway that is silent leaves the window with its requests.
Arrivals of all gateways count at their own times, so that the variation of the gaps is that of all gateways together.
A gateway whose clock is ahead by more than `MOST_AHEAD_S` counts as if its last arrival of a report were now.
Late requests, those that wait for their first token, count as new arrivals: a queue is worked off within a window.

Where no gateway has reported for `KNOWN_S`, a new window begins: the load in between is not known, and is not zero.
Tokens of a request are the mean over the window that ends with the last report that had any.
"""

from __future__ import annotations

from collections import deque

from spotwise.core.gateway.load_meter import LOAD_REPORT_S
from spotwise.core.latest import LatestDict
from spotwise.core.messages.fleet import LoadReported
from spotwise.core.parallel.arrivals import ArrivalWindow
from spotwise.core.parallel.policy import ServiceDemand

#: The load is known for so long after a report.
KNOWN_S = 10.0
#: Seconds by which a gateway's clock may be ahead.
MOST_AHEAD_S = 1.0
#: Gateways whose last report's number is remembered.
MOST_GATEWAYS = 1024
_EXPECTED = ServiceDemand(0.0)


class DemandWindow:
    """The load of the last seconds; times are Unix seconds."""

    def __init__(
        self,
        window_s: float = 30.0,
        *,
        least_span_s: float = 5.0,
        input_tokens: int = _EXPECTED.input_tokens,
        output_tokens: int = _EXPECTED.output_tokens,
    ) -> None:
        """`input_tokens`, `output_tokens`: of a request, until some are known; raise `ValueError` as `ArrivalWindow`."""
        self._window_s = window_s
        self._least_span_s = least_span_s
        self._arrivals = self._watched_from(0.0)
        self._input = _MeanTokens(window_s, input_tokens)
        self._output = _MeanTokens(window_s, output_tokens)
        self._last: LatestDict[str, tuple[int, int]] = LatestDict(MOST_GATEWAYS)
        self._late: LatestDict[str, tuple[float, int]] = LatestDict(MOST_GATEWAYS)
        self._heard_s: float | None = None
        self._began_s = 0.0

    def _watched_from(self, started_s: float) -> ArrivalWindow:
        return ArrivalWindow(self._window_s, started_s=started_s, least_span_s=self._least_span_s)

    def add(self, report: LoadReported, now: float) -> None:
        """Count a report that comes at `now`."""
        number, last = (report.incarnation, report.number), self._last.get(report.gateway_id)
        if last is not None and number <= last:
            return
        self._last[report.gateway_id] = number
        self._late[report.gateway_id] = now, report.late
        if not self.is_known(now):
            self._began_s = now - LOAD_REPORT_S
            self._arrivals = self._watched_from(self._began_s)
        self._heard_s = now
        arrivals_s = report.arrivals_s
        if arrivals_s:
            ahead_s = max(arrivals_s) - now
            shift_s = ahead_s if ahead_s > MOST_AHEAD_S else 0.0
            self._arrivals.merge((at_s - shift_s for at_s in arrivals_s), now)
            self._input.add(len(arrivals_s), report.prompt_tokens, now)
        if report.finished:
            self._output.add(report.finished, report.output_tokens, now)

    def is_known(self, now: float) -> bool:
        """Tell whether a gateway has reported in the last `KNOWN_S`."""
        return self._heard_s is not None and now - self._heard_s <= KNOWN_S

    def is_measured(self, now: float) -> bool:
        """Tell whether the load has been known for a whole window."""
        return self.is_known(now) and now - self._began_s >= self._window_s

    def rate(self, now: float) -> float:
        """Return alpha, requests a second."""
        late = sum(count for heard_s, count in self._late.values() if now - heard_s <= KNOWN_S)
        return self._arrivals.rate(now) + late / self._window_s

    def cv(self, now: float) -> float | None:
        """Return the coefficient of variation of the gaps between arrivals, `None` where they are few."""
        return self._arrivals.cv(now)

    @property
    def input_tokens(self) -> int:
        """Mean prompt tokens of a request, rounded, at least 1."""
        return self._input.mean

    @property
    def output_tokens(self) -> int:
        """Mean output tokens of a request that ended in order, rounded, at least 1."""
        return self._output.mean

    def demand(self, now: float) -> ServiceDemand:
        """Return the load for the optimizer; arrivals that are too few for a variation are those of a Poisson process."""
        cv = self.cv(now)
        return ServiceDemand(self.rate(now), 1.0 if cv is None else cv, self.input_tokens, self.output_tokens)


class _MeanTokens:
    """Mean tokens of the requests that were reported in the last `window_s`, as of the last report that had any."""

    def __init__(self, window_s: float, expected: int) -> None:
        self._window_s = window_s
        self._expected = expected
        self._reports: deque[tuple[float, int, int]] = deque()
        self._requests = self._tokens = 0

    def add(self, requests: int, tokens: int, now: float) -> None:
        self._reports.append((now, requests, tokens))
        self._requests += requests
        self._tokens += tokens
        while self._reports[0][0] <= now - self._window_s:
            _, requests, tokens = self._reports.popleft()
            self._requests -= requests
            self._tokens -= tokens

    @property
    def mean(self) -> int:
        return max(1, round(self._tokens / self._requests) if self._requests else self._expected)
