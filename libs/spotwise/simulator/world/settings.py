"""What can be chosen about a simulated world: settings of the roles, and how the world around them behaves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from spotwise.core.cluster.policy import PoolPolicy
from spotwise.core.members import NEWS_INTERVAL_S, Pool
from spotwise.core.scheduler import SchedulerLimits
from spotwise.core.worker.policy import Reserve, WorkerPolicy
from spotwise.simulator.costs.hardware import LanguageModel, MachineType
from spotwise.simulator.world.interrupted_prompts import InterruptedPrompts

#: No message is lost: no member counts as lost for its silence, and no request is rejected for waiting.
PATIENT = SchedulerLimits(
    max_queued=2**62,
    max_queue_s=math.inf,
    reservation_timeout_s=math.inf,
    lease_s=math.inf,
    member_timeout_s=math.inf,
)

#: Traces say nothing of what prompts have in common.
WITHOUT_PREFIXES = PoolPolicy(prefix_spans=0)


@dataclass(frozen=True, slots=True)
class SimulatedMachine:
    """A machine to be, and the pool that it starts in."""

    machine_type: MachineType
    home_pool: Pool


@dataclass(frozen=True, slots=True)
class Overlap:
    """How a prompt's KV leaves while the prompt is computed.

    Attributes:
        crossover_tokens: a part of a prompt with at least so many tokens is sent layer by layer, each while the next is
            computed; a smaller one when it is complete (Splitwise, section 4.4: 512 on H100). `None` sends nothing early.
    """

    crossover_tokens: int | None = 512


@dataclass(frozen=True, slots=True)
class WorldSettings:
    """Settings that hold for the whole world.

    Attributes:
        model: whose weights and KV fill the machines.
        policy: of every worker; its `max_in_flight` are the stages of each machine's pipeline. Prefix caching is off: traces
            say nothing of what prompts have in common.
        limits: of the scheduler's patience.
        pools: how the scheduler chooses machines, and when it gives one another home. Prefixes are not remembered.
        max_new_tokens: what every request asks for at most; the scheduler and the workers know this bound and not the answer's
            true length.
        knows_output: an oracle instead: every request asks for exactly what it will get, and all of it is reserved (the
            published simulator).
        memory_share: of a machine's memory, what weights and KV may take up.
        kv_block_size: tokens of a block.
        overlap: of transfers with prefill.
        control_latency_s: of every message between members, the request and the client's tokens included.
        link_latency_s: of a transfer, after its last byte.
        private_link_bytes_per_s: every transfer has a link of this rate for itself, whatever the machines have (the published
            simulator); `None` lets transfers share the links of their machines.
        heartbeat_s: between two heartbeats of a machine whose load changed.
        news_interval_s: one more heartbeat whenever prompts were computed, so that empty prompt queues are known, but
            so long after the last one; where it is as long as `heartbeat_s`, there are no more than these.
        through_scheduler: requests come by the cluster's scheduler. Without, they go straight to the one machine of the world,
            so that the worker alone decides whose turn it is (`direct_scheduler.py`).
        interrupted: prompts that are interrupted at the end of a quantum, and computed again; `None` for none.
        elastic: machines join and leave while the world runs, and a request gets another attempt where it loses its machine, or
            where there is none.
        beats_after_endings: and one whenever a sequence has ended, so that its free blocks are known.
        tick_s: between two ticks of the scheduler.
        counted_steps: decode iterations of one order, and of one event, at most; the more the faster, and nothing else differs.
            Where the order of sequences may change, KV moves, or several iterations are in flight, each is an order of its own.
    """

    model: LanguageModel
    policy: WorkerPolicy = field(default_factory=lambda: WorkerPolicy(prefix_caching=False))
    limits: SchedulerLimits = PATIENT
    pools: PoolPolicy = WITHOUT_PREFIXES
    max_new_tokens: int = 2048
    knows_output: bool = False
    memory_share: float = 0.9
    kv_block_size: int = 16
    overlap: Overlap = Overlap()
    control_latency_s: float = 0.0005
    link_latency_s: float = 0.00001
    private_link_bytes_per_s: float | None = None
    heartbeat_s: float = 0.25
    news_interval_s: float = NEWS_INTERVAL_S
    beats_after_endings: bool = False
    tick_s: float = 0.2
    counted_steps: int = 64
    through_scheduler: bool = True
    interrupted: InterruptedPrompts | None = None
    elastic: bool = False

    def __post_init__(self) -> None:
        if self.policy.prefix_caching:
            raise ValueError("a simulated worker has no prefix cache: its policy must have prefix_caching=False")
        latencies = (self.control_latency_s, self.link_latency_s, self.news_interval_s)
        if min(latencies) < 0 or min(self.heartbeat_s, self.tick_s) <= 0:
            raise ValueError("latencies are at least 0, periods above 0")
        if self.private_link_bytes_per_s is not None and self.private_link_bytes_per_s <= 0:
            raise ValueError("private_link_bytes_per_s must be above 0; None shares the machines' links")
        if self.max_new_tokens < 1:
            raise ValueError("max_new_tokens must be at least 1")

    @property
    def worker_policy(self) -> WorkerPolicy:
        """The policy of every worker: with an oracle, what a request will need is reserved."""
        reserve = Reserve.MAX_TOKENS if self.knows_output else self.policy.reserve
        one_by_one = self.counted_steps == 1 or self.policy.is_ranked or self.policy.max_in_flight > 1
        return replace(self.policy, reserve=reserve, counted_steps=None if one_by_one else self.counted_steps)

    def requested_tokens(self, output_tokens: int) -> int:
        """Return the `max_tokens` of a request with such an answer; never less than the answer has."""
        return output_tokens if self.knows_output else max(self.max_new_tokens, output_tokens)
