"""The spot watcher: turns every sign that an instance must go into a notice with an absolute deadline.

So far it understands the local sign, an operator's `spotwise drain WORKER --deadline 30s`.
"""

import sys

import structlog

from spotwise.core.membership import Membership
from spotwise.core.messages import Drain, DrainReply, Member, MemberKind
from spotwise.mesh.ports import BusMessage
from spotwise.mesh.run_service import run_service
from spotwise.mesh.service import ServiceHost
from spotwise.mesh.settings import ServiceSettings
from spotwise.wire import subjects
from spotwise.wire.codec import encode

_log = structlog.get_logger(__name__)


class SpotWatcher:
    """Hears who is there, and raises notices about them."""

    def __init__(self, host: ServiceHost, settings: ServiceSettings) -> None:
        self._host = host
        self._membership = Membership(settings.member_timeout_s)

    async def start(self) -> None:
        """Hear heartbeats and operators."""
        await self._host.listen(subjects.HEARTBEATS, self._heard)
        await self._host.listen(subjects.DRAIN, self._drain, queue=subjects.WATCHERS)
        self._host.every(self._membership.timeout_s / 2, self._tick, "tick")

    async def _heard(self, member: Member, raw: BusMessage) -> None:
        self._membership.observe(member, self._host.clock.now())

    async def _tick(self) -> None:
        self._membership.expire(self._host.clock.now())

    async def _drain(self, order: Drain, raw: BusMessage) -> None:
        workers = {worker.id for worker in self._membership.workers()}
        known = order.worker_id in workers
        if known:
            self._host.post(subjects.NOTICES, order)
            _log.info("notice", worker=order.worker_id, deadline_s=order.deadline_s, reason=order.reason)
        detail = "" if known else f"no worker {order.worker_id}; there are: {', '.join(sorted(workers)) or 'none'}"
        if raw.respond is not None:
            await raw.respond(encode(DrainReply(known, detail)))


async def serve(settings: ServiceSettings) -> None:
    """Serve as the spot watcher."""
    async with ServiceHost.open(settings, MemberKind.SPOT_WATCHER) as host:
        await SpotWatcher(host, settings).start()
        await host.run()


if __name__ == "__main__":
    sys.exit(run_service(ServiceSettings, serve))
