"""The header before every KV payload on a transfer link. A frame is a header of fixed size, then `payload_bytes` bytes. The
header has two checksums (xxh3, 64 bits): of its other bytes, and of the payload. Integers are big-endian. A push moves one
part of a sequence's KV, a rectangle of layers and heads, from one process to another: CHUNK frames in any order, then a
COMMIT; ABORT ends it early; ACK or NACK answers it. RESEND requests a damaged chunk again; a COMMIT that was sent before is
then sent again.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from spotwise.core.requests.kv_part import KvPart
from spotwise.core.requests.record import KvHandoff, QueueLevel
from spotwise.wire.framing import (
    MAX_NUMERICS_CLASS_BYTES,
    MAX_PAYLOAD_BYTES,
    SEAL_BYTES,
    VERSION,
    FrameError,
    decode_id,
    encode_id,
    seal,
    unseal,
)

#: Longest request id, in utf-8 bytes.
MAX_REQUEST_ID_BYTES = 128
#: Damaged chunks of one push that are requested again, at most; then the push is refused.
MAX_RESENDS = 3
#: Payload of a chunk, unless one block of one layer is larger.
CHUNK_BYTES = 4 * 2**20

_FRAME_MAGIC = b"SWKV"
# magic, version, kind, reason, id length, epoch, push, sender and target incarnation, the part's layers and heads, layers,
# blocks, chunks, payload, id
_FRAME = struct.Struct("!4sBBBBQQQQHHHHIIIIIIQQ128s")
# tokens, MLFQ queue (0: none), seconds of its quantum used, tokens of the attempt, whether KV is foreign, length of the
# numerics class's name, the name; the tokens' ids follow, 4 bytes each
_HANDOFF = struct.Struct("!QQdI?B40s")

#: Bytes of an encoded frame header.
FRAME_BYTES = _FRAME.size + SEAL_BYTES
#: Bytes of a COMMIT's payload, at most: the ids of a million tokens.
MAX_HANDOFF_BYTES = _HANDOFF.size + 4 * 2**20


class FrameKind(enum.IntEnum):
    """The kind of a frame."""

    CHUNK = 1
    COMMIT = 2
    ABORT = 3
    ACK = 4
    NACK = 5
    RESEND = 6


class NackReason(enum.IntEnum):
    """Why a receiver refused a push."""

    NO_RESERVATION = 1
    STALE_EPOCH = 2
    WRONG_INCARNATION = 3
    BUSY = 4
    BAD_SHAPE = 5
    BAD_CHECKSUM = 6
    INCOMPLETE = 7
    REFUSED = 8


@dataclass(frozen=True, slots=True)
class KvFrame:
    """One frame's header.

    Attributes:
        choice_id: at most `MAX_REQUEST_ID_BYTES` in utf-8.
        push_id: the sender's number of the push, unique on its link.
        part: layers and heads of the model that the push moves.
        reason: reason of a NACK; else `None`.
        first_layer, num_layers: CHUNK, RESEND: its layers, counted from the part's first. COMMIT: 0 and all the part's.
        first_block, num_blocks: CHUNK, RESEND: indices into the reserved blocks, not block ids. COMMIT: 0, and all its blocks.
        chunk_index: CHUNK, RESEND: its number, from 0.
        chunk_total: COMMIT: chunks of the whole hand-off, each counted once.
        payload_bytes, payload_checksum: size and checksum of the bytes that follow; xxh3_64.
    """

    kind: FrameKind
    choice_id: str
    epoch: int
    push_id: int
    sender_incarnation: int
    target_incarnation: int
    part: KvPart
    reason: NackReason | None = None
    first_layer: int = 0
    num_layers: int = 0
    first_block: int = 0
    num_blocks: int = 0
    chunk_index: int = 0
    chunk_total: int = 0
    payload_bytes: int = 0
    payload_checksum: int = 0


def encode_frame(frame: KvFrame) -> bytes:
    """Return the header's `FRAME_BYTES` bytes; raises `ValueError` where an id is too long or a number does not fit."""
    choice_id = encode_id(frame.choice_id, MAX_REQUEST_ID_BYTES)
    try:
        body = _FRAME.pack(
            _FRAME_MAGIC, VERSION, frame.kind, frame.reason or 0, len(choice_id), frame.epoch, frame.push_id,
            frame.sender_incarnation, frame.target_incarnation, frame.part.first_layer, frame.part.num_layers,
            frame.part.first_head, frame.part.num_heads,
            frame.first_layer, frame.num_layers, frame.first_block,
            frame.num_blocks, frame.chunk_index, frame.chunk_total, frame.payload_bytes, frame.payload_checksum, choice_id,
        )  # fmt: skip
    except struct.error as error:
        raise ValueError(f"the frame does not fit its header: {error}") from None
    return seal(body)


