"""Who a member is when it starts, and how long the store remembers it."""

from __future__ import annotations

import os
import socket
import time

from spotwise.core.messages import Member, MemberKind, MemberState
from spotwise.mesh.settings import ServiceSettings

#: A registration outlives its member by this many heartbeat time-outs at most.
REGISTRATION_TTL_FACTOR = 2.0


def registration_ttl_s(settings: ServiceSettings) -> float:
    """Seconds after which a registration that nobody renews is gone."""
    return settings.member_timeout_s * REGISTRATION_TTL_FACTOR


def new_member(settings: ServiceSettings, kind: MemberKind, control_port: int) -> Member:
    """Return the member of these settings in this process, as it starts."""
    return Member(
        id=settings.service_id,
        kind=kind,
        incarnation=time.time_ns() // 1_000_000,  # grows from start to start, whatever the store forgot
        state=MemberState.STARTING,
        host=socket.gethostname(),
        pid=os.getpid(),
        grpc_address=f"{settings.peer_host}:{control_port}",
    )
