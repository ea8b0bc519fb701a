"""The paper's clusters, and cluster files: what they say, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from spotwise.core.costs.cost_model import LinkCost, PiecewiseLinear, TableIterationCost
from spotwise.core.costs.cost_profile import BUILT_IN
from spotwise.core.messages.members import Pool
from spotwise.core.scheduler.policy import DecodeQueue
from spotwise.core.worker.policy import Scheduling
from spotwise.files.cost_profile import profile_as_dict
from spotwise.simulator.costs.hardware import LLAMA2_70B
from spotwise.simulator.loads.workload import PriorityShare
from spotwise.simulator.runs.cluster_file import ClusterFileError, read_cluster
from spotwise.simulator.runs.cluster_scenario import paper_machine
from spotwise.simulator.runs.clusters import (
    BASELINE_A100,
    BASELINE_H100,
    DESIGNS,
    DGX_H100,
    PAPER_SPLITS,
    SPLITWISE_AA,
    SPLITWISE_HA,
    SPLITWISE_HHCAP,
    Design,
    Split,
)
from spotwise.simulator.runs.machine_changes import MachineChange, MachineChangeKind
from spotwise.simulator.runs.own_machines import OwnMachine
from spotwise.simulator.runs.serving_policy import USUAL_POLICY, ServingPolicy
from spotwise.simulator.runs.slo import SPLITWISE_SLOS, LatencyBound, Objectives

COST = """
[machines.cost]
kv_bytes_per_token = 327_680
kv_tokens = 50_000
link = { latency_s = 0.001, bytes_per_s = 1e10 }
[machines.cost.iteration]
kind = "table"
prompt = { at = [1, 2048], seconds = [0.05, 0.5] }
decode = { at = [1, 64], seconds = [0.02, 0.04] }
prompt_context_s = 0
decode_context_s = 1e-7
"""
#: What the table says.
TABLE = TableIterationCost(PiecewiseLinear((1, 2048), (0.05, 0.5)), PiecewiseLinear((1, 64), (0.02, 0.04)), 0.0, 1e-7)
RIGHT = '[[machines]]\nname = "mine"\ncount = 2\n' + COST
RECORDED = '[[machines]]\nname = "measured"\nprofile = "measured.json"\ncount = 1\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a recorded profile and a recording of instances."""
    (tmp_path / "measured.json").write_bytes(orjson.dumps(profile_as_dict(BUILT_IN)))
    (tmp_path / "nodes.csv").write_text("0,add,a\n5000,add,b\n60000,remove,a\n")
    return tmp_path


def write(folder: Path, text: str) -> Path:
    path = folder / "two-kinds.toml"
    path.write_text(text)
    return path


def test_a_short_file_has_the_rest_by_default(folder: Path) -> None:
    """Machines need a name, a number and costs; the paper's objectives hold against the first of them."""
    scenario = read_cluster(write(folder, RIGHT))
    (group,) = scenario.cluster.groups
    assert isinstance(group.kind, OwnMachine)
    assert (scenario.cluster.name, group.count, group.pool) == ("two-kinds", 2, Pool.MIXED)
    assert (group.kind.name, group.kind.price_per_hour, group.kind.power, group.kind.host_memory_bytes) == (
        "mine",
        0,
        0,
        0,
    )
    assert (group.kind.profile.iteration, group.kind.profile.kv_tokens) == (TABLE, 50_000)
    assert scenario.objectives == Objectives(SPLITWISE_SLOS.bounds, TABLE)
    assert (scenario.policy, scenario.priorities, scenario.changes) == (USUAL_POLICY, (), ())