def decode_frame(data: bytes | bytearray | memoryview) -> KvFrame:
    """Return the header in `data`, `FRAME_BYTES` long; raises `FrameError`: no header, damaged, or another version."""
    body = unseal(data, FRAME_BYTES, _FRAME_MAGIC)
    (_, _, kind, reason, id_bytes, epoch, push_id, sender, target, layer, layers, head, heads, first_layer,
     num_layers, first_block, num_blocks, chunk_index, chunk_total, payload_bytes, payload_checksum,
     choice_id) = _FRAME.unpack(body)  # fmt: skip
    if payload_bytes > MAX_PAYLOAD_BYTES:
        raise FrameError(f"a payload of {payload_bytes} bytes is announced, {MAX_PAYLOAD_BYTES} are allowed")
    try:
        return KvFrame(
            kind=FrameKind(kind),
            choice_id=decode_id(choice_id, id_bytes),
            epoch=epoch,
            push_id=push_id,
            sender_incarnation=sender,
            target_incarnation=target,
            part=KvPart(layer, layers, head, heads),
            reason=NackReason(reason) if reason else None,
            first_layer=first_layer,
            num_layers=num_layers,
            first_block=first_block,
            num_blocks=num_blocks,
            chunk_index=chunk_index,
            chunk_total=chunk_total,
            payload_bytes=payload_bytes,
            payload_checksum=payload_checksum,
        )
    except ValueError as error:
        raise FrameError(f"the header names what this version does not know: {error}") from None


def encode_handoff(handoff: KvHandoff) -> bytes:
    """Return a COMMIT's payload (its header has request and epoch); raises `ValueError` for negative or too large numbers."""
    try:
        level = (handoff.level.queue, handoff.level.used) if handoff.level else (0, 0.0)
        token_ids = handoff.token_ids
        of_class = encode_id(handoff.numerics_class, MAX_NUMERICS_CLASS_BYTES) if handoff.numerics_class else b""
        classed = handoff.has_foreign_kv, len(of_class), of_class
        head = _HANDOFF.pack(handoff.num_tokens, *level, len(token_ids), *classed)
        return head + struct.pack(f"!{len(token_ids)}I", *token_ids)
    except struct.error as error:
        raise ValueError(f"the hand-off does not fit its fields: {error}") from None


def decode_handoff(frame: KvFrame, payload: bytes | bytearray | memoryview) -> KvHandoff:
    """Return the hand-off of a COMMIT and its payload, whose checksum the caller has verified; raises `FrameError` where the
    payload has another length, no token, or an invalid level.
    """
    try:
        num_tokens, queue, used, count, has_foreign_kv, class_bytes, of_class = _HANDOFF.unpack_from(payload)
        numerics_class = decode_id(of_class, class_bytes) if class_bytes else ""
        first_token_id, *later = struct.unpack(f"!{count}I", bytes(payload)[_HANDOFF.size :])
        level = QueueLevel(queue, used) if queue else None
    except (struct.error, ValueError) as error:
        raise FrameError(f"not a hand-off: {error}") from None
    return KvHandoff(
        choice_id=frame.choice_id,
        epoch=frame.epoch,
        num_tokens=num_tokens,
        first_token_id=first_token_id,
        level=level,
        later_token_ids=tuple(later),
        numerics_class=numerics_class,
        has_foreign_kv=has_foreign_kv,
    )
