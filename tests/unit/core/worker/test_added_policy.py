"""One entry of the table adds a scheduling policy, live and simulated."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from pydantic import TypeAdapter, ValidationError

from spotwise.cli.launch.worker_options import policy_name
from spotwise.cli.simulate.run_options import simulated_policy_name
from spotwise.core.costs.batching import BatchLimits
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.core.worker.scheduling.policies import SCHEDULING_POLICIES, RegisteredPolicy, described_policies
from spotwise.simulator.runs.serving_policy import ServingPolicy
from spotwise.simulator.world.observation import Arrival
from spotwise.worker.settings import WorkerSettings
from tests.unit.core.worker.bench import WorkerBench, rows
from tests.unit.core.worker.shortest_prompt_first import shortest_prompt_first
from tests.unit.simulator.world.worlds import machines, serve, settings

NAME = "shortest_prompt"
POLICY = WorkerPolicy(BatchLimits(max_num_seqs=1), prefix_caching=False, scheduling=NAME)


@pytest.fixture(autouse=True)
def added_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULING_POLICIES, NAME, RegisteredPolicy(shortest_prompt_first, "fewest tokens"))


def test_a_live_worker_runs_the_shortest_prompt_first(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert WorkerSettings(model_dir=tmp_path, policy=policy_name(NAME)).worker_policy().scheduling == NAME
    bench = WorkerBench(policy=POLICY)
    bench.in_place("a", prompt=60)
    bench.in_place("b", prompt=50)
    bench.in_place("c", prompt=5)
    assert rows(bench.iterate(a=7)) == ["c@1"]


def test_settings_and_simulations_offer_the_entry() -> None:
    """The description of the setting, `spotwise simulate run --policy`, and the table `[policy]` of a cluster file."""
    assert described_policies().endswith(", or shortest_prompt (fewest tokens)")
    assert simulated_policy_name(NAME) == NAME
    policies = TypeAdapter(ServingPolicy)
    assert policies.validate_python({"scheduling": NAME}).workers(None).scheduling == NAME
    with pytest.raises(typer.BadParameter, match="'shortest_prompt'"):
        simulated_policy_name("lifo")
    with pytest.raises(ValidationError, match="'lifo'; there are fcfs, priority, srpt, mlfq, shortest_prompt"):
        policies.validate_python({"scheduling": "lifo"})


def test_a_simulated_machine_runs_the_shortest_prompt_first() -> None:
    arrivals = [Arrival(0.0, 100, 5), Arrival(0.0, 50, 5), Arrival(0.0, 10, 5)]
    _, diary = serve(machines(mixed=1), arrivals, settings(POLICY))
    assert [served.arrival for served in diary.completed][-2:] == [arrivals[1], arrivals[0]]
