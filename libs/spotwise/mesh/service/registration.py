"""A member's identity as it starts, and its registration's time to live."""

from __future__ import annotations

import os
import socket
import time

from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.mesh.ports.ports import MeshStore
from spotwise.mesh.service.settings import ServiceSettings

#: A registration outlives its member by at most this many heartbeat time-outs.
REGISTRATION_TTL_FACTOR = 2.0


def registration_ttl_s(settings: ServiceSettings) -> float:
    """Return the seconds after which a registration expires unless it is renewed."""
    return settings.member_timeout_s * REGISTRATION_TTL_FACTOR


async def new_member(settings: ServiceSettings, kind: MemberKind, control_port: int, store: MeshStore) -> Member:
    """Return this process's member as it starts; raises `MeshError` where the store does not answer."""
    # Peers ignore lower incarnations forever: the clock covers a store that has lost them, the store a clock that was set back.
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
