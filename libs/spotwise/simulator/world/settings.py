"""Settings of a simulated world: those of the roles, and the environment's behaviour."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field, replace

from spotwise.core.costs.cost_model import BatchShape, LinearIterationCost, TableIterationCost, pairs
from spotwise.core.messages.members import NEWS_INTERVAL_S, Pool
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.role import SchedulerLimits
from spotwise.core.worker.policy import Reserve, WorkerPolicy
from spotwise.core.worker.scheduling.mlfq import MlfqPolicy
from spotwise.simulator.costs.hardware import LanguageModel, MachineType

#: No message is lost: no member is declared lost for silence, and no request is rejected for waiting.
PATIENT = SchedulerLimits(
    max_queued=2**62,
    max_queue_s=math.inf,
    reservation_timeout_s=math.inf,
    lease_s=math.inf,
    member_timeout_s=math.inf,
)
#: Most traces lack prompt contents, so no prefixes are known.
WITHOUT_PREFIXES = PoolPolicy(prefix_spans=0)


@dataclass(frozen=True, slots=True)
class InterruptedPrompts:
    """Prompts interrupted at the end of a quantum and recomputed from the start in the next queue (MLFQ-preemption, FastServe,
    section 6.3): a series of prompts without answers, each as long as a queue's quantum allows, then the whole prompt in the
    first queue long enough for it.

    Attributes:
        cost: cost of the iterations.
        queues: queues with their quanta.
    """

    cost: LinearIterationCost | TableIterationCost
    queues: MlfqPolicy

    def lost_parts(self, prompt_tokens: int) -> tuple[int, ...]:
        """Return the tokens of a prompt that are computed and lost, by queue; a quantum too short for one token loses none."""
        parts = []
        for queue in range(1, self.queues.queues):
            quantum_s = self.queues.quantum_s(queue)
            if quantum_s >= self._prompt_s(prompt_tokens):
                break
            if part := bisect_right(range(1, prompt_tokens), quantum_s, key=self._prompt_s):
                parts.append(part)
        return tuple(parts)

    def _prompt_s(self, tokens: int) -> float:
        return self.cost.iteration_s(BatchShape(tokens, pairs(0, tokens)))


@dataclass(frozen=True, slots=True)
class Overlap:
    """Overlap of a prompt's KV hand-off with its prefill.

    Attributes:
        crossover_tokens: a chunk of at least as many tokens is sent layer by layer, each while the next is computed; a smaller
            one when it is complete (Splitwise, section 4.4: 512 on H100). `None` sends nothing early.
        layers: `None`: the model's.
    """

    crossover_tokens: int | None = 512
    layers: int | None = None


@dataclass(frozen=True, slots=True)
class SimulatedMachine:
    """A machine's hardware, and the pool that it starts in; `policy` of its worker and `overlap` of its hand-offs are the
    world's where they are `None`."""

    machine_type: MachineType
    home_pool: Pool
    policy: WorkerPolicy | None = None
    overlap: Overlap | None = None


@dataclass(frozen=True, slots=True)
class WorldSettings:
    """Settings that hold for the whole world.

    Attributes:
        policy: policy of workers without one of their own; its `max_in_flight` are the stages of each machine's
            pipeline. Prefix caching, on all machines or on none, needs arrivals with `blocks`, and its machines are
            stepped: their roles handle every sequence.
        limits: time-outs of the scheduler.
        pools: how the scheduler chooses machines, and when it returns them to their home pool. Prefixes are remembered only
            with prefix caching.
        max_new_tokens: `max_tokens` of every request; the scheduler and the workers know this bound and not the true output
            length.
        knows_output: an oracle instead: `max_tokens` is the true output length, and all of it is reserved (the published
            simulator).
        memory_share: share of a machine's memory for weights and KV.
        kv_block_size: tokens of a block.
        overlap: overlap of transfers with prefill, at machines without one of their own.
        control_latency_s: latency of every message between members, the request and the client's tokens included.
        link_latency_s: latency of a transfer, after its last byte, at machines without a latency of their own.
        private_link_bytes_per_s: every transfer has a link of this rate for itself, whatever the machines have (the published
            simulator); `None` lets transfers share the links of their machines.
        heartbeat_s: between two heartbeats of a machine whose load changed.
        news_interval_s: minimum gap before an extra heartbeat after computed prompts, which reports empty prompt queues; none
            where it is as long as `heartbeat_s`.
        through_scheduler: requests pass the cluster's scheduler; otherwise they go straight to the world's one machine
            (`DirectScheduler`).
        interrupted: prompts that are interrupted at the end of a quantum, and computed again; `None` for none.
        elastic: machines join and leave while the world runs; a request that loses its machine, or finds none, is retried.
        beats_after_endings: an extra heartbeat when a sequence has ended, which reports its free blocks.
        tick_s: between two ticks of the scheduler.
        counted_steps: most decode iterations of one order, and of one event: a larger value is faster with equal results. Where
            the order of sequences may change, KV moves, or several iterations are in flight, each is an order of its own.
        reports_machines: completed requests name their machines.
        aggregates: machines count their decodes in groups while memory is ample (`aggregate_worker.py`), with equal results.
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
    reports_machines: bool = False
    aggregates: bool = True
    through_scheduler: bool = True
    interrupted: InterruptedPrompts | None = None
    elastic: bool = False

    def __post_init__(self) -> None:
        latencies = (self.control_latency_s, self.link_latency_s, self.news_interval_s)
        if min(latencies) < 0 or min(self.heartbeat_s, self.tick_s) <= 0:
            raise ValueError("latencies are at least 0, periods above 0")
        if self.private_link_bytes_per_s is not None and self.private_link_bytes_per_s <= 0:
            raise ValueError("private_link_bytes_per_s must be above 0; None shares the machines' links")
        if self.max_new_tokens < 1:
            raise ValueError("max_new_tokens must be at least 1")

    def followed(self, policy: WorkerPolicy) -> WorkerPolicy:
        """Return a policy as workers of this world follow it; with an oracle, it reserves a request's whole demand."""
        reserve = Reserve.MAX_TOKENS if self.knows_output else policy.reserve
        one_by_one = self.counted_steps == 1 or policy.is_ranked or policy.max_in_flight > 1
        return replace(policy, reserve=reserve, counted_steps=None if one_by_one else self.counted_steps)

    def requested_tokens(self, output_tokens: int) -> int:
        """Return the `max_tokens` of a request with such an answer; never less than the answer has."""
        return output_tokens if self.knows_output else max(self.max_new_tokens, output_tokens)
