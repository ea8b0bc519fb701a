"""Configuration of a worker's batching and KV allocation; chosen at its start."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.costs.cost_model import LinearIterationCost, TableIterationCost
from spotwise.core.kv.swap import SwapPolicy, WhenFull
from spotwise.core.messages.numerics import Crossing
from spotwise.core.worker.kv.push_policy import ConfiguredPushMode
from spotwise.core.worker.scheduling.mlfq import MlfqPolicy


class Reserve(StrEnum):
    """For how many of its new tokens a sequence has blocks before it needs them."""

    ON_DEMAND = "on_demand"  #: the first; blocks as it grows, preemption where none are free (vLLM)
    MAX_TOKENS = "max_tokens"  #: all that it may ever have (Orca, section 4.1)


class Scheduling(StrEnum):
    """Names of the built-in scheduling policies; `policies.py` makes them, and any others."""

    FCFS = "fcfs"  #: first come, first served (Orca, section 4.1)
    PRIORITY = "priority"  #: the client's number, the lower first, then first come, first served (vLLM)
    SRPT = "srpt"  #: shortest remaining processing time: an oracle, for simulations
    MLFQ = (
        "mlfq"  #: skip-join multi-level feedback queue, within priorities and tenants' turns (FastServe, section 4.1)
    )


class Batching(StrEnum):
    """When a sequence may join a batch; `REQUEST_LEVEL` needs `reserve=MAX_TOKENS`."""

    ITERATION_LEVEL = "iteration_level"  #: before any iteration (Orca, section 4.1)
    REQUEST_LEVEL = "request_level"  #: when all running ones have ended (FasterTransformer): a baseline


@dataclass(frozen=True, slots=True)
class WorkerPolicy:
    """A worker's configuration.

    Attributes:
        watermark: share of the blocks that a newcomer leaves free for running sequences to grow into; 0 to 1.
        max_preemptions: after this many, a sequence resumes with blocks for all that it may ever have, and keeps them.
        max_stall_s: seconds, about, that prompts may delay decodes beside them, or alone what arrives; `None` for no bound.
        context_parity: tokens of context that cost the model as much as all else of a token; see `chunked_prefill.py`.
        max_in_flight: iterations ordered and not ended at most: the stages of the engine's pipeline (Orca, section 4.1).
        prompts_first: prompts that wait for blocks preempt decodes (Splitwise, section 4.3); see `fcfs_allocator.py`.
        preempt_after_s: seconds that a prompt waits before it preempts. Recomputing a decode costs more than a short wait; a
            second is about the 99th percentile of TTFT that Splitwise allows (section 6: six times the uncontended one).
        counted_steps: for engines whose tokens carry no ids: iterations of one order at most (`counted_iterations.py`). `None`
            for engines that sample tokens: every iteration is an order of its own.
        kv_push: when hand-offs leave: after their prefill or during it (Splitwise, section 4.3).
        scheduling: name of the scheduling policy, in `policies.SCHEDULING_POLICIES`; `mlfq`: its queues, with `MLFQ`.
        cost: measured cost of this worker's iterations, by which `MLFQ` charges service; also a prompt token's cost
            until one is measured.
        confirm_every_s: seconds between two confirmations of attempts with their gateway; `None` where gateways do not answer.
        crossing: what happens to KV of another numerics class.
        swap: what happens when the device is full of KV; other than `RECOMPUTE` and `DEFER` it needs host blocks.
    """

    limits: BatchLimits = field(default_factory=BatchLimits)
    reserve: Reserve = Reserve.ON_DEMAND
    watermark: float = 0.01
    max_preemptions: int = 3
    prefix_caching: bool = True
    batching: Batching = Batching.ITERATION_LEVEL
    max_stall_s: float | None = None
    context_parity: float = math.inf
    max_in_flight: int = 1
    prompts_first: bool = True
    preempt_after_s: float = 1.0
    counted_steps: int | None = None
    kv_push: ConfiguredPushMode = ConfiguredPushMode.SERIAL
    scheduling: str = Scheduling.FCFS
    mlfq: MlfqPolicy | None = None
    cost: LinearIterationCost | TableIterationCost | None = None
    swap: SwapPolicy = field(default_factory=SwapPolicy)
    confirm_every_s: float | None = None
    crossing: Crossing = Crossing.COUNT

    def __post_init__(self) -> None:
        if not 0.0 <= self.watermark < 1.0:
            raise ValueError(f"watermark is {self.watermark}; it is a share, at least 0 and below 1")
        if self.max_stall_s is not None and self.max_stall_s <= 0.0:
            raise ValueError("max_stall_s must be above 0; None is no bound")
        if self.max_stall_s is not None and self.limits.decodes_pause:
            raise ValueError("decodes_pause needs max_stall_s=None: decodes that pause wait for whole prompts")
        if not self.context_parity > 0.0:
            raise ValueError("context_parity must be above 0; inf is a context that costs nothing")
        if self.max_in_flight < 1:
            raise ValueError("max_in_flight must be at least 1")
        if self.preempt_after_s < 0.0:
            raise ValueError("preempt_after_s must be at least 0; prompts_first=False is never")
        if self.max_preemptions < 1:
            raise ValueError("max_preemptions must be at least 1; reserve=max_tokens never preempts")
        if self.batching is Batching.REQUEST_LEVEL and self.reserve is Reserve.ON_DEMAND:
            raise ValueError(
                "batching=request_level needs reserve=max_tokens: a sequence that waits outside a batch keeps its blocks"
            )
        if self.scheduling == Scheduling.MLFQ and (self.mlfq is None or self.cost is None):
            raise ValueError("scheduling=mlfq needs queues, and a cost to charge service by")
        if self.is_ranked and self.batching is Batching.REQUEST_LEVEL:
            raise ValueError("batching=request_level needs scheduling=fcfs and when_full=recompute")
        if self.counted_steps is not None:
            self._check_counted_steps(self.counted_steps)

    def _check_counted_steps(self, steps: int) -> None:
        if steps < 1:
            raise ValueError("counted_steps must be at least 1; None is an engine that samples tokens")
        if steps > 1 and self.max_in_flight > 1:
            raise ValueError("counted_steps above 1 needs max_in_flight=1: several iterations are one order")
        if steps > 1 and self.is_ranked:
            raise ValueError("counted_steps above 1 needs scheduling=fcfs and when_full=recompute")

    @property
    def is_ranked(self) -> bool:
        """Whether blocks are allocated in an order other than that of arrival, or KV is swapped or deferred."""
        return self.scheduling != Scheduling.FCFS or self.swap.when_full is not WhenFull.RECOMPUTE

    @property
    def prompts_take_blocks(self) -> bool:
        """Whether prompts may preempt; with all blocks reserved none does."""
        return self.prompts_first and self.grows

    @property
    def grows(self) -> bool:
        """Whether sequences get blocks as they grow; else all at once."""
        return self.reserve is Reserve.ON_DEMAND

    def watermark_blocks(self, num_blocks: int) -> int:
        """Return how many of so many blocks a newcomer leaves free."""
        return math.ceil(self.watermark * num_blocks) if self.grows else 0

    def reservation_tokens(self, kv_tokens: int, max_new_tokens: int) -> int:
        """Return for how many tokens a reservation takes blocks, of `kv_tokens` at most, `max_new_tokens` of them new."""
        ahead = self.reserved_new_tokens
        return kv_tokens if ahead is None else kv_tokens - max_new_tokens + min(max_new_tokens, ahead)

    @property
    def reserved_new_tokens(self) -> int | None:
        """New tokens for which a reservation has blocks at most; `None` for all."""
        return 1 if self.grows else None
