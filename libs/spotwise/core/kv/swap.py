"""Policies that choose the KV to swap out before it must be, and the KV to swap in before its turn.

Law: with *recompute* or *defer* nothing is swapped; preempted sequences are recomputed, or newcomers wait.
With *reactive* KV is swapped out when its blocks are needed, and in when its job is to run.
With *proactive* slots are kept free for newcomers: the last to run are swapped out, and into spare blocks the first to run.
Slots kept: `spare_slots`, or the jobs in the `burst_queues` uppermost queues, as many jobs there are a burst.
Source: FastServe (Wu et al., 2023), section 4.2; defer and reactive are its baselines, section 6.3. Its slot fits the
longest job; here it is what newcomers took on average lately, in blocks. When a job runs next is its ENST (`mlfq.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class WhenFull(StrEnum):
    """What happens when the device has no free KV block."""

    RECOMPUTE = "recompute"  #: the last to run is preempted, and computed again (PagedAttention, section 4.5)
    DEFER = "defer"  #: newcomers wait
    REACTIVE = "reactive"  #: the last to run is swapped out when its blocks are needed
    PROACTIVE = "proactive"  #: the last to run is swapped out before

    @property
    def swaps(self) -> bool:
        """Whether KV goes to the host's memory."""
        return self in (WhenFull.REACTIVE, WhenFull.PROACTIVE)


@dataclass(frozen=True, slots=True)
class SwapPolicy:
    """What happens when the device is full; `PROACTIVE` keeps at least `spare_slots` (K) slots free for newcomers, of which
    as many are expected as jobs are in the `burst_queues` (K') uppermost queues.
    """

    when_full: WhenFull = WhenFull.RECOMPUTE
    spare_slots: int = 2
    burst_queues: int = 2

    def __post_init__(self) -> None:
        if self.spare_slots < 0 or self.burst_queues < 0:
            raise ValueError("spare_slots and burst_queues must be at least 0")

    def slots_to_keep(self, jobs_by_queue: Iterable[int]) -> int:
        """Return how many slots to keep free; `jobs_by_queue` has each job's queue, 1 the top."""
        return max(self.spare_slots, sum(queue <= self.burst_queues for queue in jobs_by_queue))
