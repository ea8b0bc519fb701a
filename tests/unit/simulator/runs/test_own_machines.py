"""Clusters of machines with profiles of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.costs.cost_model import BatchShape, LinkCost
from spotwise.core.costs.cost_profile import MeasuredRange
from spotwise.core.kv.swap import WhenFull
from spotwise.core.messages.members import Pool
from spotwise.core.worker.policy import Scheduling
from spotwise.simulator.costs.hardware import LLAMA2_70B
from spotwise.simulator.loads.workload import ClusterWorkload, PriorityShare
from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.cluster_scenario import ClusterScenario, paper_machine
from spotwise.simulator.runs.clusters import DGX_A100, DGX_H100, SPLITWISE_HA, Split
from spotwise.simulator.runs.experiment import simulate
from spotwise.simulator.runs.machine_changes import MachineChange, MachineChangeKind
from spotwise.simulator.runs.metrics import TimeBeyondProfiles
from spotwise.simulator.runs.own_machines import OwnMachine
from spotwise.simulator.runs.serving_policy import ServingPolicy
from spotwise.simulator.runs.slo import SPLITWISE_SLOS
from tests.unit.simulator.runs.own_clusters import FAST, SLOW, cluster, scenario

CODE = ClusterWorkload("code")


def test_kinds_of_machine_serve_together() -> None:
    """Two kinds are in one pool, and each has its figures under its own name; prices and power add up."""
    run = simulate(scenario((FAST, 1, Pool.PROMPT), (FAST, 1, Pool.TOKEN), (SLOW, 2, Pool.TOKEN)).case(CODE, 8.0, 10.0))
    assert (run.failed, run.case.label) == (0, "own (1, 1, 2)")
    assert {name: pool.machines for name, pool in run.pools.items()} == {
        "prompt": 1,
        "token, fast": 1,
        "token, slow": 2,
    }
    assert (run.price_per_hour, run.power) == (12.0, 2.0)
    assert run.spent_usd == pytest.approx(12.0 * run.ended_s / 3600)


def test_the_papers_machines_are_the_same_beside_others() -> None:
    """With profile, memory, link and overlap of their own they serve as the design that the paper has of them."""
    h100, a100 = paper_machine(DGX_H100, LLAMA2_70B), paper_machine(DGX_A100, LLAMA2_70B)
    own = scenario((h100, 2, Pool.PROMPT), (a100, 1, Pool.TOKEN)).case(CODE, 4.0, 15.0)
    own = replace(own, objectives=replace(SPLITWISE_SLOS, alone=a100.profile.iteration))  # type: ignore[arg-type]
    ours = simulate(own)
    theirs = simulate(Case(SPLITWISE_HA.cluster(Split(2, 1)), CODE, 4.0, 15.0, model=LLAMA2_70B.name))
    assert ours.handoffs > 0
    assert ours.latencies_s == theirs.latencies_s
    assert ours.verdict == theirs.verdict
    assert (ours.handoff_bytes, ours.price_per_hour, ours.power) == (
        theirs.handoff_bytes,
        theirs.price_per_hour,
        theirs.power,
    )


def test_each_machine_has_its_own_link() -> None:
    """A token machine that is far away delays second tokens, and not the first."""
    split = ServingPolicy(break_even=False)
    near, far = (
        simulate(ClusterScenario(cluster((FAST, 1, Pool.PROMPT), (token, 1, Pool.TOKEN)), split).case(CODE, 0.5, 20.0))
        for token in (FAST, FAST.changed(link=LinkCost(0.5, 1e10)))
    )
    assert far.latencies_s["ttft"]["p50"] == near.latencies_s["ttft"]["p50"]
    assert far.latencies_s["e2e"]["p50"] - near.latencies_s["e2e"]["p50"] == pytest.approx(0.499, abs=0.02)


def test_pools_hand_over_between_machines_of_one_model_only() -> None:
    """Machines of prompt and token pools need links and KV of one size; mixed ones need neither."""
    other = replace(SLOW, profile=replace(SLOW.profile, kv_bytes_per_token=500))
    unlinked = replace(SLOW, profile=replace(SLOW.profile, link=None))
    with pytest.raises(ValueError, match="fast and slow hand KV over, and a token's is 1000 and 500 bytes"):
        cluster((FAST, 1, Pool.PROMPT), (other, 1, Pool.TOKEN))
    with pytest.raises(ValueError, match="slow has no link"):
        cluster((FAST, 1, Pool.PROMPT), (unlinked, 1, Pool.TOKEN))
    for kind in (other, unlinked):
        assert simulate(scenario((FAST, 1, Pool.MIXED), (kind, 1, Pool.MIXED)).case(CODE, 4.0, 5.0)).failed == 0


def test_machines_compute_prompts() -> None:
    with pytest.raises(ValueError, match="at least one machine that computes prompts"):
        cluster((FAST, 2, Pool.TOKEN))
    with pytest.raises(ValueError, match="take profiles beside"):
        cluster((FAST, 1, Pool.MIXED), (DGX_A100, 1, Pool.MIXED))  # type: ignore[arg-type]


@pytest.mark.parametrize("kv_bytes", [500, 1000, 2000])
def test_capacities_are_the_machines_own_whatever_a_token_takes(kv_bytes: int) -> None:
    """KV cache and host memory hold as many tokens beside machines whose tokens are of another size."""
    kind = OwnMachine("x", replace(FAST.profile, kv_bytes_per_token=kv_bytes), host_memory_bytes=1_000_000)
    for other in (500, 1000, 2000):
        language_model = replace(LLAMA2_70B, layers=1, kv_heads=1, head_size=1, value_bytes=other // 2, weight_bytes=0)
        machine = kind.machine_type(language_model)
        assert machine.kv_tokens(language_model) == FAST.profile.kv_tokens
        assert machine.host_memory_bytes // language_model.kv_token_bytes == 1_000_000 // kv_bytes
        seconds = language_model.kv_token_bytes / machine.host_bytes_per_s
        assert seconds == pytest.approx(kv_bytes / 25e9)


def small(kind: OwnMachine, host_memory_bytes: int = 0) -> OwnMachine:
    """The same with KV for a few conversations."""
    return kind.changed(kv_tokens=8_000, host_memory_bytes=host_memory_bytes)


def test_a_machine_without_host_memory_recomputes_where_others_swap() -> None:
    policy = ServingPolicy(scheduling=Scheduling.MLFQ, when_full=WhenFull.REACTIVE)
    conv = ClusterWorkload("conv")
    host = small(FAST, host_memory_bytes=1 << 30)
    swapping = simulate(ClusterScenario(cluster((host, 1, Pool.MIXED)), policy).case(conv, 8.0, 10.0))
    assert (swapping.failed, swapping.preemptions) == (0, 0)
    both = simulate(
        ClusterScenario(cluster((host, 1, Pool.MIXED), (small(SLOW), 1, Pool.MIXED)), policy).case(conv, 12.0, 10.0)
    )
    assert both.failed == 0
    assert both.preemptions > 0
    with pytest.raises(ValueError, match="no machine has any"):
        ClusterScenario(cluster((small(FAST), 1, Pool.MIXED)), policy)


def test_urgent_requests_go_first() -> None:
    """On workers with the policy of that name; the report has the latencies of each priority."""
    shares = (PriorityShare(0, 1.0), PriorityShare(5, 3.0))
    own = cluster((SLOW, 1, Pool.MIXED))
    few = ServingPolicy(max_num_seqs=8)
    fcfs, ranked = (
        simulate(ClusterScenario(own, policy, priorities=shares).case(ClusterWorkload("conv"), 3.0, 30.0))
        for policy in (few, replace(few, scheduling=Scheduling.PRIORITY))
    )
    assert list(fcfs.by_priority) == list(ranked.by_priority) == [0, 5]
    assert ranked.by_priority[0]["ttft"]["p90"] < 0.2 * fcfs.by_priority[0]["ttft"]["p90"]
    assert ranked.by_priority[5]["ttft"]["p90"] > fcfs.by_priority[5]["ttft"]["p90"]
    assert simulate(scenario((FAST, 1, Pool.MIXED)).case(CODE, 1.0, 5.0)).by_priority == {}


SMALL, LARGE = MeasuredRange(100, 50.0, 1, 100.0), MeasuredRange(1000, 500.0, 8, 1000.0)


def measured(kind: OwnMachine, how_far: MeasuredRange | None) -> OwnMachine:
    return replace(kind, profile=replace(kind.profile, measured=how_far))


def test_each_kind_has_shares_of_its_own_time() -> None:
    """Summed over its machines; what all have in common is weighted by their times. Others count for nothing."""
    small, large = measured(FAST, SMALL), measured(SLOW, LARGE)
    time = TimeBeyondProfiles({"m0": small, "m1": small, "m2": large, "m3": FAST, "m4": DGX_A100})
    prompt = BatchShape(200, 200 * 40.0, 0, 0)
    time.count("m0", prompt, 3.0)
    time.count("m1", BatchShape(0, 0.0, 1, 50), 1.0)
    time.count("m2", prompt, 10.0)
    time.count("m2", BatchShape(0, 0.0, 9, 9), 6.0)
    for unmarked in ("m3", "m4"):
        time.count(unmarked, prompt, 1000.0)
    found = time.in_all()
    assert found is not None
    assert found.share == pytest.approx((3.0 + 6.0) / 20.0)
    assert [(each.kind, each.beyond.measured) for each in found.kinds] == [("fast", SMALL), ("slow", LARGE)]
    assert [each.beyond.shares for each in found.kinds] == [{"prompt_tokens": 0.75}, {"decodes": 0.375}]


def test_without_ranges_nothing_is_known() -> None:
    assert TimeBeyondProfiles({"m0": FAST, "m1": DGX_A100}).in_all() is None
    nothing_ran = TimeBeyondProfiles({"m0": measured(FAST, SMALL)}).in_all()
    assert nothing_ran is not None
    assert nothing_ran.share == 0.0


def test_machines_that_join_count_for_their_kind() -> None:
    """A kind of prompt and of token machines is one; so is one of machines that come later."""
    small, large = measured(FAST, SMALL), measured(SLOW, LARGE)
    own = scenario((small, 1, Pool.PROMPT), (small, 1, Pool.TOKEN), (large, 1, Pool.TOKEN))
    join = MachineChange(1.0, MachineChangeKind.JOIN, 2, "slow")
    for changes in ((), (join,)):
        run = simulate(replace(own, changes=changes).case(ClusterWorkload("code"), 4.0, 5.0))
        assert run.beyond_profile is not None
        assert [each.kind for each in run.beyond_profile.kinds] == ["fast", "slow"]
        assert run.beyond_profile.kinds[0].beyond.share > 0.3
        shares = [each.beyond.share for each in run.beyond_profile.kinds]
        assert min(shares) <= run.beyond_profile.share <= max(shares)
