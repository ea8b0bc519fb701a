"""Policies of a simulated cluster: batching, swapping and routing; the defaults are the mesh's."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from pydantic import AfterValidator, ConfigDict

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.costs.cost_model import LinearIterationCost, TableIterationCost
from spotwise.core.kv.swap import SwapPolicy, WhenFull
from spotwise.core.scheduler.policy import DecodeQueue, PoolPolicy
from spotwise.core.worker.policy import Reserve, Scheduling, WorkerPolicy
from spotwise.core.worker.scheduling.policies import queues_for, registered_policy
from spotwise.files.tables import KNOWN_KEYS

_LIMITS, _SWAP, _USUAL = BatchLimits(), SwapPolicy(), WorkerPolicy()


def _registered(name: str) -> str:
    registered_policy(name)
    return name


@dataclass(frozen=True, slots=True)
class ServingPolicy:
    """Policies of all workers and of the scheduler: the table `[policy]` of a cluster file. All numbers are finite, as in
    JSON.

    Attributes:
        scheduling: name of the scheduling policy (`policies.SCHEDULING_POLICIES`); `srpt` knows the lengths of answers.
        quantum_ratio: with MLFQ, of each queue's quantum to that of the queue above.
        starve_limit_s: with MLFQ, seconds that a sequence waits below the top queue; 0 promotes none, `None` is the mesh's
            own rule.
        chunk_tokens: token budget of an iteration (chunked prefill); `None` runs prompts whole.
        max_num_seqs, max_prompt_tokens: limits of an iteration.
        decodes_pause: prompts that fill an iteration run without decodes.
        max_stall_s: seconds that a prompt may delay decodes, or alone what arrives; 0 is no bound.
        when_full, spare_slots, burst_queues: as in `SwapPolicy`; swapping needs machines with host memory.
        max_pending_prompt_tokens, max_remaining_tokens, break_even, repurpose_share, decode_queue, max_passes: as in
            `PoolPolicy`; `None`: as of the machines' decode model, the mesh's own by default.
        repurpose_window_s: 0 keeps every machine in its initial pool.
        max_new_tokens: `max_tokens` of every request, which bounds what the scheduler and the workers expect of answers.
    """

    __pydantic_config__: ClassVar[ConfigDict] = KNOWN_KEYS

    scheduling: Annotated[str, AfterValidator(_registered)] = Scheduling.FCFS.value
    quantum_ratio: float = 2.0
    starve_limit_s: float | None = None
    chunk_tokens: int | None = None
    max_num_seqs: int = _LIMITS.max_num_seqs
    max_prompt_tokens: int = _LIMITS.max_prompt_tokens
    decodes_pause: bool = False
    max_stall_s: float = 0.0
    reserve: Reserve = Reserve.ON_DEMAND
    watermark: float = _USUAL.watermark
    max_preemptions: int = _USUAL.max_preemptions
    prompts_first: bool = True
    preempt_after_s: float = _USUAL.preempt_after_s
    when_full: WhenFull = WhenFull.RECOMPUTE
    spare_slots: int = _SWAP.spare_slots
    burst_queues: int = _SWAP.burst_queues
    max_pending_prompt_tokens: int | None = None
    max_remaining_tokens: int | None = None
    break_even: bool | None = None
    repurpose_share: float | None = None
    repurpose_window_s: float | None = None
    decode_queue: DecodeQueue | None = None
    max_passes: int | None = None
    max_new_tokens: int = 2048

    def __post_init__(self) -> None:
        """Raise `ValueError` where settings are wrong or contradict one another."""
        for name in self.__slots__:
            if isinstance(value := getattr(self, name), float) and not math.isfinite(value):
                raise ValueError(f"{name} must be finite")
        if self.max_new_tokens < 1:
            raise ValueError("max_new_tokens must be at least 1")
        self.workers(LinearIterationCost(1.0, 0.0, 0.0, 0.0, 0.0))
        self.pools(PoolPolicy())

    @property
    def limits(self) -> BatchLimits:
        """Bounds of an iteration."""
        return BatchLimits(self.max_num_seqs, self.max_prompt_tokens, self.chunk_tokens, self.decodes_pause)

    def workers(self, cost: object, context_parity: float = math.inf, *, prefix_caching: bool = False) -> WorkerPolicy:
        """Return the policy of workers whose iterations cost so much.

        Args:
            cost: what MLFQ charges service by.
            context_parity: tokens of context that cost as much as a token, for `max_stall_s`.
            prefix_caching: equal beginnings of prompts are reused.

        Raises:
            ValueError: settings contradict one another, or MLFQ cannot charge service by this cost.
        """
        own = WorkerPolicy(
            self.limits,
            self.reserve,
            self.watermark,
            self.max_preemptions,
            prefix_caching=prefix_caching,
            max_stall_s=self.max_stall_s or None,
            context_parity=context_parity,
            prompts_first=self.prompts_first,
            preempt_after_s=self.preempt_after_s,
            swap=SwapPolicy(self.when_full, self.spare_slots, self.burst_queues),
        )
        if self.scheduling != Scheduling.MLFQ:
            return replace(own, scheduling=self.scheduling)
        if not isinstance(cost, LinearIterationCost | TableIterationCost):
            raise ValueError("scheduling mlfq charges service by honest iteration times; take the decode model honest")
        starve_limit_s = math.inf if self.starve_limit_s == 0.0 else self.starve_limit_s
        queues = queues_for(cost, self.quantum_ratio, starve_limit_s)
        return replace(own, scheduling=self.scheduling, mlfq=queues, cost=cost)

    def pools(self, base: PoolPolicy) -> PoolPolicy:
        """Return the scheduler's policy: `base`, but for what is configured here."""
        pools = base
        for name in (
            "max_pending_prompt_tokens",
            "max_remaining_tokens",
            "break_even",
            "repurpose_share",
            "decode_queue",
            "max_passes",
        ):
            if (value := getattr(self, name)) is not None:
                pools = replace(pools, **{name: value})
        if self.repurpose_window_s is not None:
            pools = replace(pools, repurpose_window_s=self.repurpose_window_s or None)
        return pools


#: As the mesh's workers and scheduler have it.
USUAL_POLICY = ServingPolicy()
