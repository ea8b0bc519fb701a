"""Refuses requests: at their submission, and while they wait for a worker.

Law: a request is refused at its deadline, and where no ready worker could ever hold it, unless an earlier attempt was accepted.
A new one is refused where too many wait already, and once it has waited too long for free capacity.
While no worker is ready, in the midst of a change of the fleet, requests are held for `max_unready_s`, then refused.
One that waits for its numerics class (`classes.py`) is refused where for `max_queue_s` no ready worker of it could hold it.
One with an open bound that no worker holds, though its prompt fits, is refused for its gateway to size it again.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.messages.mesh import RejectCode, SubmitRequest
from spotwise.core.scheduler.classes import ClassPlacer
from spotwise.core.scheduler.pools import Pools
from spotwise.core.scheduler.requests import AcceptedRequest

#: Seconds after which a client may try again: where requests wait, and where no worker takes any.
FULL_RETRY_S, UNREADY_RETRY_S = 1.0, 5.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not served; `retry_after_s` is `None` where retrying makes no sense."""

    code: RejectCode
    message: str
    retry_after_s: float | None = None


class Admission:
    """One scheduler's bounds of waiting; see `SchedulerLimits`."""

    def __init__(
        self, pools: Pools, classes: ClassPlacer, *, max_queued: int, max_queue_s: float, max_unready_s: float
    ) -> None:
        self._pools = pools
        self._classes = classes
        self._max_queued = max_queued
        self._max_queue_s = max_queue_s
        self._max_unready_s = max_unready_s
        self._unready_since_s: float | None = None  # no worker has been ready since

    def was_away(self, seconds: float) -> None:
        """Extend the wait for a ready worker by a time in which the scheduler was cut off."""
        if self._unready_since_s is not None:
            self._unready_since_s += seconds

    def watch_readiness(self, now: float) -> bool:
        """Note since when no worker is ready; tell whether one has just become so again."""
        if self._pools.ready or not self._max_unready_s:
            was_unready = self._unready_since_s is not None
            self._unready_since_s = None
            return was_unready
        if self._unready_since_s is None:
            self._unready_since_s = now
        return False

    def of_submission(self, order: SubmitRequest, num_queued: int, now: float) -> Refusal | None:
        """Return why a request is not taken, beside `num_queued` that wait."""
        if overdue := self.of_overdue(order, now):
            return overdue
        if not self._pools.ready and not self._max_unready_s:
            return Refusal(RejectCode.NO_WORKERS, self._no_workers(), UNREADY_RETRY_S)
        if misfit := self.of_misfit(order):
            return misfit
        if num_queued >= self._max_queued and not order.recovering:
            message = f"all workers are full and {num_queued} requests wait"
            return Refusal(RejectCode.MESH_FULL, message, FULL_RETRY_S)
        return None

    def of_waiting(self, entry: AcceptedRequest, now: float) -> Refusal | None:
        """Return why a queued request does not wait any longer."""
        unready_since_s = self._unready_since_s
        if unready_since_s is not None:
            unready_s = now - max(unready_since_s, entry.accepted_s)
            if unready_s >= self._max_unready_s:
                message = f"{self._no_workers()}, for {unready_s:.0f} s"
                return Refusal(RejectCode.NO_WORKERS, message, UNREADY_RETRY_S)
        if now - entry.accepted_s > self._max_queue_s and not entry.order.recovering:
            message = f"no worker had free capacity within {self._max_queue_s:g} s"
            return Refusal(RejectCode.QUEUE_TIMEOUT, message, UNREADY_RETRY_S)
        return self._of_bound(entry.order) or self._of_class(entry, now)

    def _of_class(self, entry: AcceptedRequest, now: float) -> Refusal | None:
        """Return the refusal of a request for whose class no worker comes."""
        order = entry.order
        if not self._classes.is_bound(order) or self._classes.could_ever_hold(order):
            entry.classless_since_s = None
            return None
        if entry.classless_since_s is None:
            entry.classless_since_s = now
        if now - entry.classless_since_s <= self._max_queue_s:
            return None
        message = (
            f"its tokens were computed in the numerics class {order.numerics_class}, of which no worker that could hold "
            f"it came within {self._max_queue_s:g} s; SPOTWISE_CROSSING=count lets workers of other classes go on"
        )
        return Refusal(RejectCode.NO_CLASS, message, UNREADY_RETRY_S)

    def of_overdue(self, order: SubmitRequest, now: float) -> Refusal | None:
        """Return the refusal of a request whose deadline has come."""
        if not is_overdue(order, now):
            return None
        return Refusal(RejectCode.DEADLINE_EXCEEDED, "no worker had free capacity before the request's deadline")

    def of_misfit(self, order: SubmitRequest) -> Refusal | None:
        """Return the refusal of a request that no ready worker could ever hold, where it is not to wait for a larger one."""
        if too_large := self._of_bound(order):
            return too_large
        if order.recovering or not self._pools.ready or self._pools.could_ever_hold(order):
            return None
        needed = (
            f"the prompt of {order.prompt_tokens} tokens leaves no KV cache for an answer"
            if order.open_bound
            else f"prompt and max_tokens need {order.prompt_tokens + order.max_new_tokens} tokens of KV cache"
        )
        return Refusal(RejectCode.NEVER_FITS, f"{needed}; no worker holds more than {self._pools.most_kv_tokens()}")

    def _of_bound(self, order: SubmitRequest) -> Refusal | None:
        """Return the refusal for which the gateway sizes a request anew: the workers hold its prompt, and less than its open
        bound.
        """
        numerics_class = order.numerics_class if self._classes.is_bound(order) else None
        largest = self._pools.most_kv_tokens(numerics_class) if self._pools.ready else 0
        if not order.open_bound or order.prompt_tokens >= largest or self._classes.could_ever_hold(order):
            return None
        return Refusal(RejectCode.BOUND_TOO_LARGE, f"no worker holds more than {largest} tokens of KV cache")

    def _no_workers(self) -> str:
        others = len(self._pools.with_other_weights())
        return "no worker is ready to serve" + (f"; {others} have other weights than the mesh serves" if others else "")


def is_overdue(order: SubmitRequest, now: float) -> bool:
    """Tell whether a request's client has given up."""
    return order.deadline_unix_s is not None and now >= order.deadline_unix_s