def test_machines_of_all_origins_are_in_one_file(folder: Path) -> None:
    """The paper's, a recorded profile found beside the file, and one in the file; each with changes of its own."""
    text = (
        'name = "all"\nmodel = "llama2-70b"\nmessage_s = 0.002\n'
        '[[machines]]\nname = "h100"\nkind = "dgx-h100"\ncount = 3\npool = "prompt"\nprice_per_h = 30\n'
        + RECORDED
        + 'pool = "token"\npower = 1.5\nhost_memory = "4GiB"\nlink = { latency_s = 0.1, bytes_per_s = 5e9 }\n'
        "host_link = { latency_s = 0, bytes_per_s = 1e9 }\noverlap_layers = 80\n"
        + RIGHT.replace("count = 2", 'count = 2\npool = "token"\nkv_memory = "1GiB"')
    )
    scenario = read_cluster(write(folder, text))
    h100, measured, mine = scenario.cluster.own_kinds
    assert h100 == paper_machine(DGX_H100, LLAMA2_70B, "h100").changed(price_per_hour=30, message_s=0.002)
    assert h100.overlap_layers == 80
    assert measured.profile.iteration == BUILT_IN.iteration
    assert measured.profile.link == LinkCost(0.1, 5e9)
    assert measured.profile.host_link == LinkCost(0.0, 1e9)
    assert (measured.power, measured.host_memory_bytes, measured.overlap_layers) == (1.5, 4 << 30, 80)
    assert (mine.profile.kv_tokens, mine.profile.link) == ((1 << 30) // 327_680, LinkCost(0.001, 1e10))
    assert {kind.profile.message_s for kind in scenario.cluster.own_kinds} == {0.002}
    assert scenario.cluster.label == "all (3, 1, 2)"


def test_objectives_policies_priorities_and_events_are_in_it(folder: Path) -> None:
    text = (
        RIGHT
        + RECORDED.replace("count = 1", "count = 3")
        + """
[objectives]
against = "measured"
slowdown = { ttft = { p50 = 2, p99 = 6 } }
seconds = { itl = { p99 = 0.2 } }
[policy]
scheduling = "mlfq"
decode_queue = "sequences"
repurpose_window_s = 0
[[priorities]]
priority = 1
share = 3
[[events]]
at_s = 5
kind = "notice"
machines = 2
of = "measured"
notice_s = 10
"""
    )
    scenario = read_cluster(write(folder, text))
    assert scenario.objectives == Objectives(
        (
            LatencyBound("ttft", 50, 2.0, is_slowdown=True),
            LatencyBound("ttft", 99, 6.0, is_slowdown=True),
            LatencyBound("itl", 99, 0.2, is_slowdown=False),
        ),
        BUILT_IN.iteration,
    )
    assert scenario.policy == ServingPolicy(
        scheduling=Scheduling.MLFQ, decode_queue=DecodeQueue.SEQUENCES, repurpose_window_s=0.0
    )
    assert scenario.priorities == (PriorityShare(1, 3.0),)
    assert scenario.changes == (MachineChange(5.0, MachineChangeKind.NOTICE, 2, "measured", 10.0),)


def test_a_recording_says_when_machines_are_there(folder: Path) -> None:
    text = RIGHT + RECORDED.replace("count = 1", 'spot_trace = "nodes.csv"\nnotice_s = 15')
    scenario = read_cluster(write(folder, text))
    assert [group.count for group in scenario.cluster.groups] == [2, 1]
    assert scenario.changes == (
        MachineChange(5.0, MachineChangeKind.JOIN, 1, "measured", 15.0),
        MachineChange(45.0, MachineChangeKind.NOTICE, 1, "measured", 15.0),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "machines: the key is missing; docs/simulator.md"),
        ("machines = []", "machines: "),
        ("[[machines]", "is no TOML file"),
        (RIGHT.replace("count = 2", "count = 0"), "machines.0.count: "),
        (
            RIGHT.replace("count = 2", "number = 2"),
            "machines.0.number: there is no such key; docs/simulator.md lists them",
        ),
        (RIGHT.replace("count = 2\n", ""), "machines.0: mine needs either count"),
        (RIGHT.replace("count = 2", 'count = 2\nspot_trace = "nodes.csv"'), "machines.0: mine needs either count"),
        (RIGHT.replace("count = 2", 'count = 2\npool = "decode"'), "machines.0.pool: "),
        (RIGHT.replace("count = 2", 'count = 2\nkind = "dgx-h100"'), "machines.0: mine needs exactly one of kind"),
        (RIGHT.replace("count = 2", "count = 2\nkv_tokens = 5\nkv_memory = 9"), "both kv_tokens and kv_memory"),
        (RIGHT.replace("count = 2", "count = 2\nkv_memory = 9"), "machines.mine.kv_memory: it holds no token"),
        (RIGHT + RIGHT, "machines: mine is there twice"),
        (RIGHT.replace("kv_tokens = 50_000", ""), "machines.mine.cost.kv_tokens: "),
        (RIGHT.replace("[0.05, 0.5]", "[0.5, 0.05]"), "machines.mine.cost."),
        (RECORDED.replace("measured.json", "other.json"), "machines.measured.profile: .* cannot be read"),
        (RECORDED.replace("measured.json", "nodes.csv"), "machines.measured.profile: .* is no cost profile"),
        (RECORDED.replace("count = 1", 'spot_trace = "measured.json"'), "machines.measured.spot_trace: "),
        (
            '[[machines]]\nname = "x"\nkind = "dgx-a100"\ncount = 1',
            "model: the key is missing, for x; write one of bloom-176b",
        ),
        ('model = "gpt"\n' + RIGHT, "model: 'gpt' is not one of"),
        (RIGHT.replace("count = 2", 'count = 2\npool = "token"'), "at least one machine that computes prompts"),
        (
            RIGHT.replace("count = 2", 'count = 2\npool = "prompt"').replace("link = {", "host_link = {"),
            "mine has no link",
        ),
        (
            RIGHT + '[objectives]\nagainst = "yours"',
            "objectives.against: no machines are named 'yours'; there are mine",
        ),
        (RIGHT + "[objectives]\nslowdown = { itl = { p50 = 2 } }", "objectives.slowdown.itl"),
        (RIGHT + "[objectives]\nseconds = { ttft = { p95 = 2 } }", "objectives.seconds.ttft.p95"),
        (RIGHT + "[objectives]\nseconds = { ttft = { p99 = 0 } }", "objectives: ttft p99: a bound is above 0"),
        (
            RIGHT + '[policy]\nscheduling = "lifo"',
            "policy.scheduling: no scheduling policy is named 'lifo'; there are fcfs,",
        ),
        (RIGHT + "[policy]\nchunks = 5", "policy.chunks: there is no such key"),
        (RIGHT + "[policy]\nwatermark = 2", "policy: watermark is 2"),
        (
            RIGHT + '[policy]\nwhen_full = "reactive"',
            "when_full reactive swaps KV to host memory, and no machine has any",
        ),
        (RIGHT + "[[priorities]]\npriority = 1\nshare = 0", "priorities.0: priority 1: its share must be above 0"),
        (RIGHT + "[[priorities]]\npriority = 1", "priorities.0.share: the key is missing"),
        (RIGHT + '[[events]]\nat_s = 1\nkind = "fail"\nmachines = 2', "all 2 machines leave"),
        (
            RIGHT + '[[events]]\nat_s = 1\nkind = "fail"\nmachines = 1\nof = "x"',
            "no machines are named 'x'; there are mine",
        ),
        (RIGHT + '[[events]]\nat_s = -1\nkind = "fail"\nmachines = 1', "events.0: times"),
        (RIGHT + '[[events]]\nat_s = 1\nkind = "explode"\nmachines = 1', "events.0.kind: "),
    ],
)
def test_what_is_wrong_with_a_file_is_named(folder: Path, text: str, message: str) -> None:
    path = write(folder, text)
    with pytest.raises(ClusterFileError, match=f"{path}.*{message}"):
        read_cluster(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterFileError, match=r"absent\.toml cannot be read"):
        read_cluster(tmp_path / "absent.toml")


