"""The simulator from Python is the command line's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import orjson
import pytest
from pydantic import ValidationError

from spotwise.core.costs.cost_model import LinkCost
from spotwise.core.costs.cost_profile import BUILT_IN
from spotwise.core.messages.members import Pool
from spotwise.files.cost_profile import profile_as_dict
from spotwise.simulator import api
from spotwise.simulator.loads.workload import ArrivalKind, ClusterWorkload
from spotwise.simulator.packaged_data import read_packaged
from spotwise.simulator.runs.cluster_file import ClusterFileError
from spotwise.simulator.runs.experiment import simulate
from spotwise.simulator.runs.slo import SPLITWISE_SLOS, LatencyBound


def test_machines_are_of_all_origins(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    path.write_bytes(orjson.dumps(profile_as_dict(BUILT_IN)))
    measured = api.machines(path, 2, "token", kv_tokens=5000, link=LinkCost(0.1, 1e9))
    assert measured == api.machines(BUILT_IN, 2, "token", kv_tokens=5000, link=LinkCost(0.1, 1e9))
    assert (measured.kind.name, measured.count, measured.pool) == (BUILT_IN.name, 2, Pool.TOKEN)
    paper = api.machines("dgx-h100", 1, name="h", power=1.0)
    assert (paper.kind.name, paper.kind.power) == ("h", 1.0)
    assert paper.kind.price_per_hour == pytest.approx(8 * 4.76)


def test_a_run_is_the_same_as_of_its_case() -> None:
    """With each seed; and bounds are against the chosen machines."""
    slow = api.machines("dgx-a100", 1, name="slow")
    fast = api.machines("dgx-h100", 1)
    bounds = api.bounds(slowdown={"ttft": {"p50": 0.7}}, against=slow)
    own = api.cluster(fast, objectives=bounds)
    means = api.simulate(own, "code", rate=1.0, seconds=5.0, seed=3, seeds=2)
    assert [run.case.seed for run in means.runs] == [3, 4]
    assert list(means.runs) == [simulate(own.case(ClusterWorkload("code"), 1.0, 5.0, seed)) for seed in (3, 4)]
    assert means.holding == 2
    assert (
        api.simulate(replace(own, objectives=api.bounds(slowdown={"ttft": {"p50": 0.7}})), "code", rate=1.0).holding
        == 0
    )


def test_a_trace_comes_at_its_own_times(tmp_path: Path) -> None:
    trace = tmp_path / "mine.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:01,90,9\n2024-01-01 00:00:02,50,4\n")
    (run,) = api.simulate(api.cluster(api.machines(BUILT_IN, 1)), trace, own_arrivals=True, seconds=None).runs
    assert (run.completed, run.case.workload.name, run.case.workload.kind) == (2, "mine", ArrivalKind.TRACE)


def test_prompts_that_begin_alike_are_found_in_caches(tmp_path: Path) -> None:
    trace = tmp_path / "chats.jsonl"
    line = '{{"timestamp": {}e3, "input_length": 64, "output_length": 5, "hash_ids": [7, 8, 9, {}]}}'
    trace.write_text("\n".join(line.format(second, 100 + second) for second in range(4)))
    own = api.cluster(api.machines("dgx-h100", 1), api.machines(BUILT_IN, 1))
    for cached, share in ((True, pytest.approx(0.75 * 48 / 64)), (False, None)):
        means = api.simulate(own, trace, own_arrivals=True, seconds=None, block_tokens=16, prefix_caching=cached)
        assert means.runs[0].cached_share == share


def test_without_bounds_they_are_the_papers() -> None:
    assert api.bounds() == SPLITWISE_SLOS
    assert api.bounds(seconds={"itl": {"p99": 0.5}}).bounds == (LatencyBound("itl", 99, 0.5, is_slowdown=False),)


def test_what_is_wrong_is_a_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="take one of dgx-a100, dgx-h100"):
        api.machines("dgx-b200", 1)
    with pytest.raises(ValueError, match="bloom-176b, llama2-70b"):
        api.machines("dgx-a100", 1, model="llama3")
    with pytest.raises(ValueError, match="'decode' is not a valid Pool"):
        api.machines("dgx-a100", 1, "decode")
    with pytest.raises(ValueError, match="p95"):
        api.bounds(slowdown={"ttft": {"p95": 2.0}})
    with pytest.raises(ValueError, match="hand KV over"):
        api.cluster(api.machines("dgx-a100", 1, "prompt", model="bloom-176b"), api.machines("dgx-a100", 1, "token"))
    with pytest.raises(ClusterFileError, match="cannot be read"):
        api.read(tmp_path / "absent.toml")
    with pytest.raises(ValueError, match="a rate and a time"):
        api.simulate(api.cluster(api.machines("dgx-a100", 1)))


FILES = [
    ("spotwise.simulator.costs", "built_in_costs.json"),
    ("spotwise.simulator.loads", "azure_percentiles.json"),
]


@dataclass(frozen=True)
class Unlike:
    """No file has this field."""

    nowhere: int


@pytest.mark.parametrize(("package", "file"), FILES)
def test_a_data_file_names_its_source(package: str, file: str) -> None:
    assert len(orjson.loads((resources.files(package) / file).read_bytes())["source"]) > 20


def test_a_file_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValidationError, match="nowhere"):
        read_packaged(*FILES[0], Unlike)
