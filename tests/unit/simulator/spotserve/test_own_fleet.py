"""A user's own machine, model and load in the spot world."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spotwise.cli.simulate.spot_report import plot_fleet
from spotwise.core.costs.cost_profile import BUILT_IN
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.files.spot_traces import SpotTrace
from spotwise.files.tables import TraceError
from spotwise.simulator.loads.workload import ArrivalKind, ClusterWorkload
from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.clusters import Design, Split
from spotwise.simulator.runs.experiment import simulate
from spotwise.simulator.runs.own_machines import OwnMachine
from spotwise.simulator.spotserve.own_fleet import (
    COMPARED,
    USUALLY_COMPARED,
    RequestSize,
    compared_systems,
    least_pipeline,
    mean_instances,
    own_arrivals,
    own_model,
    usual_rate,
    usual_size,
)
from spotwise.simulator.spotserve.run import SpotRun
from spotwise.simulator.spotserve.serving import simulate_fleet
from spotwise.simulator.spotserve.systems import SpotModel, SpotSurroundings
from tests.unit.simulator.spotserve import spot_worlds as tiny

#: Llama2-70B, of which the built-in profile is.
SHAPE = ModelShape("llama2-70b", 80, 8192, 135 * 2**30 // 80, 0, 0, 4096)
SIZE = RequestSize(1140, 209)
AROUND = SpotSurroundings(network_bytes_per_s=50e9)
STAYS = tiny.trace((0.0, "add", "a b"), end_s=300.0)
SHRINKS = tiny.trace((0.0, "add", "a b c"), (100.0, "remove", "b c"), end_s=200.0)


def model(size: RequestSize = SIZE, **options: int) -> SpotModel:
    return own_model(BUILT_IN, SHAPE, size, AROUND, **options)


def test_a_device_is_the_profiled_machine() -> None:
    """It has the profiled worker's memory, so that the model fits one, and as many requests as its KV cache."""
    served = model()
    assert served.device_bytes == SHAPE.weight_bytes + 262_144 * 327_680
    assert served.max_batch == 32
    assert model(RequestSize(20_000, 1_845)).max_batch == 8  # 262,144 tokens are twelve of these
    assert model(RequestSize(400_000, 1)).max_batch == 1
    assert least_pipeline(STAYS, served, SIZE) is not None
    instances, config = least_pipeline(STAYS, served, SIZE) or (0, None)
    assert (instances, str(config)) == (1, "1,1,1,32")


def test_a_smaller_device_needs_more_of_them() -> None:
    """Weights of 135 GiB and KV of 32 requests do not fit 64 GiB, and not two of those; three of them have it in shares."""
    fleet = tiny.trace((0.0, "add", "a b c d e"), end_s=100.0)
    instances, config = least_pipeline(fleet, model(device_bytes=64 * 2**30), SIZE) or (0, None)
    assert config is not None and instances == config.pipeline_devices == 3
    assert least_pipeline(STAYS, model(device_bytes=2**30), SIZE) is None


def test_the_profile_of_another_model_is_refused() -> None:
    """Half or twice the bytes are another precision of the same model."""
    with pytest.raises(ValueError, match=r"327,680 bytes of KV a token, and small has 32,768; give the model"):
        own_model(BUILT_IN, replace(SHAPE, name="small", layers=8), SIZE, AROUND)
    halved = own_model(BUILT_IN, replace(SHAPE, kv_layer_token_bytes=8192), SIZE, AROUND)
    assert halved.shape.kv_token_bytes == BUILT_IN.kv_bytes_per_token


def test_an_unstated_load_is_half_of_what_the_mean_fleet_serves() -> None:
    assert mean_instances(SHRINKS) == pytest.approx(2.0)
    one = usual_rate(tiny.trace((0.0, "add", "a"), end_s=300.0), model(), SIZE)
    assert usual_rate(STAYS, model(), SIZE) == pytest.approx(2 * one)
    assert 1.0 < one < 3.0
    day = tiny.trace((0.0, "add", "a b"), end_s=86_400.0)
    assert usual_rate(day, model(), SIZE) == pytest.approx(5_000 / 86_400)