class TestDesigns:
    """The machines of a design."""

    def test_a_split_cluster_has_both_pools(self) -> None:
        cluster = SPLITWISE_HA.cluster(Split(2, 1))
        assert [(group.kind.name, group.count, group.pool) for group in cluster.groups] == [
            ("dgx-h100", 2, Pool.PROMPT),
            ("dgx-a100", 1, Pool.TOKEN),
        ]
        assert (cluster.label, cluster.split, cluster.group_names) == (
            "Splitwise-HA (2, 1)",
            Split(2, 1),
            ["prompt", "token"],
        )

    def test_a_baseline_is_all_mixed(self) -> None:
        (group,) = BASELINE_A100.cluster(Split(3)).groups
        assert (group.count, group.pool) == (3, Pool.MIXED)

    @pytest.mark.parametrize(("design", "split"), [(BASELINE_A100, Split(1, 1)), (SPLITWISE_AA, Split(2))])
    def test_a_split_that_is_not_the_designs_is_refused(self, design: Design, split: Split) -> None:
        with pytest.raises(ValueError, match="cannot be split"):
            design.cluster(split)

    def test_every_split_of_the_paper_is_one_of_its_design(self) -> None:
        for splits in PAPER_SPLITS.values():
            for name, split in splits.items():
                assert DESIGNS[name].cluster(split).split == split

    @pytest.mark.parametrize(
        ("budget", "workload"), [("iso-power", "conv"), ("iso-power", "code"), ("iso-cost", "conv")]
    )
    def test_iso_clusters_draw_or_cost_about_the_same(self, budget: str, workload: str) -> None:
        """Each published split is within 3% of the power or the cost of 40 H100 machines, the paper's budget."""
        of = Design.power if budget == "iso-power" else Design.price_per_hour
        for name, split in PAPER_SPLITS[budget, workload].items():  # type: ignore[index]
            assert of(DESIGNS[name], split) == pytest.approx(of(BASELINE_H100, Split(40)), rel=0.03)

    def test_a_capped_machine_costs_as_much_and_draws_less(self) -> None:
        assert SPLITWISE_HHCAP.price_per_hour(Split(1, 1)) == BASELINE_H100.price_per_hour(Split(2))
        assert SPLITWISE_HHCAP.power(Split(1, 1)) == pytest.approx((44 + 30.8) / 24.8)
