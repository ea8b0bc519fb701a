"""Values that no deployment, policy or profile may have are refused where they are made, by the field's name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.costs.cost_model import LinearIterationCost
from spotwise.core.migration.deployment import Deployment, Device, Instance
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.layer_tables import LayerTables
from spotwise.core.parallel.policy import Policy
from spotwise.core.worker.policy import Batching, Reserve, Scheduling, WorkerPolicy
from spotwise.core.worker.scheduling.mlfq import MlfqPolicy
from tests.unit.core.parallel.profiles import round_profile

CONFIG = ParallelConfig(1, 2, 1)
FIRST, SECOND = CONFIG.positions()
OUTSIDE = next(iter(set(ParallelConfig(2, 2, 1).positions()) - set(CONFIG.positions())))
HERE, THERE = Device("a", 0), Device("a", 1)
TABLES = LayerTables.from_profile(round_profile())
COST = LinearIterationCost(0.1, 0.01, 0.0, 0.0, 0.0)
LIMITS = BatchLimits(4, 12)


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
    "a negative slack": (lambda: replace(Policy.spotserve(8), latency_slack=-0.1), "latency_slack"),
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


@pytest.mark.parametrize("name", CASES)
def test_an_invalid_value_is_refused_by_name(name: str) -> None:
    make, message = CASES[name]
    with pytest.raises(ValueError, match=message):
        make()


def test_devices_that_stay_fill_the_positions_in_order() -> None:
    """Devices of staying instances get the positions in order, those of leaving ones get none."""
    deployment = Deployment.in_order(CONFIG, (Instance("gone", 2, 5.0), Instance("a", 3)))
    assert deployment.positions == {HERE: FIRST, THERE: SECOND}
