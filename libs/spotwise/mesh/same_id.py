"""One process for each id: what a service waits for before it takes its own.

Law: a registration speaks for a process that lives if somebody answers at its address and it is renewed. A dead process's
address answers no more, so that a restart waits for nothing; should another service have got its port, the registration ends
by itself within its time to live.

Two that start at the same moment find each other's ids free; the earlier leaves when it hears the later one beat (`service`).
"""

from __future__ import annotations

import asyncio
import time

from spotwise.core.messages import Member
from spotwise.mesh.grpc_control import answers
from spotwise.mesh.ports import MeshError, MeshStore


async def holder(store: MeshStore, member_id: str) -> Member | None:
    """Return the member of this id that is registered and answers; `None` where the id can be had.

    Raises:
        MeshError: the store does not answer.
    """
    registered = next((member for member in await store.members() if member.id == member_id), None)
    return registered if registered is not None and await answers(registered.grpc_address) else None


async def wait_until_free(store: MeshStore, member_id: str, registration_ttl_s: float, poll_s: float) -> None:
    """Return once nobody has this id, at the latest when a dead member's registration must have ended.

    Raises:
        MeshError: somebody has it and stays, or the store does not answer.
    """
    ends_s = time.monotonic() + registration_ttl_s + poll_s
    while (other := await holder(store, member_id)) is not None:
        if time.monotonic() > ends_s:
            raise MeshError(
                f"the id {member_id!r} is in use by pid {other.pid} on {other.host}: "
                "stop that one, or choose another SPOTWISE_SERVICE_ID"
            )
        await asyncio.sleep(poll_s)
