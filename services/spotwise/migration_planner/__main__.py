"""The migration planner: tracks the mesh's membership, the input of later plans."""

import sys

import structlog

from spotwise.core.members import Member, MemberKind
from spotwise.core.membership import MemberJoined, Membership, MembershipEvent
from spotwise.core.messages import Tick
from spotwise.mesh.ports import BusMessage
from spotwise.mesh.run_service import run_service
from spotwise.mesh.service import ServiceHost
from spotwise.mesh.settings import ServiceSettings
from spotwise.wire import subjects

_log = structlog.get_logger(__name__)


async def serve(settings: ServiceSettings) -> None:
    """Serve as the migration planner."""
    async with ServiceHost.open(settings, MemberKind.MIGRATION_PLANNER) as host:
        membership = Membership(settings.member_timeout_s)

        def log(changes: list[MembershipEvent]) -> None:
            for change in changes:
                joined = isinstance(change, MemberJoined)
                _log.info("member_joined" if joined else "member_lost", id=change.member.id)

        async def observe(member: Member, raw: BusMessage) -> None:
            log(membership.observe(member, host.clock.now()))

        def look(tick: Tick) -> None:
            membership.was_away(tick.away_s)
            log(membership.expire(host.clock.now()))

        await host.listen(subjects.HEARTBEATS, observe)
        host.keep_time(settings.member_timeout_s / 2, look)
        await host.run()


if __name__ == "__main__":
    sys.exit(run_service(ServiceSettings, serve))
