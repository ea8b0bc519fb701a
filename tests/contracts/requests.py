"""The contract of stores of kept requests: one owner at a time, and nothing written by an earlier one."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.access.store_budget import RoomVerdict
from spotwise.core.gateway.kept_request import (
    KeptAttempt,
    KeptEnding,
    KeptRequest,
    KeptState,
    KeptTokens,
    NotSaved,
    owner_of,
    process_of,
    turn_of,
)
from spotwise.mesh.ports.ports import MeshStore
from tests.contracts.store import RECORD

FORM = KeptRequest(
    "chatcmpl-1", "acme", "chat", '{"model": "é"}', "hash", 7, (5, 6), "prompt", True, "key-1", "mine", "acme"
)
FINISHED = KeptEnding("finished")
#: Those that kept requests first, at two gateways.
OWNER, LATER = owner_of("g0/1"), owner_of("g1/1")


def chunk(tokens: bytes, first: int, count: int = 1) -> KeptTokens:
    """Tokens of the first choice."""
    return KeptTokens("chatcmpl-1", OWNER, 0, first, count, tokens)


async def found(store: MeshStore, request_id: str) -> KeptState:
    kept = await store.get_request(request_id)
    assert kept is not None
    return kept


async def taken_by(store: MeshStore, process: str) -> KeptState:
    """Let a gateway's process take the first request."""
    taken = await store.take_request("chatcmpl-1", process)
    assert taken is not None
    return taken


