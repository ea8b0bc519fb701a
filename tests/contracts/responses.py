"""The contract of stores of responses: what is put is found, and the oldest make room."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.gateway.stored_response import ResponseLimits, StoredResponse
from spotwise.mesh.ports import MeshStore

RESPONSE = StoredResponse("resp_1", "acme", '{"id": "é"}', "[]")
LIMITS = ResponseLimits(60.0, 1000, 2000)


def of_size(number: int, size_bytes: int, scope: str = "acme") -> StoredResponse:
    """A response that takes so much room."""
    return StoredResponse(f"resp_{number}", scope, "x" * (size_bytes - 2), "[]")


async def stored(store: MeshStore, *numbers: int) -> list[int]:
    """Those of some responses that are stored."""
    return [each for each in numbers if await store.responses.get_response(f"resp_{each}") is not None]


class ResponseStoreContract:
    """Subclasses have a fixture `store`: empty, closed when the test ends."""

    async def test_a_response_comes_back_whole(self, store: MeshStore) -> None:
        """By its id, with whose it is; it is stored once."""
        assert await store.responses.get_response("resp_1") is None
        await store.responses.put_response(RESPONSE, LIMITS)
        assert await store.responses.get_response("resp_1") == RESPONSE
        await store.responses.put_response(replace(RESPONSE, body="{}", scope=""), LIMITS)
        assert await store.responses.get_response("resp_1") == RESPONSE

    async def test_a_deleted_response_is_gone(self, store: MeshStore) -> None:
        """Once; its room is free, and no answer that is read again brings it back."""
        await store.responses.put_response(of_size(1, 600), LIMITS)
        await store.responses.put_response(of_size(2, 400), LIMITS)
        assert await store.responses.delete_response("resp_1")
        assert not await store.responses.delete_response("resp_1")
        assert await store.responses.get_response("resp_1") is None
        await store.responses.put_response(of_size(3, 600), LIMITS)
        await store.responses.put_response(of_size(1, 600), LIMITS)
        assert await stored(store, 1, 2, 3) == [2, 3]
        assert not await store.responses.delete_response("resp_9")
        await store.responses.put_response(of_size(9, 10), LIMITS)
        assert await stored(store, 9) == []

    async def test_the_oldest_of_a_scope_make_room(self, store: MeshStore) -> None:
        """As many as needed, and none of another scope; what is stored again is no younger, and counts once."""
        for number in (1, 2, 3):
            await store.responses.put_response(of_size(number, 300), LIMITS)
        await store.responses.put_response(of_size(9, 300, "other"), LIMITS)
        await store.responses.put_response(of_size(1, 300), LIMITS)
        assert await stored(store, 1, 2, 3, 9) == [1, 2, 3, 9]
        await store.responses.put_response(of_size(4, 301), LIMITS)
        assert await stored(store, 1, 2, 3, 4, 9) == [2, 3, 4, 9]
        await store.responses.put_response(of_size(5, 1000), LIMITS)
        assert await stored(store, 1, 2, 3, 4, 5, 9) == [5, 9]

    async def test_the_oldest_of_all_make_room(self, store: MeshStore) -> None:
        """Whosever they are."""
        for number, scope in enumerate(("a", "b", "c", "d", ""), 1):
            await store.responses.put_response(of_size(number, 500, scope), LIMITS)
        assert await stored(store, 1, 2, 3, 4, 5) == [2, 3, 4, 5]
        await store.responses.put_response(of_size(6, 800, "b"), LIMITS)
        assert await stored(store, 1, 2, 3, 4, 5, 6) == [4, 5, 6]
