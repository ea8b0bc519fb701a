"""Who a member is when it starts, and how long the store remembers it."""

from __future__ import annotations

import os
import socket
import time

from spotwise.core.messages import Member, MemberKind, MemberState
from spotwise.mesh.ports import MeshStore
from spotwise.mesh.settings import ServiceSettings

#: A registration outlives its member by this many heartbeat time-outs at most.
REGISTRATION_TTL_FACTOR = 2.0


def registration_ttl_s(settings: ServiceSettings) -> float:
    """Seconds after which a registration that nobody renews is gone."""
    return settings.member_timeout_s * REGISTRATION_TTL_FACTOR


async def new_member(settings: ServiceSettings, kind: MemberKind, control_port: int, store: MeshStore) -> Member:
    """Return the member of these settings in this process, as it starts.

    Raises:
        MeshError: the store does not answer.
    """
    # The clock where the store has forgotten, the store where the clock was set back: peers ignore lower ones for ever.
    incarnation = await store.next_incarnation(settings.service_id, at_least=time.time_ns() // 1_000_000)
    return Member(
        id=settings.service_id,
        kind=kind,
        incarnation=incarnation,
        state=MemberState.STARTING,
        host=socket.gethostname(),
        pid=os.getpid(),
        grpc_address=f"{settings.peer_host}:{control_port}",
    )
