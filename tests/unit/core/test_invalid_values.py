"""Values that no deployment, policy or profile may have are refused where they are made, by the field's name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.costs.cost_model import LinearIterationCost, LinkCost
from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.kv.swap import SwapPolicy
from spotwise.core.lives.survival import Life, PiecewiseHazard
from spotwise.core.migration.deployment import Deployment, Device, Instance
from spotwise.core.migration.fleet.changes import FleetLimits
from spotwise.core.migration.interruption.arrangement import DecodePace
from spotwise.core.migration.planning.plan import PlanPolicy
from spotwise.core.parallel.arrivals import ArrivalWindow
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.layer_tables import LayerTables
from spotwise.core.parallel.memory import RealMemory
from spotwise.core.parallel.policy import Policy, ServiceDemand
from spotwise.core.parallel.scaled_cost import ScaledCost
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.worker.policy import Batching, Reserve, Scheduling, WorkerPolicy
from spotwise.core.worker.scheduling.mlfq import MlfqPolicy
from tests.unit.core.parallel.builders import MODEL, scaled
from tests.unit.core.parallel.profiles import round_profile

CONFIG = ParallelConfig(1, 2, 1)
FIRST, SECOND = CONFIG.positions()
OUTSIDE = next(iter(set(ParallelConfig(2, 2, 1).positions()) - set(CONFIG.positions())))
HERE, THERE = Device("a", 0), Device("a", 1)
TABLES = LayerTables.from_profile(round_profile())
COST = LinearIterationCost(0.1, 0.01, 0.0, 0.0, 0.0)
LIMITS = BatchLimits(4, 12)
LINK = LinkCost(0.0, 1e18)


def deployed(*instances: Instance, **positions: object) -> Deployment:
    return Deployment(CONFIG, instances, **positions)  # type: ignore[arg-type]


CASES: dict[str, tuple[Callable[[], object], str]] = {
    "no devices": (lambda: Instance("a", 0), "1 to 8 devices"),
    "an instance twice": (lambda: deployed(Instance("a", 1), Instance("a", 2)), "same id"),
    "a position on no instance": (lambda: deployed(Instance("b", 1), positions={HERE: FIRST}), "no listed instance"),
    "two devices in a position": (
        lambda: deployed(Instance("a", 2), positions={HERE: FIRST, THERE: FIRST}),
        "two devices",
    ),
    "a position outside": (lambda: deployed(Instance("a", 2), positions={HERE: OUTSIDE}), "positions outside"),
    "too few devices": (lambda: Deployment.in_order(CONFIG, (Instance("a", 1),)), "needs 2 devices; there are 1"),
    "only devices that leave": (lambda: Deployment.in_order(CONFIG, (Instance("a", 2, 5.0),)), "there are 0"),
    "no pipeline": (lambda: ParallelConfig(0, 1, 1), "at least 1"),
    "no configuration": (lambda: ParallelConfig.parse("two pipelines"), "no configuration"),
    "more layers than padded": (lambda: replace(TABLES, layers=TABLES.padded_layers + 1), "padding"),
    "other degrees for steps": (lambda: replace(TABLES, step_layer_s={}), "tensor degrees"),
    "a negative hop": (lambda: replace(TABLES, prompt_hop_s=-1.0), "less than 0 s"),
    "no micro-batch": (lambda: replace(TABLES, step_micro_batches=0), "micro-batch"),
    "no degree to try": (lambda: replace(Policy.spotserve(8), tensor_degrees=()), "tensor_degrees"),
    "a negative load": (lambda: ServiceDemand(-1.0), "at least 0"),
    "answers of no token": (lambda: ServiceDemand(1.0, output_tokens=0), "1 token"),
    "more memory than there is": (lambda: RealMemory(MODEL, 10, usable_share=1.1), "usable"),
    "a negative buffer": (lambda: RealMemory(MODEL, 10, buffer_bytes=-1), "memory sizes"),
    "a negative fixed part": (lambda: scaled(unsharded_s=-1.0), "less than 0 s"),
    "costs without context": (lambda: ScaledCost(COST, MODEL, LINK, LINK, context_tokens=0), "at least 1 token"),
    "no rows": (lambda: BatchLimits(0, 1), "at least 1"),
    "no prompt tokens": (lambda: BatchLimits(1, 0), "at least 1"),
    "fewer tokens than rows": (
        lambda: BatchLimits(max_num_seqs=8, max_num_batched_tokens=7),
        "max_num_batched_tokens is 7 and max_num_seqs 8",
    ),
    "parts of prompts beside decodes that pause": (
        lambda: BatchLimits(8, 100, 64, decodes_pause=True),
        "decodes_pause needs whole prompts",
    ),
    "a bound of time beside decodes that pause": (
        lambda: WorkerPolicy(BatchLimits(decodes_pause=True), max_stall_s=0.06),
        "decodes_pause needs max_stall_s=None",
    ),
    "no length of a window": (lambda: ArrivalWindow(0.0, least_span_s=0.0), "`least_span_s`"),
    "no least length of a window": (lambda: ArrivalWindow(30.0, least_span_s=0.0), "`least_span_s`"),
    "a window below its least length": (lambda: ArrivalWindow(3.0, least_span_s=5.0), "`least_span_s`"),
    "no speed of a link": (lambda: LinkCost(0.0, 0.0), "link"),
    "a cost below nothing": (lambda: LinearIterationCost(0.0, 0.0, 0.0, -1.0, 0.0), "less than 0 s"),
    "a hazard from a later age on": (lambda: PiecewiseHazard((1.0,), (0.1,)), "first bound is 0"),
    "ages that do not ascend": (lambda: PiecewiseHazard((0.0, 0.0), (0.1, 0.1)), "ascend"),
    "a life that ends before it is seen": (lambda: Life(1.0, True, 2.0), "observed from an age"),
    "queues without a cost": (
        lambda: WorkerPolicy(LIMITS, scheduling=Scheduling.MLFQ, mlfq=MlfqPolicy(0.1)),
        "scheduling=mlfq",
    ),
    "counted steps of ranked sequences": (
        lambda: WorkerPolicy(LIMITS, scheduling=Scheduling.PRIORITY, counted_steps=2),
        "counted_steps",
    ),
    "ranked request-level batches": (
        lambda: WorkerPolicy(
            LIMITS,
            Reserve.MAX_TOKENS,
            scheduling=Scheduling.MLFQ,
            mlfq=MlfqPolicy(0.1),
            cost=COST,
            batching=Batching.REQUEST_LEVEL,
        ),
        "batching=request_level",
    ),
}


#: One field that is out of its range, by what is made of it.
OUT_OF_RANGE: dict[type, list[dict[str, object]]] = {
    WorkerPolicy: [
        {"watermark": 1.0},
        {"watermark": -0.1},
        {"max_preemptions": 0},
        {"max_in_flight": 0},
        {"batching": Batching.REQUEST_LEVEL},
        {"preempt_after_s": -1.0},
        {"counted_steps": 0},
        {"counted_steps": 2, "max_in_flight": 2},
        {"max_stall_s": 0.0},
        {"context_parity": 0.0},
    ],
    PoolPolicy: [
        {"max_pending_prompt_tokens": -1},
        {"max_remaining_tokens": -1},
        {"prefix_spans": -1},
        {"repurpose_share": 0.0},
        {"repurpose_share": 1.1},
        {"repurpose_window_s": 0.0},
        {"interruption_s": -0.5},
        {"interruption_s": math.inf},
        {"token_s": 0.0},
    ],
    FleetPolicy: [
        {"window_s": 0.0},
        {"headroom": 0.0},
        {"decide_s": -1.0},
        {"hold_s": math.nan},
        {"gain": 1.0},
        {"budget_per_h": -1.0},
        {"budget_per_h": math.inf},
        {"on_demand_floor": -1},
        {"spare_instances": -1},
        {"latency_target_s": -1.0},
        {"latency_factor": 0.9},
        {"latency_factor": math.inf},
        {"latency_slack": -0.1},
        {"late_factor": 0.5},
        {"release_notice_s": -1.0},
    ],
    SwapPolicy: [{"spare_slots": -1}],
    MlfqPolicy: [
        {"first_quantum_s": 0.0},
        {"first_quantum_s": math.nan},
        {"quantum_ratio": 1.0, "first_quantum_s": 1.0},
        {"queues": 0, "first_quantum_s": 1.0},
        {"starve_limit_s": 0.0, "first_quantum_s": 1.0},
    ],
    Policy: [{"batch_sizes": ()}, {"pipeline_degrees": (0, 1)}, {"latency_slack": -0.1}, {"spare_instances": -1}],
    FleetLimits: [{"retry_s": -1.0}],
    PlanPolicy: [{"buffer_bytes": 0}, {"stage_s": -1.0}],
    DecodePace: [{"step_s": 0.0, "until_boundary_s": 0.0}, {"until_boundary_s": -0.1, "step_s": 1.0}],
}


@pytest.mark.parametrize(("made", "fields"), [(made, each) for made, all_of in OUT_OF_RANGE.items() for each in all_of])
def test_a_field_out_of_its_range_is_refused_by_name(made: type, fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        made(**fields)


@pytest.mark.parametrize("name", CASES)
def test_an_invalid_value_is_refused_by_name(name: str) -> None:
    make, message = CASES[name]
    with pytest.raises(ValueError, match=message):
        make()


def test_devices_that_stay_fill_the_positions_in_order() -> None:
    deployment = Deployment.in_order(CONFIG, (Instance("gone", 2, 5.0), Instance("a", 3)))
    assert deployment.positions == {HERE: FIRST, THERE: SECOND}
