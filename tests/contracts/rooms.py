"""The contract of what a store keeps of requests: bytes as they are written, shares of scopes, and what makes room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.access.store_budget import ENTRY_BYTES, PART_BYTES, Kind, RoomVerdict
from spotwise.core.gateway.kept_request import KeptEnding, KeptRequest, KeptTokens, NotSaved
from spotwise.core.requests.record import RequestRecord
from spotwise.mesh.ports.ports import MeshStore, NoRoomError
from tests.contracts.requests import FORM, OWNER, found
from tests.contracts.store import RECORD

FINISHED = KeptEnding("finished")
#: What a form takes beside its body, at most.
FORM_BYTES = ENTRY_BYTES + 500


def form(number: int, body_bytes: int = 1500, scope: str = "acme") -> KeptRequest:
    """A request whose body has so many bytes, without a claim; by default it takes a little over 3,000."""
    return replace(FORM, request_id=f"chatcmpl-{number}", body="x" * body_bytes, scope=scope, claim="")


def tokens(number: int, size_bytes: int, choice: int = 0, first: int = 0) -> KeptTokens:
    """A chunk that takes so much room."""
    return KeptTokens(f"chatcmpl-{number}", OWNER, choice, first, 1, b"x" * (size_bytes - PART_BYTES))


async def kept(store: MeshStore, *numbers: int) -> list[int]:
    """Those of some requests that are kept."""
    return [each for each in numbers if await store.get_request(f"chatcmpl-{each}") is not None]


def record(choice_id: str, tokens: int, tenant: str = "acme", epoch: int = 1) -> RequestRecord:
    """A record with such a prompt, of two bytes a token."""
    return replace(RECORD, choice_id=choice_id, epoch=epoch, prompt_token_ids=(1000,) * tokens, tenant=tenant)


class RoomContract:
    """Subclasses have a fixture `small_store`: empty, with the budget `SMALL`, closed when the test ends."""

    async def test_answers_that_ended_make_room(self, small_store: MeshStore) -> None:
        """The first to end, of the same scope; what runs stays, and a newcomer without room is not kept."""
        for number in (1, 2, 3):
            assert await small_store.keep_request(form(number), OWNER) is RoomVerdict.KEPT
        assert await small_store.keep_request(form(4), OWNER) is RoomVerdict.NO_ROOM_FOR_SCOPE
        assert await small_store.keep_request(form(9, scope="other"), OWNER) is RoomVerdict.KEPT
        for number, keep_s in ((2, 600.0), (3, 30.0)):
            assert await small_store.end_request(form(number), OWNER, FINISHED, keep_s)
        assert await small_store.keep_request(form(4), OWNER) is RoomVerdict.KEPT
        assert await kept(small_store, 1, 2, 3, 4, 9) == [1, 2, 4, 9]
        assert await small_store.keep_request(form(5), OWNER) is RoomVerdict.KEPT
        assert await small_store.keep_request(form(6), OWNER) is RoomVerdict.NO_ROOM_FOR_SCOPE
        assert await kept(small_store, 1, 2, 4, 5, 6, 9) == [1, 4, 5, 9]

    async def test_answers_of_others_make_room_where_all_is_full(self, small_store: MeshStore) -> None:
        """Until what runs has filled it."""
        for number, scope in enumerate(("a", "a", "b", "b", "c", "c")):
            assert await small_store.keep_request(form(number, scope=scope), OWNER) is RoomVerdict.KEPT
        assert await small_store.keep_request(form(7, scope="d"), OWNER) is RoomVerdict.NO_ROOM
        assert await small_store.end_request(form(2), OWNER, FINISHED, 60.0)
        assert await small_store.keep_request(form(7, scope="d"), OWNER) is RoomVerdict.KEPT
        assert await kept(small_store, *range(8)) == [0, 1, 3, 4, 5, 7]

    async def test_a_request_that_is_kept_again_counts_once(self, small_store: MeshStore) -> None:
        for _ in range(3):
            assert await small_store.keep_request(form(1), OWNER) is RoomVerdict.KEPT
            await small_store.take_request("chatcmpl-1", "g1/1")
        used = (await small_store.room_use())[Kind.REQUESTS].used_bytes
        assert 3000 < used < 3300

    async def test_a_form_larger_than_a_share_is_not_kept(self, small_store: MeshStore) -> None:
        """Though all is free."""
        assert await small_store.keep_request(form(1, 10_000), OWNER) is RoomVerdict.TOO_LARGE
        assert await kept(small_store, 1) == []

    async def test_tokens_that_have_no_room_end_their_request_alone(self, small_store: MeshStore) -> None:
        """Its claim is free, its other choices hear of it, and nothing else is forgotten."""
        claimed = replace(form(1), claim="key-1")
        assert await small_store.keep_request(claimed, OWNER) is RoomVerdict.KEPT
        assert await small_store.keep_request(form(2), OWNER) is RoomVerdict.KEPT
        assert await small_store.save_tokens([tokens(1, 1000), tokens(2, 1000)]) == [1, 1]
        saved = await small_store.save_tokens(
            [tokens(1, 6000, first=1), tokens(1, 100, choice=1), tokens(2, 500, first=1)]
        )
        assert saved == [NotSaved.NO_ROOM, NotSaved.NO_ROOM, 2]
        assert await kept(small_store, 1, 2) == [2]
        assert await small_store.claimed_request("key-1") is None
        assert await small_store.keep_request(form(3, 3000), OWNER) is RoomVerdict.KEPT

    async def test_an_answer_makes_room_for_tokens(self, small_store: MeshStore) -> None:
        for number in (1, 2):
            assert await small_store.keep_request(form(number), OWNER) is RoomVerdict.KEPT
        await small_store.save_tokens([tokens(1, 2000)])
        await small_store.end_request(form(1), OWNER, FINISHED, 60.0)
        assert await small_store.save_tokens([tokens(2, 4000)]) == [1]
        assert await kept(small_store, 1, 2) == [2]

    @pytest.mark.parametrize(("body", "size"), [("😀" * 1000, 4000), ('\\"' * 1000, 2000), ("é\n" * 1000, 3000)])
    async def test_a_body_counts_as_it_is_written(self, small_store: MeshStore, body: str, size: int) -> None:
        """In bytes, not in characters, and written once, not as JSON in JSON."""
        assert await small_store.keep_request(replace(FORM, body=body), OWNER) is RoomVerdict.KEPT
        used = (await small_store.room_use())[Kind.REQUESTS].used_bytes
        assert size + ENTRY_BYTES < used < size + FORM_BYTES
        assert (await found(small_store, FORM.request_id)).request.body == body

    async def test_records_of_one_scope_leave_room_for_others(self, small_store: MeshStore) -> None:
        """What runs goes on: its next attempt needs no room. What ends gives its room back."""
        await small_store.put_record(record("a#0", 1000))
        await small_store.put_record(record("a#1", 1000))
        with pytest.raises(NoRoomError):
            await small_store.put_record(record("a#2", 1000))
        assert await small_store.get_record("a#2") is None
        await small_store.put_record(record("b", 1000, "other"))
        await small_store.put_record(record("a#0", 1000, epoch=2))
        await small_store.delete_record("a#1")
        await small_store.put_record(record("a#2", 1000))
        for choice_id in ("a#0", "a#2", "b"):
            assert await small_store.get_record(choice_id) is not None
