"""What strangers and malicious peers reach at a worker's KV port: nothing, counted, and hand-offs go on beside them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import psutil
import pytest

from spotwise.mesh.links.ucx_links import MOST_LINKS_OF_A_PEER, MOST_WAITING
from spotwise.mesh.links.ucx_reactor import UcxReactor
from spotwise.mesh.ports.ports import KvTransferError
from spotwise.mesh.security.handshake import Handshake, LinkTerms
from spotwise.mesh.security.link_security import LinkEncryption, LinkSecurity
from spotwise.mesh.security.seal import SEALED_BYTES, LinkSeal, sealed_copy
from spotwise.mesh.security.secrets import MeshSecret
from spotwise.wire import framing
from spotwise.wire.kv_frames import FRAME_BYTES, FrameKind, encode_frame
from spotwise.wire.link_hello import (
    HEAD_BYTES,
    HELLO_BYTES,
    LinkHello,
    LinkKind,
    decode_hello,
    decode_refusal,
    encode_hello,
    layout_fingerprint,
    message_bytes,
)
from tests.integration.test_ucx_faults import COMMIT, GOOD, RawPeer
from tests.integration.test_ucx_processes import Peer
from tests.integration.ucx_worker import Worker, handoff, running, until

pytestmark = [pytest.mark.mesh, pytest.mark.paired]

SECRET = LinkSecurity(MeshSecret(b"s" * 32))
ENCRYPTED = LinkSecurity(MeshSecret(b"s" * 32), LinkEncryption.ON)
OTHER = LinkSecurity(MeshSecret(b"o" * 32))
MESSAGE_BYTES = message_bytes(HELLO_BYTES)


class Stranger:
    """A UCX client that sends what it likes."""

    def __init__(self, worker: Worker) -> None:
        self.reactor = UcxReactor()
        self.worker = worker
        self.endpoints: list[Any] = []

    def connect(self) -> Any:
        """Return a new endpoint, and the receipts of the listener's first and second message."""
        host, _, port = self.worker.transport.address.rpartition(":")
        endpoint = self.reactor.ucx.UCXEndpoint.create(self.reactor.worker, host, int(port), True)
        self.endpoints.append(endpoint)
        return endpoint

    def receive(self, endpoint: Any, size: int) -> tuple[bytearray, asyncio.Future[None]]:
        into = bytearray(size)
        return into, self.reactor.receive_stream(endpoint, into)

    async def exchange(self, answer: Any) -> bytes:
        """Send what `answer` makes of the offer, and return what comes back."""
        endpoint = self.connect()
        offer, offered = self.receive(endpoint, HEAD_BYTES)
        reply, replied = self.receive(endpoint, MESSAGE_BYTES)
        await offered
        await self.reactor.send_stream(endpoint, answer(bytes(offer)))
        await replied
        return bytes(reply)

    async def shaken(self, security: LinkSecurity, name: str = "stranger") -> tuple[Any, LinkTerms]:
        """Shake hands as a peer of the mesh."""
        endpoint = self.connect()
        offer, offered = self.receive(endpoint, HEAD_BYTES)
        reply, replied = self.receive(endpoint, MESSAGE_BYTES)
        await offered
        caller, hello = self.called(security, bytes(offer), name)
        await self.reactor.send_stream(endpoint, hello)
        await replied
        caller.verify(bytes(reply), decode_hello)
        return endpoint, caller.terms()

    def called(self, security: LinkSecurity, offer: bytes, name: str = "stranger") -> tuple[Handshake, bytes]:
        """Return a caller's handshake and its hello."""
        handshake = Handshake(security, LinkKind.KV, "127.0.0.1")
        handshake.meet(offer)
        return handshake, handshake.hello(
            encode_hello(LinkHello(name, 9, layout_fingerprint(self.worker.memory.layout)))
        )


@asynccontextmanager
async def stranger_at(worker: Worker) -> AsyncIterator[Stranger]:
    stranger = Stranger(worker)
    try:
        yield stranger
    finally:
        for endpoint in stranger.endpoints:
            endpoint.remove_close_callback()
            endpoint.close_blocking(10**8, 1)
        stranger.reactor.close()


