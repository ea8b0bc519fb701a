"""How a worker batches its sequences and gives them memory.

Law: choices, made once at the worker's start, and what they must know of its model; each names the system whose way it is.
What they mean is decided in one place each: rows in `batching.py` and `pace.py`, whose turn it is in `discipline.py`, who may
have a row in `iterations.py`, how often in `runs.py`, blocks in `memory.py` and its two kinds, their reuse in
`prefix_cache.py`, hand-offs in `push_policy.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from spotwise.core.batching import BatchLimits
from spotwise.core.cost_model import LinearIterationCost, TableIterationCost
from spotwise.core.kv_swap import SwapPolicy, WhenFull
from spotwise.core.mlfq import MlfqPolicy
from spotwise.core.worker.push_policy import ConfiguredPushMode


class Reserve(StrEnum):
    """For how many of its new tokens a sequence has blocks before it needs them."""

    ON_DEMAND = "on_demand"  #: the first; further blocks as it grows, preemption where there are none (vLLM's way)
    MAX_TOKENS = "max_tokens"  #: all that it may ever have (Orca, section 4.1)


class Discipline(StrEnum):
    """Whose turn it is."""

    FCFS = "fcfs"  #: first come, first served (Orca, section 4.1)
    PRIORITY = "priority"  #: the lowest number that a client gave, then first come, first served (vLLM's way)
    SRPT = "srpt"  #: shortest remaining processing time, which only an oracle knows: for simulations, as a bound
    MLFQ = (
        "mlfq"  #: skip-join multi-level feedback queue, below priorities and turns of tenants (FastServe, section 4.1)
    )


class Batching(StrEnum):
    """When a sequence may join those that run."""

    ITERATION_LEVEL = "iteration_level"  #: before any iteration (Orca, section 4.1)
    REQUEST_LEVEL = (
        "request_level"  #: when all that run have ended (FasterTransformer's way): the baseline to compare with
    )


@dataclass(frozen=True, slots=True)
class WorkerPolicy:
    """What a worker was told to do.

    Attributes:
        limits: of one iteration.
        reserve: blocks for tokens to come.
        watermark: share of the blocks that a newcomer leaves free where others run, so that these may grow a while; 0 to 1.
        max_preemptions: after so many, a sequence comes back with blocks for all that it may ever have, and stays.
        prefix_caching: prompts begin with the blocks that others computed already.
        batching: who may join a batch; `REQUEST_LEVEL` goes with `reserve=MAX_TOKENS`.
        max_stall_s: seconds that a prompt may hold up an iteration in which others decode, about; `None` for no bound.
        context_parity: of the model: tokens of context that cost a token as much as all else; see `pace.py`.
        max_in_flight: iterations ordered and not ended at most: the stages of the engine's pipeline (Orca, section 4.1).
        prompts_first: prompts that wait for blocks take them from sequences that decode (Splitwise, section 4.3); `victims.py`
            says from whom.
        preempt_after_s: seconds that a prompt has waited before it does. A decode that is computed again costs more than a
            short wait; a second is about what the 99th percentile of TTFT may be (six times an uncontended one, Splitwise,
            section 6).
        counted_steps: iterations of one order at most, for engines whose tokens carry no ids; see `runs.py`.
        kv_push: whether prompts for other workers leave after their prefill or during it (Splitwise, section 4.3).
        discipline: whose turn it is.
        mlfq: its queues, with `MLFQ`.
        cost: of this worker's iterations, by which `MLFQ` charges service; also what a prompt token costs until some were
            computed.
        confirm_every_s: seconds between two questions to a gateway about what is held for it; `None` where none answers.
        swap: what happens where KV has no room on the device; other than `RECOMPUTE` it needs blocks of the host.
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
    counted_steps: int = 1
    kv_push: ConfiguredPushMode = ConfiguredPushMode.SERIAL
    discipline: Discipline = Discipline.FCFS
    mlfq: MlfqPolicy | None = None
    cost: LinearIterationCost | TableIterationCost | None = None
    swap: SwapPolicy = field(default_factory=SwapPolicy)
    confirm_every_s: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.watermark < 1.0:
            raise ValueError(f"watermark is {self.watermark}; it is a share, at least 0 and below 1")
        if self.max_stall_s is not None and self.max_stall_s <= 0.0:
            raise ValueError("max_stall_s must be above 0; None is no bound")
        if not self.context_parity > 0.0:
            raise ValueError("context_parity must be above 0; inf is a context that costs nothing")
        if self.max_in_flight < 1:
            raise ValueError("max_in_flight must be at least 1")
        if self.preempt_after_s < 0.0:
            raise ValueError("preempt_after_s must be at least 0; prompts_first=False is never")
        if self.counted_steps < 1:
            raise ValueError("counted_steps must be at least 1")
        if self.counted_steps > 1 and self.max_in_flight > 1:
            raise ValueError("counted_steps above 1 needs max_in_flight=1: several iterations are one order")
        if self.max_preemptions < 1:
            raise ValueError("max_preemptions must be at least 1; reserve=max_tokens never preempts")
        if self.batching is Batching.REQUEST_LEVEL and self.reserve is Reserve.ON_DEMAND:
            raise ValueError(
                "batching=request_level needs reserve=max_tokens: who waits outside a batch keeps its blocks"
            )

        if self.discipline is Discipline.MLFQ and (self.mlfq is None or self.cost is None):
            raise ValueError("discipline=mlfq needs queues, and a cost to charge service by")
        if self.is_ranked and self.counted_steps > 1:
            raise ValueError("counted_steps above 1 needs discipline=fcfs and when_full=recompute")
        if self.is_ranked and self.batching is Batching.REQUEST_LEVEL:
            raise ValueError("batching=request_level needs discipline=fcfs and when_full=recompute")

    @property
    def is_ranked(self) -> bool:
        """Whether memory follows an order that may change, or KV moves, rather than arrivals."""
        return self.discipline is not Discipline.FCFS or self.swap.when_full is not WhenFull.RECOMPUTE

    @property
    def prompts_take_blocks(self) -> bool:
        """Whether prompts may preempt; with all blocks reserved nobody is preempted."""
        return self.prompts_first and self.reserve is Reserve.ON_DEMAND

    @property
    def reserved_new_tokens(self) -> int | None:
        """Of a request's new tokens, how many a reservation has blocks for at most; `None` for all."""
        return 1 if self.reserve is Reserve.ON_DEMAND else None
