"""SpotServe's own answers, for the published profiles."""

from __future__ import annotations

import os

import pytest

from spotwise.core.parallel.instances import InstanceType, Supply
from spotwise.core.parallel.memory import LeastDevices
from spotwise.core.parallel.optimizer import choose
from spotwise.core.parallel.policy import Policy, ServiceDemand
from tests.unit.core.parallel.profiles import published

pytestmark = pytest.mark.skipif("SPOTWISE_DATA" not in os.environ, reason="SPOTWISE_DATA names no folder with the data")

INSTANCES = (3, 4, 5, 6, 7, 8, 9, 10, 12)

Answer = tuple[str, float, float, bool]

SHORT_20B: list[Answer] = [
    ("1,3,4,4", 14.459, 0.277, False),
    ("1,2,8,4", 12.961, 0.309, False),
    ("1,2,8,4", 12.961, 0.309, False),
]

#: Model, its least P x M, the rate; per number of instances the configuration, l_exe, phi, and whether it is enough.
GOLDEN: dict[tuple[str, int, float], list[Answer | None]] = {
    ("h6144", 12, 0.4): [
        *SHORT_20B,
        *[("2,3,4,4", 14.459, 0.553, True)] * 2,
        *[("2,2,8,4", 12.961, 0.617, True)] * 3,
        ("3,2,8,2", 12.116, 0.495, True),
    ],
    ("h6144", 12, 0.8): [
        *SHORT_20B,
        *[("2,3,4,4", 14.459, 0.553, False)] * 2,
        ("2,2,8,4", 12.961, 0.617, False),
        *[("3,3,4,4", 14.459, 0.830, True)] * 2,
        ("3,2,8,4", 12.961, 0.926, True),
    ],
    ("h7168", 16, 0.2): [
        None,
        *[("1,2,8,4", 17.751, 0.225, True)] * 2,
        *[("1,3,8,4", 17.498, 0.229, True)] * 2,
        *[("1,4,8,4", 17.383, 0.230, True)] * 3,
        ("1,6,8,4", 17.291, 0.231, True),
    ],
    ("6.7B", 4, 2.0): [
        ("3,1,4,4", 5.290, 2.268, True),
        ("4,1,4,4", 5.290, 3.025, True),
        ("5,1,4,2", 4.889, 2.045, True),
        ("6,1,4,2", 4.889, 2.455, True),
        ("7,1,4,2", 4.889, 2.864, True),
        ("8,1,4,2", 4.889, 3.273, True),
        ("9,1,4,2", 4.889, 3.682, True),
        ("5,2,4,2", 4.729, 2.114, True),
        ("6,2,4,2", 4.729, 2.537, True),
    ],
}

CELLS = [
    (*column, instances, answer)
    for column, answers in GOLDEN.items()
    for instances, answer in zip(INSTANCES, answers, strict=True)
]


@pytest.mark.parametrize(("model", "least_devices", "rate", "instances", "answer"), CELLS)
def test_the_published_optimizers_answers(
    model: str, least_devices: int, rate: float, instances: int, answer: Answer | None
) -> None:
    """Every cell: l_exe alone, B up to 4, P a divisor of the padded layers, all instances held serve."""
    tables = published(model)
    supply = Supply(InstanceType("g4dn", 4, 16 << 30, 1.9046, 3.912, tables), spot=instances, held_spot=instances)
    policy = Policy.spotserve(tables.padded_layers, max_tensor=tables.max_tensor)
    choice = choose(ServiceDemand(rate), [supply], LeastDevices(least_devices), policy)
    if answer is None:
        assert choice is None
        return
    assert choice is not None
    seconds, throughput = round(choice.execution_s, 3), round(choice.throughput, 3)
    assert (str(choice.config), seconds, throughput, choice.meets_demand) == answer
    assert choice.instances <= instances
