"""The contract of stores of kept requests: one owner at a time, and nothing written by an earlier one."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.gateway.kept_request import KeptAttempt, KeptEnding, KeptRequest, KeptTokens, NotSaved
from spotwise.mesh.ports import MeshStore
from tests.contracts.store import RECORD

FORM = KeptRequest(
    "chatcmpl-1", "acme", "chat", '{"model": "é"}', "hash", 7, (5, 6), "prompt", True, "key-1", "mine", "acme"
)
FINISHED = KeptEnding("finished")


def chunk(tokens: bytes, first: int, count: int = 1) -> KeptTokens:
    """Tokens of the first choice."""
    return KeptTokens("chatcmpl-1", "g0", 0, first, count, tokens)


class RequestStoreContract:
    """Subclasses have a fixture `store`: empty, closed when the test ends."""

    async def test_a_kept_request_comes_back_whole(self, store: MeshStore) -> None:
        """Its form, its owner and its tokens, in order."""
        assert await store.keep_request(FORM, "g0") is None
        assert await store.save_tokens([chunk(b"a\n\x00\xff", 0)]) == [1]
        assert await store.save_tokens([KeptTokens("chatcmpl-1", "g0"), chunk(b"b", 1, 3)]) == [1, 4]
        kept = await store.get_request("chatcmpl-1")
        assert kept is not None
        assert (kept.request, kept.owner, kept.ending, kept.chunks) == (FORM, "g0", None, (b"a\n\x00\xff", b"b"))

    async def test_what_is_not_kept_is_none(self, store: MeshStore) -> None:
        """Reading it, taking it, ending it."""
        assert await store.get_request("chatcmpl-1") is None
        assert await store.take_request("chatcmpl-1", "g1") is None
        assert not await store.end_request(FORM, "g0", FINISHED, 10.0)

    async def test_a_claim_finds_its_request(self, store: MeshStore) -> None:
        """The second request with the key is not kept; one without a key has no claim."""
        await store.keep_request(FORM, "g0")
        known = await store.keep_request(replace(FORM, request_id="chatcmpl-2"), "g1")
        assert known is not None
        assert (known.request.request_id, known.owner) == ("chatcmpl-1", "g0")
        assert await store.claimed_request(FORM.claim) == await store.get_request("chatcmpl-1")
        assert await store.claimed_request("another") is None
        assert await store.get_request("chatcmpl-2") is None
        for request_id in ("chatcmpl-3", "chatcmpl-4"):
            assert await store.keep_request(replace(FORM, request_id=request_id, claim=""), "g1") is None

    async def test_an_answer_keeps_its_claim_and_a_failure_does_not(self, store: MeshStore) -> None:
        """A client that retries gets the answer that there is, and another try where there is none."""
        await store.keep_request(FORM, "g0")
        assert await store.end_request(FORM, "g0", FINISHED, 60.0)
        known = await store.keep_request(replace(FORM, request_id="chatcmpl-2"), "g1")
        assert known is not None
        assert known.ending == FINISHED
        other = replace(FORM, request_id="chatcmpl-3", claim="key-3")
        failure = KeptEnding("failed", 429, "mesh_full", "All workers are full.")
        await store.keep_request(other, "g0")
        assert await store.end_request(other, "g0", failure, 60.0)
        assert await store.keep_request(replace(other, request_id="chatcmpl-4"), "g1") is None
        kept = await store.get_request("chatcmpl-3")
        assert kept is not None
        assert kept.ending == failure

    async def test_the_former_owner_writes_nothing(self, store: MeshStore) -> None:
        """No tokens, no record, no ending, and it deletes none; it learns of it each time."""
        record = replace(RECORD, choice_id="chatcmpl-1#1")
        await store.keep_request(FORM, "g0")
        assert await store.put_owned_record(record, "g0")
        await store.save_tokens([chunk(b"a", 0)])
        taken = await store.take_request("chatcmpl-1", "g1")
        assert taken is not None
        assert (taken.owner, taken.chunks) == ("g1", (b"a",))
        newer = replace(record, epoch=record.epoch + 1)
        assert await store.put_owned_record(newer, "g1")
        assert not await store.put_owned_record(replace(record, epoch=record.epoch + 7), "g0")
        await store.delete_owned_record("chatcmpl-1#1", "g0")
        assert await store.get_record("chatcmpl-1#1") == newer
        late = [replace(chunk(b"x", 1), request_id="chatcmpl-0"), chunk(b"x", 1)]
        assert await store.save_tokens(late) == [NotSaved.FORGOTTEN, NotSaved.TAKEN]
        assert await store.save_tokens([KeptTokens("chatcmpl-1", "g0")]) == [NotSaved.TAKEN]
        assert not await store.end_request(FORM, "g0", FINISHED, 60.0)
        kept = await store.get_request("chatcmpl-1")
        assert kept is not None
        assert (kept.owner, kept.ending, kept.chunks) == ("g1", None, (b"a",))
        await store.delete_owned_record("chatcmpl-1#1", "g1")
        assert await store.get_record("chatcmpl-1#1") is None

    async def test_the_latest_attempt_is_kept_though_its_record_is_gone(self, store: MeshStore) -> None:
        """Of each choice, for the gateway that goes on with it."""
        await store.keep_request(FORM, "g0")
        for choice, epoch in ((0, 1), (1, 1), (1, 3)):
            record = replace(RECORD, choice_id=f"chatcmpl-1#{choice}", epoch=epoch)
            assert await store.put_owned_record(record, "g0")
            await store.delete_owned_record(record.choice_id, "g0")
        taken = await store.take_request("chatcmpl-1", "g1")
        assert taken is not None
        attempts = {"chatcmpl-1#0": KeptAttempt(1, RECORD.stop), "chatcmpl-1#1": KeptAttempt(3, RECORD.stop)}
        assert taken.attempts == attempts
        forgotten = replace(FORM, request_id="chatcmpl-2", claim="key-2")
        assert await store.keep_request(forgotten, "g0", {"chatcmpl-2#1": KeptAttempt(7, RECORD.stop)}) is None
        kept = await store.get_request("chatcmpl-2")
        assert kept is not None
        assert kept.attempts == {"chatcmpl-2#1": KeptAttempt(7, RECORD.stop)}

    async def test_tokens_follow_on_one_another(self, store: MeshStore) -> None:
        """What is there already is not written twice, and nothing is written behind a gap: the answer says from where on."""
        await store.keep_request(FORM, "g0")
        assert await store.save_tokens([chunk(b"a", 0, 2), chunk(b"c", 5), chunk(b"a", 0, 2), chunk(b"b", 2, 3)]) == [
            *(2, 2, 2, 5)
        ]
        other = replace(chunk(b"z", 0), choice=1)
        assert await store.save_tokens([other, chunk(b"c", 5)]) == [1, 6]
        kept = await store.get_request("chatcmpl-1")
        assert kept is not None
        assert kept.chunks == (b"a", b"b", b"z", b"c")

    async def test_a_claim_is_its_own_requests(self, store: MeshStore) -> None:
        """Keeping a request again finds no other; one that ends takes no claim from its successor."""
        await store.keep_request(FORM, "g0")
        assert await store.keep_request(FORM, "g0") is None
        failure = KeptEnding("failed", 429, "mesh_full", "All workers are full.")
        assert await store.end_request(FORM, "g0", failure, 60.0)
        following = replace(FORM, request_id="chatcmpl-2")
        assert await store.keep_request(following, "g0") is None
        assert await store.end_request(FORM, "g0", failure, 60.0)
        known = await store.claimed_request(FORM.claim)
        assert known is not None
        assert known.request == following

    async def test_what_has_ended_is_taken_by_none(self, store: MeshStore) -> None:
        """It is read as it ended."""
        await store.keep_request(FORM, "g0")
        await store.end_request(FORM, "g0", FINISHED, 60.0)
        taken = await store.take_request("chatcmpl-1", "g1")
        assert taken is not None
        assert (taken.owner, taken.ending) == ("g0", FINISHED)

    async def test_a_request_that_the_store_forgot_goes_on(self, store: MeshStore) -> None:
        """A store that was emptied takes records as before: it knows of no other owner."""
        record = replace(RECORD, choice_id="chatcmpl-9")
        assert await store.put_owned_record(record, "g0")
        assert await store.get_record("chatcmpl-9") == record
        await store.delete_owned_record("chatcmpl-9", "g0")
        assert await store.get_record("chatcmpl-9") is None

    async def test_many_are_saved_at_once(self, store: MeshStore) -> None:
        """More than the store is given in one call."""
        ids = [f"chatcmpl-{number}" for number in range(300)]
        for request_id in ids:
            await store.keep_request(replace(FORM, request_id=request_id, claim=""), "g0")
        await store.take_request(ids[200], "g1")
        saved = await store.save_tokens([replace(chunk(each.encode(), 0), request_id=each) for each in ids])
        assert saved == [NotSaved.TAKEN if each == ids[200] else 1 for each in ids]
        kept = await store.get_request(ids[299])
        assert kept is not None
        assert kept.chunks == (ids[299].encode(),)
