"""The processes that own kept requests: tells if the owner of a request that another gateway is to continue is alive."""

from __future__ import annotations

from spotwise.core.gateway.kept_request import process_of
from spotwise.gateway.resume.ports import KeepingStore
from spotwise.gateway.resume.store_turns import StoreTurns


class Owners:
    """Looks for owners of requests among the gateways of the mesh.

    Args:
        store: has their registrations.
        turns: for calls of it.
        process: this one, `id/incarnation`.
    """

    def __init__(self, store: KeepingStore, turns: StoreTurns, process: str) -> None:
        self._store = store
        self._turns = turns
        self._process = process

    async def is_alive(self, owner: str) -> bool:
        """Tell whether an owner's process lives, as far as is known: a registration outlives it for seconds.

        Raises:
            GenerationError: the store is away.
        """
        process = process_of(owner)
        if process == self._process:
            return True
        member_id, _, incarnation = process.partition("/")
        members = await self._turns.result(self._store.registered([member_id]))
        return any(str(each.incarnation) == incarnation for each in members)
