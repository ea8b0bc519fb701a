"""A member's identity as it starts, its registration's time to live, and one process per id.

An id is in use while its registration is renewed and a process answers at its address. A dead process does not answer, so that
a restart does not wait; where another service has taken its port, the registration expires. Of two processes that start at once
the earlier one leaves when it receives the later one's heartbeat (`service`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import time

from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.mesh.grpc.control import answers
from spotwise.mesh.grpc.control_access import OPEN_ACCESS, ControlAccess
from spotwise.mesh.ports.ports import MeshError, MeshStore
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


async def holder(store: MeshStore, member_id: str, access: ControlAccess = OPEN_ACCESS) -> Member | None:
    """Return the registered member of this id that answers, or `None` for a free id; raises `MeshError` without the store."""
    registered = next((member for member in await store.members() if member.id == member_id), None)
    return registered if registered is not None and await answers(registered.grpc_address, access=access) else None


async def wait_until_free(
    store: MeshStore,
    member_id: str,
    registration_ttl_s: float,
    poll_s: float,
    access: ControlAccess = OPEN_ACCESS,
) -> None:
    """Wait until this id is free, at most until a dead member's registration must have expired; raises `MeshError` where the id
    stays in use, or the store does not answer.
    """
    ends_s = time.monotonic() + registration_ttl_s + poll_s
    while (other := await holder(store, member_id, access)) is not None:
        if time.monotonic() > ends_s:
            raise MeshError(
                f"the id {member_id!r} is in use by pid {other.pid} on {other.host}: "
                "stop that one, or choose another SPOTWISE_SERVICE_ID"
            )
        await asyncio.sleep(poll_s)