def _older(hello: bytes) -> bytes:
    body = bytearray(hello[: HEAD_BYTES - framing.SEAL_BYTES])
    body[4] -= 1
    return framing.seal(bytes(body)) + hello[HEAD_BYTES:]


async def hands_over(sender: Worker, receiver: Worker) -> None:
    before = len(receiver.handoffs)
    receiver.transport.expect("real", 1, (1, 2))
    await sender.transport.push(receiver.target((1, 2)), handoff("real"), (3, 4))
    assert len(receiver.handoffs) == before + 1
    assert np.array_equal(receiver.memory.cells[:, (1, 2)], sender.memory.cells[:, (3, 4)])


def refused(worker: Worker) -> dict[str, int]:
    return worker.transport.refusals.by_reason


def keeps_nothing(worker: Worker) -> bool:
    """Whether no link is left, accepted or not, and no push."""
    links = worker.transport._links
    return not links._waiting and not links._accepted and not links._open and not worker.transport._inbox.arriving


async def test_who_does_not_know_the_secret_gets_nothing() -> None:
    """Another secret, none, a recorded hello, noise, an older version: refused with reasons and counted, beside a hand-off."""
    sender, receiver = Worker("p", 1, security=SECRET), Worker("t", 2, security=SECRET)
    async with running(sender, receiver), stranger_at(receiver) as stranger:
        noise = random.Random(3).randbytes(MESSAGE_BYTES)
        recorded: list[bytes] = []

        def record(offer: bytes) -> bytes:
            recorded.append(stranger.called(SECRET, offer)[1])
            return recorded[0]

        await stranger.exchange(record)
        for answer, name in (
            (lambda offer: stranger.called(OTHER, offer)[1], "wrong_secret"),
            (lambda offer: stranger.called(LinkSecurity(), offer)[1], "wrong_secret"),
            (lambda _: recorded[0], "wrong_secret"),
            (lambda _: noise, "malformed"),
            (lambda offer: (offer * 9)[:MESSAGE_BYTES], "malformed"),
            (lambda offer: _older(stranger.called(SECRET, offer)[1]), "malformed"),
        ):
            before = refused(receiver).get(name, 0)
            refusal = decode_refusal(await stranger.exchange(answer))
            assert refusal is not None
            assert refusal.name.lower() == name
            assert refused(receiver)[name] == before + 1
        await hands_over(sender, receiver)
        assert refused(receiver) == {"wrong_secret": 3, "malformed": 3}
        assert receiver.transport.refused_connections == 6


async def test_a_worker_with_another_secret_learns_why() -> None:
    """From the error of its push, and not after a time-out; the reservation stays for who knows it."""
    sender, other, receiver = (
        Worker("p", 1, security=SECRET),
        Worker("o", 3, security=OTHER),
        Worker("t", 2, security=SECRET),
    )
    async with running(sender, other, receiver):
        receiver.transport.expect("real", 1, (1, 2))
        with pytest.raises(KvTransferError, match="SPOTWISE_MESH_SECRET_FILE"):
            await asyncio.wait_for(other.transport.push(receiver.target((1, 2)), handoff("real"), (3, 4)), 10.0)
        await hands_over(sender, receiver)


async def test_an_end_that_must_encrypt_has_no_link_with_one_that_must_not() -> None:
    """Never a plain one."""
    never = LinkSecurity(MeshSecret(b"s" * 32), LinkEncryption.OFF)
    sender, receiver = Worker("p", 1, security=never), Worker("t", 2, security=ENCRYPTED)
    async with running(sender, receiver):
        for one, other in ((sender, receiver), (receiver, sender)):
            with pytest.raises(KvTransferError, match="SPOTWISE_LINK_ENCRYPTION"):
                await one.transport.push(other.target((1,)), handoff(), (3,))


