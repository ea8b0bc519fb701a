"""Runs in a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spotwise.core.costs.cost_profile import BUILT_IN, MeasuredRange
from spotwise.core.messages.members import Pool
from spotwise.core.scheduler.policy import DecodeQueue
from spotwise.core.worker.policy import Scheduling
from spotwise.simulator.loads.workload import ArrivalKind, ClusterWorkload, PriorityShare
from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.cluster_scenario import ClusterScenario
from spotwise.simulator.runs.clusters import BASELINE_A100, SPLITWISE_HA, Design, Split
from spotwise.simulator.runs.experiment import simulate
from spotwise.simulator.runs.machine_changes import MachineChange, MachineChangeKind
from spotwise.simulator.runs.own_machines import OwnMachine
from spotwise.simulator.runs.run_summary import RunSummary
from spotwise.simulator.runs.serving_policy import ServingPolicy
from spotwise.simulator.runs.slo import LatencyBound, Objectives
from spotwise.simulator.searches import kept_runs
from spotwise.simulator.searches.kept_runs import KeptRuns
from tests.unit.simulator.runs.kept import Counting, forget
from tests.unit.simulator.runs.own_clusters import FAST, SLOW, cluster

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:01,900,9\n2024-01-01 00:00:02,50,{tokens}\n"
CODE = Case(SPLITWISE_HA.cluster(Split(2, 1)), ClusterWorkload("code"), 2.0, 5.0)
#: Machines, objectives, policies and changes of all kinds.
OWN = ClusterScenario(
    cluster((FAST, 1, Pool.PROMPT), (SLOW, 1, Pool.TOKEN)),
    ServingPolicy(scheduling=Scheduling.MLFQ, starve_limit_s=0.0, decode_queue=DecodeQueue.SEQUENCES),
    Objectives((LatencyBound("itl", 99, 0.5, is_slowdown=False),), FAST.profile.iteration),
    (PriorityShare(0, 0.5), PriorityShare(1, 0.5)),
    (MachineChange(1.0, MachineChangeKind.JOIN, 1), MachineChange(2.0, MachineChangeKind.NOTICE, 1, "slow", 1.0)),
)
#: Machines whose profiles say how far they measured.
MEASURED = ClusterScenario(
    cluster(
        (replace(FAST, profile=replace(FAST.profile, measured=MeasuredRange(64, 32.0, 2, 80.0))), 1, Pool.PROMPT),
        (SLOW, 1, Pool.TOKEN),
    )
)
CHAT = '{{"timestamp": {}e3, "input_length": 64, "output_length": 5, "hash_ids": [7, 8, 9, {}]}}'


@pytest.fixture(autouse=True)
def _other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each test read files and code as a new process does."""
    forget()


@pytest.mark.parametrize(
    "case",
    [
        CODE,
        replace(CODE, cluster=BASELINE_A100.cluster(Split(2)), verdict_only=True, rate=30.0),
        replace(CODE, cluster=Design("own", OwnMachine("own", BUILT_IN, 3.5)).cluster(Split(2))),
        OWN.case(ClusterWorkload("code"), 2.0, 5.0),
        MEASURED.case(ClusterWorkload("code"), 2.0, 5.0),
    ],
)
def test_what_was_simulated_once_is_not_simulated_again(tmp_path: Path, case: Case) -> None:
    run, path = Counting(simulate), tmp_path / "runs"
    first = KeptRuns(path, run, RunSummary)(case)
    forget()
    again = KeptRuns(path, run, RunSummary)(case)
    assert again == first
    assert again.wall_s == first.wall_s
    assert len(run.runs) == 1
    KeptRuns(path, run, RunSummary)(replace(case, seed=1))
    assert len(run.runs) == 2


def test_a_file_or_a_code_that_changed_is_another_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace under its old name, and a simulator that has been worked on."""
    run, path, trace = Counting(simulate), tmp_path / "runs", tmp_path / "trace.csv"
    trace.write_text(TRACE.format(tokens=20))
    case = replace(CODE, workload=ClusterWorkload("mine", trace))
    KeptRuns(path, run, RunSummary)(case)
    trace.write_text(TRACE.format(tokens=21))
    forget()
    KeptRuns(path, run, RunSummary)(case)
    assert len(run.runs) == 2
    monkeypatch.setattr(kept_runs, "_code", lambda case: b"other code")
    KeptRuns(path, run, RunSummary)(case)
    assert len(run.runs) == 3


def test_all_that_a_run_depends_on_is_a_case_of_its_own(tmp_path: Path) -> None:
    """Prefix caches, the size of a trace's blocks, and how far a profile measured; and what came of them is kept."""
    run, path, trace = Counting(simulate), tmp_path / "runs", tmp_path / "chats.jsonl"
    trace.write_text("\n".join(CHAT.format(second, 100 + second) for second in range(4)))
    case = MEASURED.case(ClusterWorkload("chats", trace, ArrivalKind.TRACE, block_tokens=16), None, None)
    kinds = MEASURED.cluster.own_kinds
    further = replace(kinds[0], profile=replace(kinds[0].profile, measured=MeasuredRange(640, 320.0, 20, 800.0)))
    cases = [
        case,
        replace(case, prefix_caching=False),
        replace(case, workload=replace(case.workload, block_tokens=17)),
        replace(case, cluster=cluster((further, 1, Pool.PROMPT), (kinds[1], 1, Pool.TOKEN))),
    ]
    first = [KeptRuns(path, run, RunSummary)(each) for each in cases]
    assert first[0].cached_share == pytest.approx(0.75 * 48 / 64)
    assert first[0].beyond_profile is not None
    assert first[0].beyond_profile != first[3].beyond_profile
    forget()
    assert [KeptRuns(path, run, RunSummary)(each) for each in cases] == first
    assert run.runs == cases


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    run, path = Counting(simulate), tmp_path / "runs"
    KeptRuns(path, run, RunSummary)(CODE)
    whole = path.read_bytes()
    KeptRuns(path, run, RunSummary)(replace(CODE, seed=1))
    path.write_bytes(path.read_bytes()[: len(whole) + 100])
    forget()
    KeptRuns(path, run, RunSummary)(CODE)
    assert len(run.runs) == 2
    KeptRuns(path, run, RunSummary)(replace(CODE, seed=1))
    assert len(run.runs) == 3
    forget()
    KeptRuns(path, run, RunSummary)(replace(CODE, seed=1))
    assert len(run.runs) == 3
