"""How long requests wait: against formulas that are exact, and against drawn arrivals."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest

from tests.unit.core.parallel.waits import waiting_s


def drawn_wait_s(rate: float, cv: float, service_s: float, servers: int, batch: int, requests: int = 12_000) -> float:
    """Return the mean wait of requests with gamma gaps: a free server takes up to a batch."""
    gaps = np.random.default_rng(7).gamma(1 / cv**2, cv**2 / rate, requests)
    arrivals = np.cumsum(gaps).tolist()
    free, at, waited_s = [0.0] * servers, 0, 0.0
    while at < requests:
        start_s = max(heapq.heappop(free), arrivals[at])
        taken = at
        while taken < requests and taken - at < batch and arrivals[taken] <= start_s:
            waited_s += start_s - arrivals[taken]
            taken += 1
        at = taken
        heapq.heappush(free, start_s + service_s)
    return waited_s / requests


@pytest.mark.parametrize("load", [0.1, 0.5, 0.9, 0.99])
def test_one_server_is_exact(load: float) -> None:
    """M/M/1 waits rho / (1 - rho) of a service, M/D/1 half of that."""
    assert waiting_s(load / 3, 1.0, 3.0, 1, service_cv=1.0) == pytest.approx(3 * load / (1 - load))
    assert waiting_s(load / 3, 1.0, 3.0, 1) == pytest.approx(3 * load / (1 - load) / 2)


@pytest.mark.parametrize("servers", [2, 5, 20])
@pytest.mark.parametrize("load", [0.6, 0.8, 0.95])
def test_many_servers_are_near_erlangs_c(servers: int, load: float) -> None:
    """M/M/m is known; Sakasegawa's factor is within a tenth of it, or a thirtieth of a service."""
    offered = servers * load
    terms = [offered**count / math.factorial(count) for count in range(servers)]
    last = offered**servers / math.factorial(servers) / (1 - load)
    exact = last / (sum(terms) + last) / (servers * (1 - load))
    assert waiting_s(offered, 1.0, 1.0, servers, service_cv=1.0) == pytest.approx(exact, rel=0.1, abs=1 / 30)


@pytest.mark.parametrize("cv", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("servers", [1, 2, 5])
@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize("load", [0.5, 0.9])
def test_batches_are_near_drawn_arrivals(cv: float, servers: int, batch: int, load: float) -> None:
    """The formula is within a third of simulated waits up to c = 1, or within a fifth of a service."""
    rate = load * servers * batch / 10
    drawn_s = drawn_wait_s(rate, cv, 10.0, servers, batch)
    assert waiting_s(rate, cv, 10.0, servers, batch) == pytest.approx(drawn_s, rel=1 / 3, abs=10 / 5)


def test_a_large_batch_waits_half_a_service() -> None:
    """At high load an arrival waits for half the batch under way, on average, and joins the next one."""
    assert waiting_s(100.0, 1.0, 2.0, 1, max_batch=100_000) == pytest.approx(1.0, rel=1e-3)


def test_without_arrivals_there_is_no_wait() -> None:
    assert waiting_s(0.0, 5.0, 100.0, 1, 4) == 0.0


def test_arrivals_by_the_clock_do_not_wait_for_single_services() -> None:
    """Without variation every arrival finds its pipeline free."""
    assert waiting_s(0.9, 0.0, 1.0, 1) == 0.0


@pytest.mark.parametrize("rate", [0.8, 0.9])
def test_a_queue_that_grows_without_end_waits_for_ever(rate: float) -> None:
    """At a load of 1, m x B / l, the queue grows without end: random arrivals need slack."""
    assert waiting_s(rate, 1.0, 10.0, 2, 4) == math.inf
    assert math.isfinite(waiting_s(0.79, 1.0, 10.0, 2, 4))


@pytest.mark.parametrize(
    ("rate", "cv", "servers", "batch", "why"),
    [(-1.0, 1.0, 1, 1, "rates"), (1.0, -1.0, 1, 1, "rates"), (1.0, 1.0, 1, 0, "batch")],
)
def test_what_cannot_be_is_refused(rate: float, cv: float, servers: int, batch: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        waiting_s(rate, cv, 1.0, servers, batch)
