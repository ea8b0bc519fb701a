"""Which KV leaves the device before it must, and which comes back before it is wanted.

Law: a queue that preempts at every token has more jobs under way than the device's KV cache holds, so the KV of those that will
not run soon goes to the host's memory. By which of four ways:

- *recompute*: nothing goes there; whoever loses its blocks is computed again (PagedAttention, section 4.5);
- *defer*: nothing goes there, and newcomers wait until somebody has ended;
- *reactive*: KV goes when somebody needs its place, and comes back when its job is to run, which both then wait for;
- *proactive*: so many slots are kept free that newcomers find theirs at once: KV goes before, of those that are to run last
  first, and where there is more room than that, what is to run first comes back before its turn.

How many slots: `spare_slots`, or as many as there are jobs in the `burst_queues` uppermost queues: many jobs there are a burst,
and a burst seldom ends with them. When a job runs next is estimated (ENST, `mlfq.py`).

Source: FastServe (Wu et al., 2023), section 4.2; defer and reactive are what it compares itself with, section 6.3. Its slot is
room for the longest job; here KV is in blocks, and a slot is what newcomers took lately, on average.

Invariants: nothing goes that has not run since it came; what is chosen fits where it is to go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class WhenFull(StrEnum):
    """What happens where KV has no room on the device."""

    RECOMPUTE = "recompute"  #: whoever runs last loses its blocks, and is computed again
    DEFER = "defer"  #: newcomers wait
    REACTIVE = "reactive"  #: whoever runs last is swapped out when its place is needed
    PROACTIVE = "proactive"  #: whoever runs last is swapped out before

    @property
    def swaps(self) -> bool:
        """Whether KV goes to the host's memory."""
        return self in (WhenFull.REACTIVE, WhenFull.PROACTIVE)


@dataclass(frozen=True, slots=True)
class SwapPolicy:
    """How KV is kept.

    Attributes:
        when_full: what happens where it has no room.
        spare_slots: slots to keep free for newcomers at least (K), with `PROACTIVE`.
        burst_queues: jobs in so many uppermost queues (K') are taken for as many newcomers.
    """

    when_full: WhenFull = WhenFull.RECOMPUTE
    spare_slots: int = 2
    burst_queues: int = 2

    def __post_init__(self) -> None:
        if self.spare_slots < 0 or self.burst_queues < 0:
            raise ValueError("spare_slots and burst_queues must be at least 0")

    def slots_to_keep(self, jobs_by_queue: Iterable[int]) -> int:
        """Return how many slots are to be free, for jobs in the queues that are given, 1 the uppermost."""
        return max(self.spare_slots, sum(queue <= self.burst_queues for queue in jobs_by_queue))


@dataclass(frozen=True, slots=True)
class HeldKv:
    """The KV of a job that is not running.

    Attributes:
        job_id: whose.
        blocks: that would come free, or be taken.
        next_run_s: in how many seconds it is expected to run.
    """

    job_id: str
    blocks: int
    next_run_s: float


def choose_to_leave(idle: Iterable[HeldKv], lacking_blocks: int) -> list[HeldKv]:
    """Return whose KV goes, the last to run first, until so many blocks come free, or all.

    Of equals the last in `idle` goes first; whose blocks are all shared with others is passed over.
    """
    chosen: list[HeldKv] = []
    in_order = sorted(enumerate(idle), key=lambda entry: (entry[1].next_run_s, entry[0]), reverse=True)
    for _, held in in_order:
        if lacking_blocks <= 0:
            break
        if held.blocks:
            chosen.append(held)
            lacking_blocks -= held.blocks
    return chosen


def choose_to_return(away: Iterable[HeldKv], spare_blocks: int) -> list[HeldKv]:
    """Return whose KV comes back, the first to run first, as long as there is room; nobody passes one that has none."""
    chosen: list[HeldKv] = []
    for held in sorted(away, key=lambda held: held.next_run_s):
        spare_blocks -= held.blocks
        if spare_blocks < 0:
            break
        chosen.append(held)
    return chosen
