"""A plan as lines of text."""

from __future__ import annotations

from spotwise.cli.plan.picture import lanes
from spotwise.core.migration.deployment import Deployment, Device, Instance, RunningRequest
from spotwise.core.migration.mapping.mapper import map_devices
from spotwise.core.migration.planning.link_times import Links
from spotwise.core.migration.planning.plan import MigrationPlan
from spotwise.core.migration.planning.planner import plan_migration
from spotwise.core.parallel.config import ParallelConfig, Position
from spotwise.core.parallel.model_shape import ModelShape

#: 100 bytes take 4 s between instances.
LINKS = Links(within_bytes_per_s=100.0, between_bytes_per_s=25.0, storage_bytes_per_s=5.0)
MODEL = ModelShape("small", 4, 8, layer_bytes=100, embedding_bytes=0, head_bytes=0, kv_layer_token_bytes=5)
STAGES = ParallelConfig.parse("1,2,1,1")


def _plan(going: str, coming: str) -> MigrationPlan:
    """Stage 1 is on an instance that goes, and another takes its place; 100 bytes of KV, two layers of 100."""
    instances = (Instance("i1", 1), Instance(going, 1, deadline_s=60.0), Instance(coming, 1))
    positions = {Device("i1", 0): Position(0, 0, 0), Device(going, 0): Position(0, 1, 0)}
    before = Deployment(STAGES, instances, positions, {0: (RunningRequest("r", 10),)})
    return plan_migration(map_devices(before, STAGES, MODEL), MODEL, LINKS)


def test_links_are_shown_over_time_and_stages_where_they_start() -> None:
    """KV for a third of the time, then weights; instances in the order of their numbers."""
    assert lanes(_plan("i10", "i2"), columns=12).splitlines() == [
        "            0 s  12.00 s",
        "i2 down     kkkkkwwwwwww",
        "i10 up      kkkkkwwwwwww",
        "pipeline 0  0..........1",
    ]


def test_what_does_not_fit_a_screen_is_counted() -> None:
    assert lanes(_plan("i10", "i2"), columns=12, most_links=1).splitlines()[1:3] == [
        "i2 down     kkkkkwwwwwww",
        "1 more",
    ]
