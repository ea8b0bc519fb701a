"""How a simulated cluster batches and routes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from spotwise.core.costs.cost_model import LinearIterationCost
from spotwise.core.kv.swap import SwapPolicy, WhenFull
from spotwise.core.scheduler.policy import DecodeQueue, PoolPolicy
from spotwise.core.worker.policy import Reserve, Scheduling, WorkerPolicy
from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.loads.workload import ClusterWorkload
from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.clusters import BASELINE_H100, Split
from spotwise.simulator.runs.experiment import simulate
from spotwise.simulator.runs.serving_policy import USUAL_POLICY, ServingPolicy

COST = LinearIterationCost(0.01, 1e-4, 0.0, 1e-3, 0.0)
CONV = Case(BASELINE_H100.cluster(Split(1)), ClusterWorkload("conv"), 2.0, 20.0)


def test_without_differences_it_is_the_meshs() -> None:
    assert USUAL_POLICY.workers(COST) == WorkerPolicy(prefix_caching=False)
    assert USUAL_POLICY.pools(PoolPolicy(token_s=0.1)) == PoolPolicy(token_s=0.1)


def test_queues_of_mlfq_are_of_the_machines_own_iterations() -> None:
    """The first quantum is a lone decode; 0 promotes none, and without a limit the mesh's rule holds."""
    policy = ServingPolicy(scheduling=Scheduling.MLFQ, quantum_ratio=3.0, starve_limit_s=0.0)
    own = policy.workers(COST)
    assert own.mlfq is not None
    assert (own.mlfq.first_quantum_s, own.mlfq.quantum_ratio, own.mlfq.starve_limit_s) == (0.011, 3.0, math.inf)
    assert own.cost == COST
    usual = replace(policy, starve_limit_s=None).workers(COST)
    assert usual.mlfq is not None and 0.011 < usual.mlfq.starve_limit_s < math.inf


def test_zero_is_never() -> None:
    policy = ServingPolicy(max_stall_s=0.0, repurpose_window_s=0.0, decode_queue=DecodeQueue.SEQUENCES)
    assert policy.workers(COST).max_stall_s is None
    assert policy.pools(PoolPolicy()) == PoolPolicy(repurpose_window_s=None, decode_queue=DecodeQueue.SEQUENCES)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"watermark": 1.0}, "watermark"),
        ({"watermark": math.nan}, "watermark must be finite"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"scheduling": Scheduling.MLFQ, "quantum_ratio": 1.0}, "quantum_ratio"),
        ({"max_stall_s": 0.1, "decodes_pause": True}, "decodes_pause"),
        ({"repurpose_share": 0.0}, "repurpose_share"),
        ({"spare_slots": -1}, "spare_slots"),
    ],
)
def test_what_is_wrong_is_refused_at_once(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(USUAL_POLICY, **changes)


def test_a_policy_survives_json() -> None:
    policy = ServingPolicy(
        scheduling=Scheduling.MLFQ, when_full=WhenFull.PROACTIVE, starve_limit_s=0.0, chunk_tokens=512
    )
    adapter = TypeAdapter(ServingPolicy)
    assert adapter.validate_json(adapter.dump_json(policy)) == policy
    assert policy.workers(COST).swap == SwapPolicy(WhenFull.PROACTIVE)


def test_policies_change_what_is_simulated() -> None:
    """MLFQ lets prompts pass answers that are long already; reserved blocks are never lost, and let fewer requests in."""
    crowded = replace(CONV, rate=6.0, policy=ServingPolicy(max_num_seqs=16))
    fcfs = simulate(crowded)
    mlfq = simulate(replace(crowded, policy=ServingPolicy(max_num_seqs=16, scheduling=Scheduling.MLFQ)))
    assert fcfs.failed == mlfq.failed == 0
    assert mlfq.latencies_s["ttft"]["p50"] < fcfs.latencies_s["ttft"]["p50"]
    usual, reserved = (
        simulate(replace(crowded, policy=ServingPolicy(reserve=reserve)))
        for reserve in (Reserve.ON_DEMAND, Reserve.MAX_TOKENS)
    )
    assert (reserved.failed, reserved.preemptions) == (0, 0)
    assert reserved.latencies_s["ttft"]["p90"] > usual.latencies_s["ttft"]["p90"]


def test_the_published_times_charge_no_service() -> None:
    """MLFQ needs costs of one request's iterations, which the published model has not."""
    case = replace(CONV, decode_model=DecodeModel.PUBLISHED, policy=ServingPolicy(scheduling=Scheduling.MLFQ))
    with pytest.raises(ValueError, match="take the decode model honest"):
        simulate(case)


def test_routing_options_hold_in_the_published_world_as_well() -> None:
    """Where they are not given it keeps its own."""
    published = replace(CONV, decode_model=DecodeModel.PUBLISHED, rate=4.0)
    same = replace(published, policy=ServingPolicy(decode_queue=DecodeQueue.SEQUENCES, break_even=False))
    assert replace(simulate(same), case=published) == simulate(published)
