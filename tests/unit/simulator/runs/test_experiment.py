"""A case, run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.costs.cost_model import LinearIterationCost
from spotwise.core.costs.cost_profile import at_speed
from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.loads.workload import ClusterWorkload
from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.clusters import BASELINE_A100, BASELINE_H100, SPLITWISE_HA, Split
from spotwise.simulator.runs.experiment import simulate
from spotwise.simulator.runs.run_summary import is_steady
from spotwise.simulator.runs.serving_policy import ServingPolicy
from spotwise.simulator.runs.slo import SPLITWISE_SLOS, LatencyBound, Objectives
from spotwise.simulator.searches.search import Limit
from tests.unit.simulator.runs.summaries import case, summary

CODE = Case(SPLITWISE_HA.cluster(Split(2, 1)), ClusterWorkload("code"), 2.0, 10.0)


@pytest.mark.parametrize("decode_model", DecodeModel)
def test_a_run_answers_every_request(decode_model: DecodeModel) -> None:
    case = replace(CODE, decode_model=decode_model)
    requested = len(list(case.workload.arrivals(case.rate, case.seconds, case.seed)))
    run = simulate(case)
    assert (run.completed, run.failed) == (requested, 0)
    assert set(run.latencies_s) == {"ttft", "tbt", "e2e", "itl"}
    for figures in run.latencies_s.values():
        assert 0 < figures["p50"] <= figures["p90"] <= figures["p99"]
    assert run.latencies_s["ttft"]["p50"] < run.latencies_s["e2e"]["p50"]
    assert 0 < run.requests_per_s < 2 * (case.rate or 0)


def test_the_same_case_gives_the_same_summary() -> None:
    assert simulate(CODE) == simulate(CODE)
    assert simulate(CODE) != simulate(replace(CODE, seed=1))


def test_pools_are_those_of_the_design() -> None:
    run = simulate(CODE)
    assert {name: pool.machines for name, pool in run.pools.items()} == {"prompt": 2, "token": 1}
    assert run.pools["token"].mean_decodes >= 1
    assert run.handoffs > 0
    baseline = simulate(replace(CODE, cluster=BASELINE_H100.cluster(Split(3))))
    assert {name: pool.machines for name, pool in baseline.pools.items()} == {"mixed": 3}
    assert baseline.handoffs == 0
    for pool in (*run.pools.values(), *baseline.pools.values()):
        assert 0 < pool.utilisation <= 1
        assert pool.time_shares[-1] == pytest.approx(1.0)


def test_price_and_power_are_those_of_the_machines() -> None:
    run = simulate(CODE)
    assert run.price_per_hour == pytest.approx(8 * (2 * 4.76 + 2.21))
    assert run.power == pytest.approx(2 * 44 / 24.8 + 1)
    assert run.dollars_per_1000_requests == pytest.approx(1000 * run.price_per_hour / 3600 / run.requests_per_s)


def test_a_request_that_has_a_machine_to_itself_is_not_slowed_down() -> None:
    """On the reference machine, with the honest model, a lone request has a slowdown of 1."""
    alone = Case(BASELINE_A100.cluster(Split(1)), ClusterWorkload("code"), 0.001, 1.0)
    run = simulate(alone)
    assert run.completed == 1
    for metric in ("ttft", "tbt", "e2e"):
        assert run.verdict.slowdowns[metric][0][0] == pytest.approx(1.0, rel=0.02)


def test_chunks_bound_what_an_iteration_computes() -> None:
    case = Case(BASELINE_H100.cluster(Split(2)), ClusterWorkload("code"), 3.0, 10.0)
    run = simulate(replace(case, policy=ServingPolicy(chunk_tokens=512)))
    assert run.case.label == "Baseline-H100 (2, chunks of 512)"
    assert run.pools["mixed"].tokens[-1] <= 512
    whole = simulate(case)
    assert whole.pools["mixed"].tokens[-1] > 2048


@pytest.mark.parametrize("rate", [0.5, 2.0, 4.0, 6.0, 9.0, 20.0])
@pytest.mark.parametrize("decode_model", [DecodeModel.HONEST, DecodeModel.PUBLISHED])
def test_a_run_for_its_verdict_only_has_the_same_verdict(rate: float, decode_model: DecodeModel) -> None:
    """However early it ends: where the objectives hold it is the whole run, and where they do not none that is longer."""
    case = replace(CODE, rate=rate, decode_model=decode_model)
    whole, early = simulate(case), simulate(replace(case, verdict_only=True))
    assert early.verdict.holds == whole.verdict.holds
    if whole.verdict.holds:
        assert replace(early, case=case) == whole
    else:
        assert early.ended_s <= whole.ended_s


@pytest.mark.parametrize("ttft_s", [0.01, 0.3, 0.6, 1.0, 3.0])
@pytest.mark.parametrize("metric", ["ttft", "itl"])
def test_objectives_may_be_of_seconds(metric: str, ttft_s: float) -> None:
    bounds = (LatencyBound(metric, 90, ttft_s, is_slowdown=False), LatencyBound("e2e", 50, 9.0, is_slowdown=True))
    case = replace(CODE, objectives=Objectives(bounds))
    whole, early = simulate(case), simulate(replace(case, verdict_only=True))
    assert whole.verdict.holds is early.verdict.holds is (whole.latencies_s[metric]["p90"] < ttft_s)
    assert whole.verdict.broken == ([] if whole.verdict.holds else [f"{metric} p90 in seconds"])
    assert whole.verdict.bounds == 2
    assert whole.verdict.seconds[metric][1] == (whole.latencies_s[metric]["p90"], ttft_s)
    assert [bound for _, bound in whole.verdict.slowdowns["e2e"]] == [9.0, None, None]


def test_slowdowns_are_against_any_machine() -> None:
    cost = LinearIterationCost(0.01, 1e-4, 0.0, 1e-3, 0.0)
    single, double = (
        simulate(replace(CODE, objectives=Objectives(SPLITWISE_SLOS.bounds, at_speed(cost, speed))))
        for speed in (1.0, 0.5)
    )
    for metric in ("ttft", "tbt", "e2e"):
        for (ours, _), (slower, _) in zip(
            single.verdict.slowdowns[metric], double.verdict.slowdowns[metric], strict=True
        ):
            assert slower == pytest.approx(0.5 * ours)


def test_a_lost_run_ends_long_before_its_last_request() -> None:
    """At many times a cluster's capacity the first percent of requests shows it, and the run ends."""
    case = replace(CODE, rate=60.0, verdict_only=True)
    requested = sum(1 for _ in case.workload.arrivals(case.rate, case.seconds, case.seed))
    run = simulate(case)
    assert not run.verdict.holds
    assert run.completed < 0.5 * requested
    assert run.completed + run.failed == pytest.approx(requested, abs=1)


@pytest.mark.parametrize(("mean_s", "steady"), [(0.5, True), (2.0, True), (2.1, False), (None, False)])
def test_latency_is_a_small_part_of_a_steady_run(mean_s: float | None, steady: bool) -> None:
    assert is_steady(mean_s, 20.0) is steady


def test_a_run_is_steady_when_it_is_long_and_not_overloaded() -> None:
    minute = Case(SPLITWISE_HA.cluster(Split(2, 1)), ClusterWorkload("code"), 1.0, 60.0)
    assert simulate(minute).is_steady
    assert not simulate(replace(minute, seconds=5.0)).is_steady
    assert not simulate(replace(minute, rate=20.0)).is_steady


def test_a_limit_is_as_steady_as_the_runs_that_hold_there() -> None:
    steady = {"e2e": {"mean": 0.1}}
    runs = tuple(
        replace(summary(case(rate=rate), holds=rate <= 20.0), latencies_s=steady if rate == 20.0 else {})
        for rate in (10.0, 20.0, 30.0)
    )
    assert Limit((20.0,), runs).is_steady
    assert not Limit((20.0, 10.0), runs).is_steady
