"""A migration plan: ordered transfers, memory to free, and stage starts (SpotServe, Miao et al., 2024, section 4.2).

Law: a plan is data; its executor keeps the order of transfers on each link and what each waits for; its times are predictions.
A relayed transfer waits until its source has the bytes. A transfer with `after_step` waits until its target's instance has
freed its old memory of the steps up to that one, which it can once it has sent all that it sends in those steps.
Whatever the actual times, no instance's receive buffer exceeds the policy's limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spotwise.core.migration.deployment import Device, RunningRequest
from spotwise.core.migration.mapping.parts import Part
from spotwise.core.migration.planning.link_times import Links, paper_seconds
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.shares import Share


@dataclass(frozen=True, slots=True)
class PlanPolicy:
    """How to migrate.

    Attributes:
        progressive: a stage may start before everything has moved.
        buffer_bytes: U_max, limit of an instance's transient receive buffer; `None` for no limit.
        restart: load everything from storage, and recompute all requests.
        stage_s: seconds of a new stage's iteration; 0 where unknown: then a pipeline pauses until its last stage may start.
        shares_reads: weights that no device holds are read from storage once, by the receivers in turn, and passed on, where
            the network is no slower than storage; else each instance reads its own. A restart shares nothing.
    """

    progressive: bool = True
    buffer_bytes: int | None = None
    restart: bool = False
    stage_s: float = 0.0
    shares_reads: bool = True

    def __post_init__(self) -> None:
        if self.buffer_bytes is not None and self.buffer_bytes < 1:
            raise ValueError("buffer_bytes must be at least 1; leave it out for no limit")
        if self.stage_s < 0:
            raise ValueError("stage_s must be at least 0")


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes from one place to one device, in ascending steps. Times are predicted, from the plan's start, the end at arrival.

    Attributes:
        part, layers: what moves (of KV, in the first of its layers), and the number of layers from there on; 1 of weights.
        source: the sending device; `None` for storage.
        is_relayed: the source gets the bytes by an earlier transfer of this step.
        after_step: starts when the target's instance has freed its old memory of steps up to this one; `None`: at once.
    """

    step: int
    part: Part
    layers: int
    share: Share
    byte_count: int
    source: Device | None
    target: Device
    is_relayed: bool
    after_step: int | None
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Freed:
    """Old memory that a device can free, as predicted at `at_s`.
    `step`: freed once the device's instance has sent all that it sends up to this step; `None`: before the first.
    """

    step: int | None
    device: Device
    byte_count: int
    is_kv: bool
    at_s: float


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """The plan. Times are in seconds from its start.

    Attributes:
        freed: old memory, by step.
        stage_start_s: when each (pipeline, stage) may start; 0 where a pipeline runs on.
        pause_s: pause of each new pipeline.
        kv_done_s, done_s: when the last KV (0 where none moves), and everything, has arrived.
        moved_bytes, storage_bytes: from device to device, and from storage.
        kept_bytes: weights and KV that stay on their device.
        naive_bytes: what a restart loads: all weights of all positions.
        peak_buffer_bytes: the largest transient receive buffer of each receiving instance.
        recomputed: requests that continue without their KV.
    """

    before: ParallelConfig
    config: ParallelConfig
    policy: PlanPolicy
    links: Links
    transfers: tuple[Transfer, ...]
    freed: tuple[Freed, ...]
    stage_start_s: Mapping[tuple[int, int], float]
    pause_s: Mapping[int, float]
    kv_done_s: float
    done_s: float
    moved_bytes: int
    storage_bytes: int
    kept_bytes: int
    naive_bytes: int
    peak_buffer_bytes: Mapping[str, int]
    recomputed: tuple[RunningRequest, ...]

    @property
    def longest_pause_s(self) -> float:
        """The longest pause of a pipeline."""
        return max(self.pause_s.values(), default=0.0)


def paper_migration_s(plan: MigrationPlan) -> float:
    """Return T_mig as SpotServe estimates it, from a plan's bytes (`link_times.paper_seconds`)."""
    return paper_seconds(plan.links, [(each.source, each.target, each.byte_count) for each in plan.transfers])