async def test_half_open_connections_are_few_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent ones and ones with half a hello: the oldest makes room, a peer still gets in, and all end by themselves."""
    monkeypatch.setattr("spotwise.mesh.links.ucx_links._ACCEPT_TIMEOUT_S", 1.5)
    sender, receiver = Worker("p", 1, security=SECRET), Worker("t", 2, security=SECRET)
    async with running(sender, receiver), stranger_at(receiver) as stranger:
        for number in range(MOST_WAITING + 12):
            endpoint = stranger.connect()
            if number % 2:
                _, sent = None, stranger.reactor.send_stream(endpoint, b"x" * 100)
                sent.add_done_callback(lambda done: done.cancelled() or done.exception())
        links = receiver.transport._links
        await until(lambda: refused(receiver).get("too_many_waiting", 0) >= 12)
        assert len(links._waiting) <= MOST_WAITING
        await hands_over(sender, receiver)
        await until(lambda: not links._waiting)
        assert refused(receiver)["timed_out"] + refused(receiver)["too_many_waiting"] >= MOST_WAITING
        await until(lambda: len(links._open) == 1)  # the sender's


async def test_a_peer_has_few_links() -> None:
    """One that knows the secret and opens more loses its oldest; others do not."""
    sender, receiver = Worker("p", 1, security=SECRET), Worker("t", 2, security=SECRET)
    async with running(sender, receiver), stranger_at(receiver) as stranger:
        await hands_over(sender, receiver)
        for _ in range(MOST_LINKS_OF_A_PEER + 3):
            await stranger.shaken(SECRET)
        accepted = receiver.transport._links._accepted
        await until(lambda: len(accepted["stranger"]) == MOST_LINKS_OF_A_PEER)
        assert refused(receiver) == {"too_many_links": 3}
        assert len(accepted["p"]) == 1
        await hands_over(sender, receiver)


async def test_messages_to_tags_that_nobody_gave_are_dropped() -> None:
    """By a peer of the mesh or a stranger: they end in no window, and UCX does not keep them."""
    sender, receiver = Worker("p", 1, security=SECRET), Worker("t", 2, security=SECRET)
    async with running(sender, receiver), stranger_at(receiver) as stranger:
        await hands_over(sender, receiver)
        before = receiver.memory.cells.copy()
        endpoint, _ = await stranger.shaken(SECRET)
        unknown = stranger.connect()
        guesses = [*range(8), 2**63, random.Random(5).getrandbits(64)]
        frame = encode_frame(RawPeer(receiver).frame(FrameKind.CHUNK, GOOD))
        sending = [
            stranger.reactor.send_tagged(each, tag, data)
            for each in (endpoint, unknown)
            for tag in guesses
            for data in (frame, GOOD)
        ]
        for each in sending:
            each.add_done_callback(lambda done: done.cancelled() or done.exception())
        reactor = receiver.transport._links._reactor
        assert reactor is not None
        await until(lambda: reactor.strays >= len(sending) // 2)
        await hands_over(sender, receiver)
        assert np.array_equal(receiver.memory.cells[:, 10:], before[:, 10:])


def _sealed(seal: LinkSeal, header: bytes) -> bytes:
    into = bytearray(len(header) + SEALED_BYTES)
    seal.seal_next(header, into)
    return bytes(into)


@pytest.mark.parametrize("bad", ["plain", "repeated", "damaged", "left out", "longer"])
async def test_a_header_that_was_not_sealed_for_its_place_ends_an_encrypted_link(bad: str) -> None:
    """In the clear, again, changed or out of order; the window stays for an honest push."""
    sender, receiver = Worker("p", 1, security=ENCRYPTED), Worker("t", 2, security=ENCRYPTED)
    raw = RawPeer(receiver, ENCRYPTED)
    async with running(sender, receiver), raw.linked() as link:
        receiver.transport.expect("r", 1, (1, 2))
        sends = link._terms.sends
        assert sends.seal is not None
        header = encode_frame(raw.frame(FrameKind.ABORT, b""))
        sealed, next_one = _sealed(sends.seal, header), _sealed(sends.seal, header)
        messages = {
            "plain": [header],
            "repeated": [sealed, sealed],
            "damaged": [b"\x00" + sealed[1:]],
            "left out": [next_one],
            "longer": [sealed + bytes(FRAME_BYTES)],
        }
        for message in messages[bad]:
            link._reactor.send_tagged(link._endpoint, sends.header_tag, message)
        await until(lambda: raw.lost)
        await sender.transport.push(receiver.target((1, 2)), handoff(), (3, 4))
    assert receiver.handoffs == [handoff()]


async def test_a_sealed_chunk_that_is_damaged_is_asked_for_again_and_hands_nothing_over() -> None:
    """As one with a wrong checksum; one sealed anew is taken, and no byte of it crosses in the clear."""
    receiver = Worker("t", 2, security=ENCRYPTED)
    raw = RawPeer(receiver, ENCRYPTED)
    before = receiver.memory.cells.copy()
    async with running(receiver), raw.linked() as link:
        receiver.transport.expect("r", 1, (1,))
        seal = link.outgoing_seal
        assert seal is not None
        for damage in (1, 0):
            data, number = sealed_copy(seal, GOOD)
            assert GOOD[:64] not in data.tobytes()
            data[100] ^= damage
            fields = {"payload_bytes": len(GOOD), "payload_checksum": number}
            chunk = raw.frame(FrameKind.CHUNK, b"")
            link.send(type(chunk)(**{**{name: getattr(chunk, name) for name in chunk.__slots__}, **fields}), data)
            if damage:
                await until(lambda: raw.answers)
                assert [each.kind for each in raw.answers] == [FrameKind.RESEND]
                assert np.array_equal(receiver.memory.cells, before)
        data, number = sealed_copy(seal, COMMIT)
        commit = raw.frame(FrameKind.COMMIT, b"")
        fields = {"payload_bytes": len(COMMIT), "payload_checksum": number}
        link.send(type(commit)(**{**{name: getattr(commit, name) for name in commit.__slots__}, **fields}), data)
        await until(lambda: len(raw.answers) == 2)
        assert raw.answers[1].kind is FrameKind.ACK
    assert receiver.handoffs == [handoff()]


async def test_garbage_at_the_ports_crashes_and_leaks_nothing() -> None:
    """Bytes over TCP at the listener, and malformed hellos and frames of UCX clients with and without the secret, many times;
    the process serves on, with no more memory and descriptors than before.
    """
    chance = random.Random(20)
    with Peer() as peer:
        process = psutil.Process(peer.process.pid)
        sender = Worker("p", 1)
        async with running(sender):

            async def push(number: int) -> None:
                await peer.ask(do="expect", choice_id=f"r{number}", epoch=1, block_ids=(5, 9))
                await sender.transport.push(peer.target((5, 9)), handoff(f"r{number}"), (1, 2))

            host, _, port = peer.address.rpartition(":")
            held: list[tuple[int, int]] = []
            for turn in range(4):
                for _ in range(25):
                    _, writer = await asyncio.open_connection(host, int(port))
                    writer.write(chance.randbytes(chance.choice([1, 8, 64, 5000])))
                    writer.close()
                await push(turn)
                held.append((process.memory_info().rss, process.num_fds()))
            assert held[-1][0] < held[1][0] + 32 * 2**20
            assert held[-1][1] <= held[0][1] + 30
    receiver = Worker("t", 2, security=SECRET)
    sender = Worker("p", 1, security=SECRET)
    async with running(receiver, sender), stranger_at(receiver) as stranger:
        for turn in range(20):
            size = chance.choice([MESSAGE_BYTES, 3 * HELLO_BYTES])
            hello = bytearray(chance.randbytes(size))
            if turn % 2:
                await stranger.exchange(lambda _, hello=hello: bytes(hello))
                continue
            endpoint, terms = await stranger.shaken(SECRET, f"peer-{turn}")
            for _ in range(3):
                noise = chance.randbytes(chance.choice([1, FRAME_BYTES, 3000]))
                tag = chance.choice([terms.sends.header_tag, terms.sends.payload_tag])
                sent = stranger.reactor.send_tagged(endpoint, tag, noise)
                sent.add_done_callback(lambda done: done.cancelled() or done.exception())
        await hands_over(sender, receiver)
        assert refused(receiver)["malformed"] == 10
    assert keeps_nothing(receiver)
