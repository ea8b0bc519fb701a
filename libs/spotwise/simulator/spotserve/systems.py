"""The systems that SpotServe's paper compares (sections 6.1, 6.3; artifact), and their hardware: g4dn.12xlarge has 4 T4, 50
Gbit/s of network, 9.5 Gbit/s to EBS (AWS); the artifact takes 50 Gbit/s and adds 0.5 s to a switch. Only `restart_s` is
fitted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.instances import ExecutionCost
from spotwise.core.parallel.memory import MemoryLimit
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.parallel.policy import Latency, Phases


class Reaction(StrEnum):
    """How a system reacts to a fleet change."""

    MIGRATE = "migrate"  #: reconfigure with the data on the devices; progress is kept
    RESTART = "restart"  #: reconfigure; everything is reloaded and recomputed
    REROUTE = "reroute"  #: pipelines of one shape start and fail; a lost one's work is recomputed


class BatchFormation(StrEnum):
    """When requests join a batch."""

    BOUND = "bound"  #: as in the artifact: sent early to the pipeline with fewest, which takes a power of two of them
    STATIC = "static"  #: from one queue, when the batch before has ended
    ITERATION = "iteration"  #: between two iterations, where KV blocks are free


@dataclass(frozen=True, slots=True)
class SpotSystem:
    """A system.

    Attributes:
        adapts: chooses configurations; otherwise P, M and B are those of `shape` or of the largest fleet, and D is what fits.
        shape: fixed P, M and B; `None`: chosen once, for the largest fleet of the trace.
        matches: devices are matched with positions; otherwise positions are filled in order of instances.
        progressive: pipelines start as their stages arrive, within a memory bound.
        recovers: KV migrates, tokens are kept, and stops are just in time.
        forms_ahead: new pipelines get their weights while the old ones decode, and then only KV moves, as in the mesh
            (ADR 31); where the notice is too short for that, as SpotServe does.
        keeps: keeps its configuration until another one is needed or pays for the change, by the planner's own rule
            (`core.fleet.kept_choice`); otherwise it has the best one at any time (SpotServe).
        phases: phases may be disaggregated.
        latency: what its optimizer minimises.
    """

    name: str
    reaction: Reaction = Reaction.MIGRATE
    adapts: bool = True
    shape: ParallelConfig | None = None
    matches: bool = True
    progressive: bool = True
    recovers: bool = True
    forms_ahead: bool = False
    keeps: bool = False
    phases: Phases = Phases.TOGETHER
    latency: Latency = Latency.EXECUTION
    batching: BatchFormation = BatchFormation.BOUND

    @property
    def uses_roles(self) -> bool:
        """Whether the mesh's roles make its batches: the artifact has neither iteration-level batching nor disaggregated
        phases."""
        return self.batching is BatchFormation.ITERATION or self.phases is not Phases.TOGETHER


SPOTSERVE = SpotSystem("SpotServe")
REPARALLELIZATION = SpotSystem("Reparallelization", Reaction.RESTART, recovers=False)
REROUTING = SpotSystem("Rerouting", Reaction.REROUTE, adapts=False, recovers=False)


@dataclass(frozen=True, slots=True)
class SpotModel:
    """A language model on one kind of instance.

    Attributes:
        cost: seconds of a batch on a configuration.
        memory: decides which pipelines its devices have memory for.
        max_batch: the largest B.
        devices: accelerators of an instance.
        device_bytes: memory of each, as far as `memory` counts bytes.
        searched_as_published: P divides the padded layers, and configurations are chosen with smaller B as well and run with
            the largest (artifact); otherwise any P and M that the model can have, with the largest B.
    """

    shape: ModelShape
    cost: ExecutionCost
    memory: MemoryLimit
    max_batch: int = 4
    devices: int = 4
    device_bytes: int = 1
    searched_as_published: bool = True


@dataclass(frozen=True, slots=True)
class SpotSurroundings:
    """The environment that all systems share.

    Attributes:
        grace_s: from a notice to the preemption; 0: without notice. 30 s in the paper.
        announced_s: from the announcement of an instance until it is up; 30 s in the artifact.
        gather_s: at most, that SpotServe delays a reconfiguration to cover more events; as the mesh does.
        slowdown: a batch's seconds over the profile's.
        restart_s: to restart engines, without weights (fitted: 20 s).
        switch_s: to rebuild groups in a migration (artifact: 0.5 s).
        move_s: seconds of a request's move where new pipelines are formed ahead, without its bytes.
        network_bytes_per_s: bandwidth of an instance, each way.
        local_bytes_per_s: within an instance, of a device.
        storage_bytes_per_s: bandwidth of an instance from weight storage.
        buffer_bytes: U_max, of transient buffers on an instance.
        window_s: over which the arrival rate is measured where none is given.
    """

    grace_s: float = 30.0
    announced_s: float = 30.0
    gather_s: float = 0.2
    slowdown: float = 1.0
    restart_s: float = 20.0
    switch_s: float = 0.5
    move_s: float = 0.1
    network_bytes_per_s: float = 5e9
    local_bytes_per_s: float = 10e9
    storage_bytes_per_s: float = 9.5e9 / 8
    buffer_bytes: int = 1 << 30
    window_s: float = 30.0

    def __post_init__(self) -> None:
        spans = (
            self.grace_s,
            self.announced_s,
            self.gather_s,
            self.restart_s,
            self.switch_s,
            self.move_s,
            self.window_s,
        )
        rates = (self.network_bytes_per_s, self.local_bytes_per_s, self.storage_bytes_per_s, self.buffer_bytes)
        if min(spans) < 0 or min(rates) <= 0 or self.slowdown <= 0:
            raise ValueError(f"spans must be at least 0, rates and the slowdown above 0: {self}")
