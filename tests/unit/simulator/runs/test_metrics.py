"""The figures of a run."""

from __future__ import annotations

import pytest

from spotwise.core.costs.cost_model import BatchShape
from spotwise.simulator.runs.metrics import RunMetrics, time_shares
from spotwise.simulator.runs.slo import Latencies
from spotwise.simulator.world.observation import Arrival, CompletedRequest


class OneSecond:
    """A request alone takes one second to its first token, ten to its last, one between tokens."""

    def latencies(self, arrival: Arrival) -> Latencies:
        return Latencies(1.0, 1.0, 10.0)


def metrics() -> RunMetrics:
    return RunMetrics(OneSecond(), {"m0": "prompt", "m1": "token", "m2": "token"})


def completed(ttft_s: float, e2e_s: float, output_tokens: int = 10) -> CompletedRequest:
    return CompletedRequest(Arrival(5.0, 100, output_tokens), 5.0 + ttft_s, 5.0 + e2e_s)


def test_latencies_are_kept_as_seconds_and_as_slowdowns() -> None:
    """Against the same request alone; TBT is the mean over a request's output tokens."""
    run = metrics()
    run.request_completed(completed(2.0, 22.0))
    assert {metric: values.at(50) for metric, values in run.latencies.items()} == {
        "ttft": 2.0,
        "tbt": 2.0,
        "e2e": 22.0,
        "itl": None,
    }
    assert {metric: values.at(50) for metric, values in run.slowdowns.items()} == {"ttft": 2.0, "tbt": 2.0, "e2e": 2.2}
    assert run.output_tokens == 10


def test_a_single_token_has_no_time_between_tokens() -> None:
    """Counted as 0 it would make a slow run look fast."""
    run = metrics()
    run.request_completed(completed(2.0, 2.0, output_tokens=1))
    assert run.latencies["tbt"].count == 0
    assert run.latencies["ttft"].count == 1


def test_objectives_hold_when_all_nine_do() -> None:
    run = metrics()
    for _ in range(98):
        run.request_completed(completed(1.0, 10.0))
    run.request_completed(completed(5.0, 14.0))
    assert run.verdict().holds
    run.request_completed(completed(8.0, 17.0))
    run.request_completed(completed(8.0, 17.0))
    assert run.verdict().broken == ["ttft p99"]
    assert not run.verdict().holds


def test_a_bound_that_is_reached_is_broken() -> None:
    """Slowdowns must be below their bounds."""
    run = metrics()
    run.request_completed(completed(2.0, 11.0))
    assert run.verdict().broken == ["ttft p50"]


def test_a_request_without_answer_breaks_the_objectives() -> None:
    run = metrics()
    run.request_completed(completed(1.0, 10.0))
    run.request_failed(Arrival(6.0, 10, 10), "queue full")
    assert not run.verdict().holds
    assert run.verdict().broken == []
    assert run.failed == 1


def test_busy_time_is_kept_by_tokens_and_by_pool() -> None:
    """The share of the time with at most so many tokens in an iteration."""
    run = metrics()
    run.iterations_ended("m0", BatchShape(100, 5000.0), 1.0)
    run.iterations_ended("m1", BatchShape(decodes=4, decode_context=400), 2.0, iterations=20)
    run.iterations_ended("m2", BatchShape(decodes=1, decode_context=100), 6.0, iterations=60)
    assert list(run.pools) == ["prompt", "token"]
    tokens = run.pools["token"]
    assert (tokens.busy_s, tokens.iterations, tokens.decode_tokens) == (8.0, 80, 140)
    assert time_shares(tokens) == ([1, 4], [0.75, 1.0])
    assert time_shares(run.pools["prompt"]) == ([100], [1.0])


def test_gaps_between_tokens_are_counted_each() -> None:
    """A gap that many sequences share counts for each of them."""
    run = metrics()
    run.tokens_spaced((0.05,), 99)
    run.tokens_spaced((1.0,))
    assert run.latencies["itl"].at(99) == 0.05
    assert run.latencies["itl"].at(99.5) == 1.0


def test_throughput_is_that_of_a_cluster_that_is_neither_filling_nor_emptying() -> None:
    """Ten answers a second in the middle, and one at the end that took long."""
    run = metrics()
    assert run.steady_requests_per_s is None
    for number in range(100):
        run.request_completed(completed(1.0, 10.0 + number / 10))
    run.request_completed(completed(1.0, 500.0))
    assert run.steady_requests_per_s == pytest.approx(10.0, rel=0.03)