class RequestStoreContract:
    """Subclasses have a fixture `store`: empty, closed when the test ends."""

    async def lose_turns(self, store: MeshStore, request_id: str, owner: str) -> None:
        """Let the store have lost that a request has another owner, as a replica that becomes the primary."""
        raise NotImplementedError

    async def test_a_kept_request_comes_back_whole(self, store: MeshStore) -> None:
        assert await store.keep_request(FORM, OWNER) is RoomVerdict.KEPT
        assert await store.save_tokens([chunk(b"a\n\x00\xff", 0)]) == [1]
        assert await store.save_tokens([KeptTokens("chatcmpl-1", OWNER), chunk(b"b", 1, 3)]) == [1, 4]
        kept = await found(store, "chatcmpl-1")
        assert (kept.request, kept.owner, kept.ending, kept.chunks) == (FORM, OWNER, None, (b"a\n\x00\xff", b"b"))

    async def test_what_is_not_kept_is_none(self, store: MeshStore) -> None:
        assert await store.get_request("chatcmpl-1") is None
        assert await store.take_request("chatcmpl-1", "g1/1") is None
        assert not await store.end_request(FORM, OWNER, FINISHED, 10.0)

    async def test_a_claim_finds_its_request(self, store: MeshStore) -> None:
        """The second request with the key is not kept; one without a key has no claim."""
        await store.keep_request(FORM, OWNER)
        known = await store.keep_request(replace(FORM, request_id="chatcmpl-2"), LATER)
        assert isinstance(known, KeptState)
        assert (known.request.request_id, known.owner) == ("chatcmpl-1", OWNER)
        assert await store.claimed_request(FORM.claim) == await store.get_request("chatcmpl-1")
        assert await store.claimed_request("another") is None
        assert await store.get_request("chatcmpl-2") is None
        for request_id in ("chatcmpl-3", "chatcmpl-4"):
            assert await store.keep_request(replace(FORM, request_id=request_id, claim=""), LATER) is RoomVerdict.KEPT

    async def test_an_answer_keeps_its_claim_and_a_failure_does_not(self, store: MeshStore) -> None:
        """A client that retries gets the answer that there is, and another try where there is none."""
        await store.keep_request(FORM, OWNER)
        assert await store.end_request(FORM, OWNER, FINISHED, 60.0)
        known = await store.keep_request(replace(FORM, request_id="chatcmpl-2"), LATER)
        assert isinstance(known, KeptState)
        assert known.ending == FINISHED
        other = replace(FORM, request_id="chatcmpl-3", claim="key-3")
        failure = KeptEnding("failed", 429, "mesh_full", "All workers are full.")
        await store.keep_request(other, OWNER)
        assert await store.end_request(other, OWNER, failure, 60.0)
        assert await store.keep_request(replace(other, request_id="chatcmpl-4"), LATER) is RoomVerdict.KEPT
        kept = await found(store, "chatcmpl-3")
        assert kept.ending == failure

    async def test_the_former_owner_writes_nothing(self, store: MeshStore) -> None:
        """No tokens, no record, no ending, and it deletes none; it learns of it each time."""
        record = replace(RECORD, choice_id="chatcmpl-1#1")
        await store.keep_request(FORM, OWNER)
        assert await store.put_owned_record(record, OWNER)
        await store.save_tokens([chunk(b"a", 0)])
        taken = await taken_by(store, "g1/1")
        assert (process_of(taken.owner), taken.chunks) == ("g1/1", (b"a",))
        newer = replace(record, epoch=record.epoch + 1)
        assert await store.put_owned_record(newer, taken.owner)
        assert not await store.put_owned_record(replace(record, epoch=record.epoch + 7), OWNER)
        await store.delete_owned_record("chatcmpl-1#1", OWNER)
        assert await store.get_record("chatcmpl-1#1") == newer
        late = [replace(chunk(b"x", 1), request_id="chatcmpl-0"), chunk(b"x", 1)]
        assert await store.save_tokens(late) == [NotSaved.FORGOTTEN, NotSaved.TAKEN]
        assert await store.save_tokens([KeptTokens("chatcmpl-1", OWNER)]) == [NotSaved.TAKEN]
        assert not await store.end_request(FORM, OWNER, FINISHED, 60.0)
        kept = await found(store, "chatcmpl-1")
        assert (kept.owner, kept.ending, kept.chunks) == (taken.owner, None, (b"a",))
        await store.delete_owned_record("chatcmpl-1#1", taken.owner)
        assert await store.get_record("chatcmpl-1#1") is None

    async def test_each_owner_has_a_later_turn(self, store: MeshStore) -> None:
        await store.keep_request(FORM, OWNER)
        turns = [0]
        for process in ("g1/1", "g0/1", "g0/1"):
            taken = await taken_by(store, process)
            assert process_of(taken.owner) == process
            turns.append(turn_of(taken.owner))
        assert turns == sorted(set(turns))

    async def test_a_turn_that_the_store_has_lost_counts(self, store: MeshStore) -> None:
        """Its owner goes on, whatever it writes first, and the former one, which may be dead, is the former one again."""
        record = replace(RECORD, choice_id="chatcmpl-1#0")
        await store.keep_request(FORM, OWNER)
        taken = await taken_by(store, "g1/1")
        tokens = replace(chunk(b"a", 0), owner=taken.owner)
        await self.lose_turns(store, "chatcmpl-1", OWNER)
        assert await store.save_tokens([tokens]) == [1]
        assert await store.save_tokens([chunk(b"b", 1)]) == [NotSaved.TAKEN]
        await self.lose_turns(store, "chatcmpl-1", OWNER)
        assert await store.put_owned_record(record, taken.owner)
        assert not await store.put_owned_record(record, OWNER)
        await self.lose_turns(store, "chatcmpl-1", OWNER)
        assert await store.end_request(FORM, taken.owner, FINISHED, 60.0)
        kept = await found(store, "chatcmpl-1")
        assert (kept.owner, kept.ending) == (taken.owner, FINISHED)

    async def test_a_request_that_was_forgotten_is_its_latest_owners(self, store: MeshStore) -> None:
        await store.keep_request(FORM, OWNER)
        taken = await taken_by(store, "g1/1")
        await store.keep_request(FORM, taken.owner)
        await store.keep_request(FORM, OWNER)
        kept = await found(store, "chatcmpl-1")
        assert kept.owner == taken.owner

    async def test_a_request_that_is_forgotten_stays_so(self, store: MeshStore) -> None:
        """With its claim, its tokens and the records of its attempts; neither its owner nor another one brings it back."""
        record = replace(RECORD, choice_id="chatcmpl-1#0")
        await store.keep_request(FORM, OWNER)
        await store.put_owned_record(record, OWNER)
        await store.save_tokens([chunk(b"a", 0)])
        for _ in range(2):
            await store.forget_request(FORM)
        assert await store.get_request("chatcmpl-1") is None
        assert await store.claimed_request(FORM.claim) is None
        assert await store.take_request("chatcmpl-1", "g1/1") is None
        assert await store.save_tokens([chunk(b"a", 0), chunk(b"b", 1)]) == [NotSaved.TAKEN] * 2
        assert not await store.put_owned_record(record, OWNER)
        assert not await store.end_request(FORM, OWNER, FINISHED, 60.0)
        assert await store.keep_request(FORM, OWNER) is RoomVerdict.KEPT
        assert await store.get_request("chatcmpl-1") is None
        following = replace(FORM, request_id="chatcmpl-2")
        assert await store.keep_request(following, OWNER) is RoomVerdict.KEPT
        known = await store.claimed_request(FORM.claim)
        assert known is not None and known.request == following

    async def test_the_latest_attempt_is_kept_though_its_record_is_gone(self, store: MeshStore) -> None:
        await store.keep_request(FORM, OWNER)
        for choice, epoch in ((0, 1), (1, 1), (1, 3)):
            record = replace(RECORD, choice_id=f"chatcmpl-1#{choice}", epoch=epoch)
            assert await store.put_owned_record(record, OWNER)
            await store.delete_owned_record(record.choice_id, OWNER)
        taken = await taken_by(store, "g1/1")
        attempts = {"chatcmpl-1#0": KeptAttempt(1, RECORD.stop), "chatcmpl-1#1": KeptAttempt(3, RECORD.stop)}
        assert taken.attempts == attempts
        forgotten = replace(FORM, request_id="chatcmpl-2", claim="key-2")
        assert (
            await store.keep_request(forgotten, OWNER, {"chatcmpl-2#1": KeptAttempt(7, RECORD.stop)})
            is RoomVerdict.KEPT
        )
        kept = await found(store, "chatcmpl-2")
        assert kept.attempts == {"chatcmpl-2#1": KeptAttempt(7, RECORD.stop)}

    async def test_tokens_follow_on_one_another(self, store: MeshStore) -> None:
        """What is there already is not written twice, and nothing is written behind a gap: the answer says from where on."""
        await store.keep_request(FORM, OWNER)
        assert await store.save_tokens([chunk(b"a", 0, 2), chunk(b"c", 5), chunk(b"a", 0, 2), chunk(b"b", 2, 3)]) == [
            *(2, 2, 2, 5)
        ]
        other = replace(chunk(b"z", 0), choice=1)
        assert await store.save_tokens([other, chunk(b"c", 5)]) == [1, 6]
        kept = await found(store, "chatcmpl-1")
        assert kept.chunks == (b"a", b"b", b"z", b"c")

    async def test_a_claim_is_its_own_requests(self, store: MeshStore) -> None:
        """Keeping a request again finds no other; one that ends takes no claim from its successor."""
        await store.keep_request(FORM, OWNER)
        assert await store.keep_request(FORM, OWNER) is RoomVerdict.KEPT
        failure = KeptEnding("failed", 429, "mesh_full", "All workers are full.")
        assert await store.end_request(FORM, OWNER, failure, 60.0)
        following = replace(FORM, request_id="chatcmpl-2")
        assert await store.keep_request(following, OWNER) is RoomVerdict.KEPT
        assert await store.end_request(FORM, OWNER, failure, 60.0)
        known = await store.claimed_request(FORM.claim)
        assert known is not None
        assert known.request == following

    async def test_what_has_ended_is_taken_by_none(self, store: MeshStore) -> None:
        await store.keep_request(FORM, OWNER)
        await store.end_request(FORM, OWNER, FINISHED, 60.0)
        taken = await taken_by(store, "g1/1")
        assert (taken.owner, taken.ending) == (OWNER, FINISHED)

    async def test_a_request_that_the_store_forgot_goes_on(self, store: MeshStore) -> None:
        """A store that was emptied takes records as before: it knows of no other owner."""
        record = replace(RECORD, choice_id="chatcmpl-9")
        assert await store.put_owned_record(record, OWNER)
        assert await store.get_record("chatcmpl-9") == record
        await store.delete_owned_record("chatcmpl-9", OWNER)
        assert await store.get_record("chatcmpl-9") is None

    async def test_many_are_saved_at_once(self, store: MeshStore) -> None:
        ids = [f"chatcmpl-{number}" for number in range(300)]
        for request_id in ids:
            await store.keep_request(replace(FORM, request_id=request_id, claim=""), OWNER)
        await store.take_request(ids[200], "g1/1")
        saved = await store.save_tokens([replace(chunk(each.encode(), 0), request_id=each) for each in ids])
        assert saved == [NotSaved.TAKEN if each == ids[200] else 1 for each in ids]
        kept = await found(store, ids[299])
        assert kept.chunks == (ids[299].encode(),)
