"""The systems that SpotServe's paper compares (sections 6.1 and 6.3; its artifact), and what they run on.

Constants: g4dn.12xlarge has 4 T4, 50 Gbit/s of network and 9.5 Gbit/s to EBS (AWS, instance types); the artifact takes 50
Gbit/s and adds 0.5 s to a switch. Only `restart_s` is fitted to the paper's figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.execution import ExecutionCost
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.parallel.policy import Latency, Phases


class Reaction(StrEnum):
    """What a system does when its fleet changes."""

    MIGRATE = "migrate"  #: another configuration, with what is on the devices; progress is kept
    RESTART = "restart"  #: another configuration, everything loaded and computed anew
    REROUTE = "reroute"  #: pipelines of one shape come and go; what was on a lost one is computed anew


class BatchFormation(StrEnum):
    """When requests join a batch."""

    BOUND = "bound"  #: as in the artifact: sent early to the pipeline with fewest, which takes a power of two of them
    STATIC = "static"  #: from one queue, when the batch before has ended
    ITERATION = "iteration"  #: between two iterations, where there is room


@dataclass(frozen=True, slots=True)
class SpotSystem:
    """A system.

    Attributes:
        name: for people.
        reaction: what it does when its fleet changes.
        adapts: whether it chooses a configuration; otherwise P, M and B are those of `shape` or of the largest fleet, and D is
            what fits.
        shape: P, M and B where they are fixed; `None`: chosen once, for the largest fleet of the trace.
        matches: whether devices are matched with positions; otherwise positions are filled in the order of instances.
        progressive: whether pipelines begin as their stages come, within a bound of memory.
        recovers: whether KV moves and tokens are kept, and stops are just in time.
        phases: whether phases may be apart.
        latency: what its optimizer makes least.
        batching: when requests join a batch.
    """

    name: str
    reaction: Reaction = Reaction.MIGRATE
    adapts: bool = True
    shape: ParallelConfig | None = None
    matches: bool = True
    progressive: bool = True
    recovers: bool = True
    phases: Phases = Phases.TOGETHER
    latency: Latency = Latency.EXECUTION
    batching: BatchFormation = BatchFormation.BOUND

    @property
    def uses_roles(self) -> bool:
        """Whether the mesh's roles make its batches; the artifact knows neither batches made anew nor phases apart."""
        return self.batching is BatchFormation.ITERATION or self.phases is not Phases.TOGETHER


SPOTSERVE = SpotSystem("SpotServe")
REPARALLELIZATION = SpotSystem("Reparallelization", Reaction.RESTART, recovers=False)
REROUTING = SpotSystem("Rerouting", Reaction.REROUTE, adapts=False, recovers=False)
#: On a fleet that stays; nothing ever happens to it.
ON_DEMAND = SpotSystem("on-demand")
#: As the paper takes one thing after another away.
ABLATION = (
    SPOTSERVE,
    SpotSystem("without controller", adapts=False),
    SpotSystem("without planner", adapts=False, progressive=False),
    SpotSystem("without arranger", adapts=False, progressive=False, recovers=False),
    SpotSystem("without mapper", adapts=False, progressive=False, recovers=False, matches=False),
)


@dataclass(frozen=True, slots=True)
class SpotModel:
    """A language model on one kind of instance.

    Attributes:
        shape: its layers and bytes.
        cost: what a batch takes on a configuration.
        least_devices: the fewest devices of a pipeline, by memory.
        max_batch: the largest B.
        devices: accelerators of an instance.
    """

    shape: ModelShape
    cost: ExecutionCost
    least_devices: int
    max_batch: int = 4
    devices: int = 4


@dataclass(frozen=True, slots=True)
class SpotSurroundings:
    """What all systems run on.

    Attributes:
        grace_s: from a notice to the end of an instance; 0: without notice. 30 s in the paper.
        announced_s: before an instance is there, that it is known to come; 30 s in the artifact.
        gather_s: that SpotServe waits with a change for what else happens, at most; as the mesh does.
        slowdown: what a batch takes, over what the profile says.
        restart_s: to start engines anew, weights not counted (fitted: 20 s).
        switch_s: to build groups anew in a migration (artifact: 0.5 s).
        network_bytes_per_s: of an instance, each way.
        local_bytes_per_s: within an instance, of a device.
        storage_bytes_per_s: of an instance, from where weights are kept.
        buffer_bytes: U_max, of transient buffers on an instance.
        window_s: over which the arrival rate is measured where none is given.
    """

    grace_s: float = 30.0
    announced_s: float = 30.0
    gather_s: float = 0.2
    slowdown: float = 1.0
    restart_s: float = 20.0
    switch_s: float = 0.5
    network_bytes_per_s: float = 5e9
    local_bytes_per_s: float = 10e9
    storage_bytes_per_s: float = 9.5e9 / 8
    buffer_bytes: int = 1 << 30
    window_s: float = 30.0

    def __post_init__(self) -> None:
        spans = (self.grace_s, self.announced_s, self.gather_s, self.restart_s, self.switch_s, self.window_s)
        rates = (self.network_bytes_per_s, self.local_bytes_per_s, self.storage_bytes_per_s, self.buffer_bytes)
        if min(spans) < 0 or min(rates) <= 0 or self.slowdown <= 0:
            raise ValueError(f"spans must be at least 0, rates and the slowdown above 0: {self}")