def test_requests_keep_their_sizes(tmp_path: Path) -> None:
    """Configurations are chosen for the mean; what arrives after the trace is left out."""
    path = tmp_path / "load.csv"
    rows = "".join(f"2026-01-01 00:{minute:02}:00,{100 + 100 * minute},{10 + minute}\n" for minute in range(10))
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    workload = ClusterWorkload("load", path, ArrivalKind.TRACE)
    size = usual_size(workload, 0)
    assert size.input_tokens == pytest.approx(550, abs=30) and size.output_tokens in (14, 15)
    arrivals = own_arrivals(workload, None, 300.0, 0, size)
    assert arrivals.times_s == (0.0, 60.0, 120.0, 180.0, 240.0)
    assert arrivals.sizes[2] == (300, 12)
    with pytest.raises(TraceError, match=r"no request arrives in the 0\.001 s"):
        own_arrivals(ClusterWorkload("conv"), 0.001, 0.001, 0, size)


def run(trace: SpotTrace, rate: float, name: str = "spotwise", drain_s: float = 600.0) -> SpotRun:
    served = model()
    arrivals = own_arrivals(ClusterWorkload("conv"), rate, trace.end_s, 0, SIZE)
    least = least_pipeline(trace, served, SIZE)
    (system,) = compared_systems([name], None if least is None else least[1])
    return SpotRun(trace, arrivals, served, system, AROUND, drain_s=drain_s)


def test_a_fleet_that_stays_is_the_cluster_of_simulate_run() -> None:
    """The same machines, load and roles in the two worlds: mean and percentiles within 6 %."""
    result = simulate_fleet(run(STAYS, 1.0))
    cluster = simulate(
        Case(Design("own", OwnMachine("own", BUILT_IN)).cluster(Split(2)), ClusterWorkload("conv"), 1.0, 300.0)
    )
    for figure in ("mean", "p50", "p90"):
        assert result.latency_s[figure] == pytest.approx(cluster.latencies_s["e2e"][figure], rel=0.06)
    assert len(result.outcome.requests) == cluster.completed


@pytest.mark.parametrize("name", COMPARED)
def test_open_requests_begin_and_end_at_what_arrived_and_was_served(name: str) -> None:
    result = simulate_fleet(run(SHRINKS, 4.0, name, drain_s=5.0))
    outcome, counts = result.outcome, result.open_requests()
    assert counts[0][1] >= 1 and counts[-1][1] == len(outcome.unfinished) > 0
    assert min(count for _, count in counts) >= 0
    assert [at_s for at_s, _ in counts] == sorted({at_s for at_s, _ in counts})
    assert result.longest_pause_s == max(change.pause_s for change in outcome.changes[1:])


def test_nothing_is_reconfigured_because_no_requests_arrive_after_the_trace() -> None:
    """An overloaded fleet serves on for a minute, in the configuration of its load; measured on, the rate would be 0."""
    loaded = replace(run(tiny.trace((0.0, "add", "a b"), end_s=40.0), 15.0), system=COMPARED["eager"])
    measured, kept = simulate_fleet(loaded).outcome, simulate_fleet(replace(loaded, keeps_rate=True)).outcome
    assert min(measured.ended_s, kept.ended_s) > 100.0
    assert any(change.time_s > 40.0 for change in measured.changes)
    assert list(kept.changes) == [change for change in measured.changes if change.time_s <= 40.0]


def test_rerouting_has_small_pipelines() -> None:
    """The loss of two of three instances leaves a third of them, and not nothing."""
    result = simulate_fleet(run(SHRINKS, 1.0, "rerouting"))
    assert [config.data if config else 0 for _, config in result.configs()][-1] == 1
    assert not result.outcome.unfinished


def test_a_fleet_is_drawn() -> None:
    results = [simulate_fleet(run(SHRINKS, 1.0, name)) for name in COMPARED]
    instances, pipelines, waiting = plot_fleet(SHRINKS, results).axes
    assert [line.get_label() for line in waiting.get_lines()[:3]] == list(USUALLY_COMPARED)
    assert np.max(instances.get_lines()[0].get_ydata()) == 3
    assert np.max(pipelines.get_lines()[0].get_ydata()) == 3
