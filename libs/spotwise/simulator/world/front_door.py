"""What stands in the scheduler's place where there is one machine and nothing to choose.

Law: every request goes to the machine as it comes, so that whose turn it is is the worker's decision alone. The cluster's
scheduler keeps requests for which no machine has room, first come, first served; in front of a single engine that would be a
queue before the queue that is looked at.

Invariants: a request is ordered once; what the machine refuses is rejected.
"""

from __future__ import annotations

import math

from spotwise.core import messages as m
from spotwise.core.record import KvTarget
from spotwise.core.scheduler import SchedulerEvent


class FrontDoor:
    """Passes requests on.

    Args:
        door_id: its own id.
        client_id: who asks.
        machine_id: who serves, in place.
    """

    def __init__(self, door_id: str, client_id: str, machine_id: str) -> None:
        self._id = door_id
        self._client_id = client_id
        self._target = KvTarget(machine_id, 1, machine_id, ())
        self._orders = 0

    def handle(self, event: SchedulerEvent, now: float) -> list[m.Send]:
        """Pass a request on, or a refusal back; nothing else asks for anything."""
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
