"""What configuration groups are."""

from __future__ import annotations

import pytest

from spotwise.core.members import Pool
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.planner.fleet_planning import config_of
from spotwise.core.reshape_messages import DeviceGroup


def group(number: int, stages: int, shards: int, pool: Pool = Pool.MIXED) -> DeviceGroup:
    """A group of devices of its own."""
    devices = tuple(f"d-{number}-{place}" for place in range(stages * shards))
    return DeviceGroup(f"w-{number}", pool, stages, shards, devices)


@pytest.mark.parametrize(
    ("groups", "config"),
    [
        ([], None),
        ([group(0, 1, 1)], ParallelConfig(1, 1, 1)),
        ([group(0, 2, 3), group(1, 2, 3)], ParallelConfig(2, 2, 3)),
        ([group(0, 1, 2), group(1, 2, 1)], None),
        ([group(0, 1, 1, Pool.PROMPT), group(1, 1, 1, Pool.TOKEN)], ParallelConfig(1, 1, 1, prompt_data=1)),
        ([group(0, 1, 1, Pool.PROMPT)], None),
    ],
)
def test_groups_of_one_shape_are_a_configuration(groups: list[DeviceGroup], config: ParallelConfig | None) -> None:
    """Those of unequal shapes are none, and neither are prompt groups alone."""
    assert config_of(groups) == config
