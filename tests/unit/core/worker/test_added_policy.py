"""One entry of the table adds a scheduling policy, live and simulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwise.cli.launch.worker_options import policy_name
from spotwise.core.costs.batching import BatchLimits
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.core.worker.scheduling.policies import SCHEDULING_POLICIES, RegisteredPolicy
from spotwise.simulator.world.observation import Arrival
from spotwise.worker.settings import WorkerSettings
from tests.unit.core.worker.bench import WorkerBench, rows
from tests.unit.core.worker.shortest_prompt_first import shortest_prompt_first
from tests.unit.simulator.world.worlds import machines, serve, settings

NAME = "shortest_prompt"
POLICY = WorkerPolicy(BatchLimits(max_num_seqs=1), prefix_caching=False, scheduling=NAME)


@pytest.fixture(autouse=True)
def added_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULING_POLICIES, NAME, RegisteredPolicy(shortest_prompt_first))


def test_a_live_worker_runs_the_shortest_prompt_first(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert WorkerSettings(model_dir=tmp_path, policy=policy_name(NAME)).worker_policy().scheduling == NAME
    bench = WorkerBench(policy=POLICY)
    bench.in_place("a", prompt=60)
    bench.in_place("b", prompt=50)
    bench.in_place("c", prompt=5)
    assert rows(bench.iterate(a=7)) == ["c@1"]


def test_a_simulated_machine_runs_the_shortest_prompt_first() -> None:
    arrivals = [Arrival(0.0, 100, 5), Arrival(0.0, 50, 5), Arrival(0.0, 10, 5)]
    _, diary = serve(machines(mixed=1), arrivals, settings(POLICY))
    assert [served.arrival for served in diary.completed][-2:] == [arrivals[1], arrivals[0]]
