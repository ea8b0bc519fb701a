"""A stand-in for the scheduler of a one-machine world: requests go straight to the worker, whose queue is under study."""

from __future__ import annotations

import math

from spotwise.core.messages import mesh as m
from spotwise.core.requests.record import KvTarget
from spotwise.core.scheduler.role import SchedulerEvent


class DirectScheduler:
    """Passes requests from the client to the machine, which serves both phases."""

    def __init__(self, scheduler_id: str, client_id: str, machine_id: str) -> None:
        self._id = scheduler_id
        self._client_id = client_id
        self._target = KvTarget(machine_id, 1, machine_id, ())
        self._orders = 0

    def handle(self, event: SchedulerEvent, now: float) -> list[m.Send]:
        """Forward a request, or return a rejection; ignore all other events."""
        if isinstance(event, m.SubmitRequest):
            return [m.Send(self._target.worker_id, self._order(event))]
        if isinstance(event, m.KvRefused):
            rejected = m.RequestRejected(event.choice_id, event.epoch, m.RejectCode.NEVER_FITS, event.reason)
            return [m.Send(self._client_id, rejected)]
        return []

    def _order(self, request: m.SubmitRequest) -> m.StartPrefill:
        self._orders += 1
        return m.StartPrefill(
            choice_id=request.choice_id,
            epoch=request.epoch,
            stream=request.stream,
            scheduler_id=self._id,
            assignment=self._orders,
            prompt_tokens=request.prompt_tokens,
            target=self._target,
            lease_s=math.inf,
            max_new_tokens=request.max_new_tokens,
        )
