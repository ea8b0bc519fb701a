"""Ensures one process per id: a service waits until its id is free. An id is in use while its registration is renewed and a
process answers at its address. A dead process does not answer, so that a restart does not wait; where another service has
taken its port, the registration expires. Of two processes that start at once the earlier one leaves when it receives the
later one's heartbeat (`service`).
"""

from __future__ import annotations

import asyncio
import time

from spotwise.core.messages.members import Member
from spotwise.mesh.grpc.control import answers
from spotwise.mesh.grpc.control_access import OPEN_ACCESS, ControlAccess
from spotwise.mesh.ports.ports import MeshError, MeshStore


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
