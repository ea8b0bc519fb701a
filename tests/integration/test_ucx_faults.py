"""What a KV receiver does with frames that no honest sender writes."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import xxhash

from spotwise.core.requests.kv_part import KvPart
from spotwise.mesh.links.kv_payloads import HostPayloads, PayloadBuffers, kv_links
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
from tests.integration.ucx_worker import CELL_BYTES, LAYERS, PATIENCE_S, Worker, handoff, pair, until

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
        self.links = UcxLinks(me, kv_links(), buffers, 4, self._heard, self._lost, security=security)

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

    @classmethod
    @asynccontextmanager
    async def at(cls, receiver: Worker) -> AsyncIterator[tuple[RawPeer, UcxLink[KvFrame]]]:
        """A peer of a receiver, and its link there."""
        raw = cls(receiver)
        async with raw.linked() as link:
            yield raw, link

    @asynccontextmanager
    async def linked(self) -> AsyncIterator[UcxLink[KvFrame]]:
        self.links.listen(0)
        try:
            yield await self.links.to(self.receiver.transport.address, PATIENCE_S)
        finally:
            await self.links.close()


GOOD = bytes(range(256)) * (LAYERS * CELL_BYTES // 256)
COMMIT = encode_handoff(handoff())


@dataclass
class BadPush:
    """One push: a chunk for each set of fields, and a commit; the payloads may be others than the checksums are of."""

    chunks: Sequence[dict[str, int]] = ({},)
    payload: bytes = GOOD
    commit: bytes = COMMIT
    commit_fields: dict[str, int] = field(default_factory=dict)
    sent_commit: bytes | None = None
    reason: NackReason = NackReason.BAD_SHAPE


BAD_PUSHES = {
    "a chunk is missing": BadPush(commit_fields={"chunk_total": 2}, reason=NackReason.INCOMPLETE),
    "a block is missing": BadPush(commit_fields={"num_blocks": 2}, reason=NackReason.INCOMPLETE),
    "too short a chunk": BadPush(payload=GOOD[:100]),
    "layers too far": BadPush([{"first_layer": 1}]),
    "blocks too far": BadPush([{"first_block": 2}]),
    "too short a commit": BadPush(commit=COMMIT[:-1]),
    "a commit without a level": BadPush(commit=struct.pack("!QQQd", 20, 5, 3, 1.5)),
    "a damaged commit": BadPush(sent_commit=COMMIT[:-1] + b"\x07", reason=NackReason.BAD_CHECKSUM),
    "a chunk twice": BadPush([{"chunk_index": 0}, {"chunk_index": 0}]),
    "a cell twice": BadPush([{"chunk_index": 0}, {"chunk_index": 1}]),
}


@pytest.mark.parametrize("bad", BAD_PUSHES)
async def test_a_damaged_push_is_refused_once_and_the_window_stays(bad: str) -> None:
    """One NACK with its reason, and nothing is handed over; then a good push is taken."""
    push = BAD_PUSHES[bad]
    async with pair() as (sender, receiver), RawPeer.at(receiver) as (raw, link):
        before = receiver.memory.cells.copy()
        for fields in push.chunks:
            link.send(raw.frame(FrameKind.CHUNK, push.payload, **fields), push.payload)
        link.send(raw.frame(FrameKind.COMMIT, push.commit, **push.commit_fields), push.sent_commit or push.commit)
        await until(lambda: raw.answers)
        assert [(answer.kind, answer.reason) for answer in raw.answers] == [(FrameKind.NACK, push.reason)]
        if push.payload is not GOOD or any(each.keys() - {"chunk_index"} for each in push.chunks):
            assert np.array_equal(receiver.memory.cells, before)
        assert receiver.handoffs == []
        await sender.transport.push(receiver.target((1, 2)), handoff(), (3, 4))
        assert len(raw.answers) == 1
    assert receiver.handoffs == [handoff()]


async def test_a_chunk_that_comes_damaged_is_asked_for_again_a_few_times() -> None:
    async with pair() as (sender, receiver), RawPeer.at(receiver) as (raw, link):
        before = receiver.memory.cells.copy()
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


@pytest.mark.parametrize("header", [b"\xa5" * FRAME_BYTES, b"GET / HTTP/1.1\r\n\r\n", b"x" * (FRAME_BYTES + 1)])
async def test_a_malformed_header_ends_the_link_and_frees_the_window(header: bytes) -> None:
    """Noise instead of a header, shorter or longer: the endpoint is closed, others are served on."""
    async with pair() as (sender, receiver), RawPeer.at(receiver) as (raw, link):
        link.send(raw.frame(FrameKind.CHUNK, GOOD), GOOD)
        link._reactor.send_tagged(link._endpoint, link._terms.sends.header_tag, header)
        await until(lambda: raw.lost)
        await sender.transport.push(receiver.target((1, 2)), handoff(), (3, 4))
    assert receiver.handoffs == [handoff()]
