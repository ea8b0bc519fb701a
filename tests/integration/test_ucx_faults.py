"""What a KV receiver does with frames that no honest sender writes."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import xxhash

from spotwise.core.requests.kv_part import KvPart
from spotwise.mesh.links.kv_payloads import KV_LINKS, HostPayloads, PayloadBuffers
from spotwise.mesh.links.ucx_link import UcxLink
from spotwise.mesh.links.ucx_links import UcxLinks
from spotwise.mesh.security.link_security import LinkSecurity
from spotwise.wire.kv_frames import (
    FRAME_BYTES,
    MAX_RESENDS,
    FrameKind,
    KvFrame,
    NackReason,
    encode_handoff,
)
from spotwise.wire.link_hello import LinkHello, layout_fingerprint
from tests.integration.ucx_worker import CELL_BYTES, LAYERS, PATIENCE_S, Worker, handoff, running, until

pytestmark = [pytest.mark.mesh, pytest.mark.paired]


def _answered(raw: RawPeer, times: int) -> bool:
    return len(raw.answers) >= times


class RawPeer:
    """Exchanges single frames with a worker, valid or malformed."""

    def __init__(self, receiver: Worker, security: LinkSecurity | None = None, name: str = "raw") -> None:
        self.receiver = receiver
        self.answers: list[KvFrame] = []
        self.lost: list[str] = []
        me = LinkHello(name, 9, layout_fingerprint(receiver.memory.layout))
        buffers = PayloadBuffers(HostPayloads(), 4096, 1)
        self.links = UcxLinks(me, KV_LINKS, buffers, 4, self._heard, self._lost, security=security)

    def _heard(self, link: UcxLink[KvFrame], frame: KvFrame, payload: object, arrived: object) -> None:
        self.answers.append(frame)

    def _lost(self, link: UcxLink[KvFrame], reason: str) -> None:
        self.lost.append(reason)

    def frame(self, kind: FrameKind, payload: bytes, **fields: Any) -> KvFrame:
        shape = {"num_layers": LAYERS, "num_blocks": 1, "chunk_total": 1, **fields}
        return KvFrame(
            kind, "r", 1, 1, 9, self.receiver.incarnation, KvPart.whole(LAYERS),
            payload_bytes=len(payload), payload_checksum=xxhash.xxh3_64_intdigest(payload), **shape,
        )  # fmt: skip

    @asynccontextmanager
    async def linked(self) -> AsyncIterator[UcxLink[KvFrame]]:
        self.links.listen(0)
        try:
            yield await self.links.to(self.receiver.transport.address, PATIENCE_S)
        finally:
            await self.links.close()


GOOD = bytes(range(256)) * (LAYERS * CELL_BYTES // 256)
COMMIT = encode_handoff(handoff())


@pytest.mark.parametrize(
    ("payload", "fields", "commit_fields", "reason"),
    [
        (GOOD, {}, {"chunk_total": 2}, NackReason.INCOMPLETE),
        (GOOD, {}, {"num_blocks": 2}, NackReason.INCOMPLETE),
        (GOOD[:100], {}, {}, NackReason.BAD_SHAPE),
        (GOOD, {"first_layer": 1}, {}, NackReason.BAD_SHAPE),
        (GOOD, {"first_block": 2}, {}, NackReason.BAD_SHAPE),
    ],
)
async def test_a_damaged_push_is_refused_once_and_the_window_stays(
    payload: bytes,
    fields: dict[str, int],
    commit_fields: dict[str, int],
    reason: NackReason,
) -> None:
    """Missing chunks, shapes that do not fit: one NACK, then a good push is taken."""
    sender, receiver = Worker("p", 1), Worker("t", 2)
    raw = RawPeer(receiver)
    before = receiver.memory.cells.copy()
    async with running(sender, receiver), raw.linked() as link:
        receiver.transport.expect("r", 1, (1, 2))
        link.send(raw.frame(FrameKind.CHUNK, payload, **fields), payload)
        link.send(raw.frame(FrameKind.COMMIT, COMMIT, **commit_fields), COMMIT)
        await until(lambda: raw.answers)
        assert [(answer.kind, answer.reason) for answer in raw.answers] == [(FrameKind.NACK, reason)]
        if reason is not NackReason.INCOMPLETE:
            assert np.array_equal(receiver.memory.cells, before)
        await sender.transport.push(receiver.target((1, 2)), handoff(), (3, 4))
        assert len(raw.answers) == 1
    assert receiver.handoffs == [handoff()]


@pytest.mark.parametrize("commit", [COMMIT[:-1], struct.pack("!QQQd", 20, 5, 3, 1.5)], ids=["too short", "no level"])
async def test_a_commit_that_is_no_hand_off_is_refused_at_once(commit: bytes) -> None:
    """A COMMIT that is no hand-off is refused although its checksum is right, and the window stays open."""
    sender, receiver = Worker("p", 1), Worker("t", 2)
    raw = RawPeer(receiver)
    async with running(sender, receiver), raw.linked() as link:
        receiver.transport.expect("r", 1, (1, 2))
        link.send(raw.frame(FrameKind.CHUNK, GOOD), GOOD)
        link.send(raw.frame(FrameKind.COMMIT, commit), commit)
        await until(lambda: raw.answers)
        assert [(answer.kind, answer.reason) for answer in raw.answers] == [(FrameKind.NACK, NackReason.BAD_SHAPE)]
        await sender.transport.push(receiver.target((1, 2)), handoff(), (3, 4))
    assert receiver.handoffs == [handoff()]


async def test_a_chunk_that_comes_damaged_is_asked_for_again_a_few_times() -> None:
    sender, receiver = Worker("p", 1), Worker("t", 2)
    raw = RawPeer(receiver)
    before = receiver.memory.cells.copy()
    async with running(sender, receiver), raw.linked() as link:
        receiver.transport.expect("r", 1, (1, 2))
        for times in range(1, MAX_RESENDS + 2):
            link.send(raw.frame(FrameKind.CHUNK, GOOD, chunk_index=7), b"\xff" + GOOD[1:])
            link.send(raw.frame(FrameKind.COMMIT, COMMIT), COMMIT)
            await until(partial(_answered, raw, times))
        asked, refused = raw.answers[:-1], raw.answers[-1]
        assert [answer.kind for answer in asked] == [FrameKind.RESEND] * MAX_RESENDS
        assert {(each.first_layer, each.num_layers, each.first_block, each.num_blocks) for each in asked} == {
            (0, LAYERS, 0, 1)
        }
        assert {each.chunk_index for each in asked} == {7}
        assert (refused.kind, refused.reason) == (FrameKind.NACK, NackReason.BAD_CHECKSUM)
        assert np.array_equal(receiver.memory.cells, before)
        await sender.transport.push(receiver.target((1, 2)), handoff(), (3, 4))
    assert receiver.handoffs == [handoff()]


@pytest.mark.parametrize("again", [0, 1])
async def test_a_cell_that_comes_twice_is_refused(again: int) -> None:
    receiver = Worker("t", 2)
    raw = RawPeer(receiver)
    async with running(receiver), raw.linked() as link:
        receiver.transport.expect("r", 1, (1,))
        for index in (0, again):
            link.send(raw.frame(FrameKind.CHUNK, GOOD, chunk_index=index), GOOD)
        link.send(raw.frame(FrameKind.COMMIT, COMMIT), COMMIT)
        await until(lambda: raw.answers)
    assert [(answer.kind, answer.reason) for answer in raw.answers] == [(FrameKind.NACK, NackReason.BAD_SHAPE)]
    assert receiver.handoffs == []


async def test_a_commit_whose_payload_is_damaged_hands_nothing_over() -> None:
    """All chunks are good and the hand-off itself is not: NACK, no announcement."""
    receiver = Worker("t", 2)
    raw = RawPeer(receiver)
    async with running(receiver), raw.linked() as link:
        receiver.transport.expect("r", 1, (1,))
        link.send(raw.frame(FrameKind.CHUNK, GOOD), GOOD)
        link.send(raw.frame(FrameKind.COMMIT, COMMIT), COMMIT[:-1] + b"\x07")
        await until(lambda: raw.answers)
    assert [answer.reason for answer in raw.answers] == [NackReason.BAD_CHECKSUM]
    assert receiver.handoffs == []


@pytest.mark.parametrize("header", [b"\xa5" * FRAME_BYTES, b"GET / HTTP/1.1\r\n\r\n", b"x" * (FRAME_BYTES + 1)])
async def test_a_malformed_header_ends_the_link_and_frees_the_window(header: bytes) -> None:
    """Noise instead of a header, shorter or longer: the endpoint is closed, others are served on."""
    sender, receiver = Worker("p", 1), Worker("t", 2)
    raw = RawPeer(receiver)
    async with running(sender, receiver), raw.linked() as link:
        receiver.transport.expect("r", 1, (1, 2))
        link.send(raw.frame(FrameKind.CHUNK, GOOD), GOOD)
        link._reactor.send_tagged(link._endpoint, link._terms.sends.header_tag, header)
        await until(lambda: raw.lost)
        await sender.transport.push(receiver.target((1, 2)), handoff(), (3, 4))
    assert receiver.handoffs == [handoff()]


async def test_a_stranger_at_the_port_disturbs_nobody() -> None:
    sender, receiver = Worker("p", 1), Worker("t", 2)
    async with running(sender, receiver):
        host, _, port = receiver.transport.address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * 1000)
        receiver.transport.expect("r", 1, (1,))
        await sender.transport.push(receiver.target((1,)), handoff(), (1,))
        writer.close()
    assert receiver.handoffs == [handoff()]
