"""The contract of stores of responses: what is put is found, and the oldest make room."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.access.store_budget import RoomVerdict, StoreBudget, size_of
from spotwise.core.gateway.kept_request import StoredResponse
from spotwise.mesh.ports.ports import MeshStore

RESPONSE = StoredResponse("resp_1", "acme", '{"id": "é"}'.encode(), b"[]")
KEPT_S = 60.0
#: 20,000 bytes of responses and as many of requests, 10,000 of each of one scope; 15,000 and 7,500 of records; 5,000 of
#: ledgers.
SMALL = StoreBudget(60_000)


def of_size(number: int, size_bytes: int, scope: str = "acme") -> StoredResponse:
    """A response that takes so much room."""
    return StoredResponse(f"resp_{number}", scope, b"x" * (size_bytes - size_of(b"[]")), b"[]")


async def put(store: MeshStore, response: StoredResponse) -> None:
    """Store a response; it has room."""
    assert await store.responses.put_response(response, KEPT_S) is RoomVerdict.KEPT


async def stored(store: MeshStore, *numbers: int) -> list[int]:
    """Those of some responses that are stored."""
    return [each for each in numbers if await store.responses.get_response(f"resp_{each}") is not None]


class ResponseStoreContract:
    """Subclasses have a fixture `store`: empty, closed when the test ends; and `small_store`, with the budget `SMALL`."""

    async def test_a_response_comes_back_whole(self, store: MeshStore) -> None:
        """By its id, with whose it is; it is stored once."""
        assert await store.responses.get_response("resp_1") is None
        await put(store, RESPONSE)
        assert await store.responses.get_response("resp_1") == RESPONSE
        await put(store, replace(RESPONSE, body=b"{}", scope=""))
        assert await store.responses.get_response("resp_1") == RESPONSE

    async def test_a_deleted_response_is_gone(self, small_store: MeshStore) -> None:
        """Once; its room is free but for what says so, and no answer that is read again brings it back."""
        await put(small_store, of_size(1, 6000))
        await put(small_store, of_size(2, 4000))
        assert await small_store.responses.delete_response("resp_1")
        assert not await small_store.responses.delete_response("resp_1")
        assert await small_store.responses.get_response("resp_1") is None
        await put(small_store, of_size(3, 4000))
        await put(small_store, of_size(1, 6000))
        assert await stored(small_store, 1, 2, 3) == [2, 3]
        assert not await small_store.responses.delete_response("resp_9")
        await put(small_store, of_size(9, 2000))
        assert await stored(small_store, 9) == []

    async def test_the_oldest_of_a_scope_make_room(self, small_store: MeshStore) -> None:
        """As many as needed, and none of another scope; what is stored again is no younger, and counts once."""
        for number in (1, 2, 3):
            await put(small_store, of_size(number, 3000))
        await put(small_store, of_size(9, 3000, "other"))
        await put(small_store, of_size(1, 3000))
        assert await stored(small_store, 1, 2, 3, 9) == [1, 2, 3, 9]
        await put(small_store, of_size(4, 3001))
        assert await stored(small_store, 1, 2, 3, 4, 9) == [2, 3, 4, 9]
        await put(small_store, of_size(5, 10_000))
        assert await stored(small_store, 1, 2, 3, 4, 5, 9) == [5, 9]

    async def test_the_oldest_of_all_make_room(self, small_store: MeshStore) -> None:
        for number, scope in enumerate(("a", "b", "c", "d", ""), 1):
            await put(small_store, of_size(number, 5000, scope))
        assert await stored(small_store, 1, 2, 3, 4, 5) == [2, 3, 4, 5]
        await put(small_store, of_size(6, 8000, "b"))
        assert await stored(small_store, 1, 2, 3, 4, 5, 6) == [4, 5, 6]

    async def test_what_is_larger_than_a_share_is_not_stored(self, small_store: MeshStore) -> None:
        await put(small_store, of_size(1, 3000))
        assert await small_store.responses.put_response(of_size(2, 10_001), KEPT_S) is RoomVerdict.TOO_LARGE
        assert await stored(small_store, 1, 2) == [1]
