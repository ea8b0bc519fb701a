"""What a migration plan says: transfers in order, memory that comes free, and when each stage may start.

Law: a plan is data. Whoever carries it out keeps to the order of its transfers and to what each waits for; its times are
predictions. A link takes the transfers that go over it in the plan's order. A relayed transfer waits until its source has the
bytes. A transfer with `after_step` waits until its target's instance has freed its old memory of the steps up to that one. That
memory is free once the instance has sent all that it sends in those steps. In whatever time things then happen, no instance
has more in its receive buffer than the policy allows.

Source: SpotServe (Miao et al., 2024), section 4.2.

Invariants: a plan's times and bytes are at least 0; steps of transfers ascend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spotwise.core.migration.deployment import Device, RunningRequest
from spotwise.core.migration.mapping.shares import Part, Share
from spotwise.core.migration.planning.link_times import Links, paper_seconds
from spotwise.core.parallel.config import ParallelConfig


@dataclass(frozen=True, slots=True)
class PlanPolicy:
    """How to migrate.

    Attributes:
        progressive: a stage may start before everything has moved.
        buffer_bytes: what any instance's transient receive buffer may be (U_max); `None`: whatever it takes.
        restart: load everything anew from storage, and compute all requests again.
        stage_s: seconds that a stage of the new configuration takes for an iteration; 0 where unknown: then a pipeline
            pauses until its last stage may start.
    """

    progressive: bool = True
    buffer_bytes: int | None = None
    restart: bool = False
    stage_s: float = 0.0

    def __post_init__(self) -> None:
        if self.buffer_bytes is not None and self.buffer_bytes < 1:
            raise ValueError("buffer_bytes must be at least 1; leave it out for no limit")
        if self.stage_s < 0:
            raise ValueError("stage_s must be at least 0")


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes that go from one place to one device. Times are from the plan's start, as predicted; the order is what counts.

    Attributes:
        step: number of the step it belongs to; steps are in order.
        part: what; of KV, in the first of its layers.
        layers: so many, from that one on; 1 of weights.
        share: from where to where of it.
        byte_count: bytes.
        source: who sends; `None`: it is read from storage.
        target: who receives.
        is_relayed: the source gets it by an earlier transfer of this step, and passes it on.
        after_step: it may start when the target's instance has freed its old memory of steps up to this one; `None`: at once.
        start_s: when it starts.
        end_s: when it is there.
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
    """Old memory that a device has no use for after a step.

    Attributes:
        step: after which it goes, once all that the device's instance sends in steps up to this one is sent; `None`: before
            the first.
        device: whose.
        byte_count: bytes of it.
        is_kv: KV, not weights.
        at_s: when, as predicted.
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
        before: the configuration that stands.
        config: the one that shall.
        policy: how it was planned.
        links: what carries bytes.
        transfers: in order.
        freed: old memory, by step.
        stage_start_s: when each (pipeline, stage) may start; 0 where a pipeline runs on.
        pause_s: of each new pipeline.
        kv_done_s: when the last KV is there; 0 where none moves.
        done_s: when everything is there.
        moved_bytes: from device to device.
        storage_bytes: from storage.
        kept_bytes: that stay where they are, weights and KV.
        naive_bytes: what a restart loads: all weights of all positions.
        peak_buffer_bytes: the largest transient receive buffer of each instance that gets something.
        recomputed: requests that go on without their KV.
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
