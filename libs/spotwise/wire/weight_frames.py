"""Frames of a link that carries weights, a header before every payload, and what the payloads say: requests of a process that
lacks panels, and their answers.

LIST asks what the other end keeps, DESCRIBE for the model without its large tensors, GET for panels; each is answered once,
with the request's number, by LISTED, DESCRIBED or PANELS, or by REFUSED, whose payload says why. Integers are big-endian.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from spotwise.core.weights.inventory import ModelSketch, WeightInventory
from spotwise.wire.framing import MAX_PAYLOAD_BYTES, SEAL_BYTES, VERSION, FrameError, decode_id, encode_id, seal, unseal
from spotwise.wire.message_codec import MessageCodec
from spotwise.wire.v1 import weights_pb2

#: Longest name of a matrix, in utf-8 bytes.
MAX_MATRIX_BYTES = 256

_MAGIC = b"SWWT"
# magic, version, kind, name length, request, layout, first panel, panels, payload, its checksum, name
_FRAME = struct.Struct("!4sBBHQQIIQQ256s")

#: Bytes of an encoded header.
WEIGHT_FRAME_BYTES = _FRAME.size + SEAL_BYTES

_INVENTORY = MessageCodec(WeightInventory, weights_pb2.WeightInventory)
_SKETCH = MessageCodec(ModelSketch, weights_pb2.ModelSketch)


class WeightFrameKind(enum.IntEnum):
    """The kind of a frame."""

    LIST = 1
    LISTED = 2
    DESCRIBE = 3
    DESCRIBED = 4
    GET = 5
    PANELS = 6
    REFUSED = 7


@dataclass(frozen=True, slots=True)
class WeightFrame:
    """One frame's header.

    Attributes:
        request_id: the asking end's number, unique on its link.
        layout: GET: of the asking process (`WeightInventory.layout`).
        matrix, first_panel, num_panels: GET: what is asked for; empty and 0 in other kinds.
        payload_bytes, payload_checksum: size and checksum of the bytes that follow; xxh3_64.
    """

    kind: WeightFrameKind
    request_id: int
    layout: int = 0
    matrix: str = ""
    first_panel: int = 0
    num_panels: int = 0
    payload_bytes: int = 0
    payload_checksum: int = 0


def encode_weight_frame(frame: WeightFrame) -> bytes:
    """Return the header's `WEIGHT_FRAME_BYTES` bytes; raises `ValueError` where a name or a number does not fit."""
    matrix = encode_id(frame.matrix, MAX_MATRIX_BYTES) if frame.matrix else b""
    try:
        body = _FRAME.pack(
            *(_MAGIC, VERSION, frame.kind, len(matrix), frame.request_id, frame.layout, frame.first_panel),
            *(frame.num_panels, frame.payload_bytes, frame.payload_checksum, matrix),
        )
    except struct.error as error:
        raise ValueError(f"the frame does not fit its header: {error}") from None
    return seal(body)


def decode_weight_frame(data: bytes | bytearray | memoryview) -> WeightFrame:
    """Return the header in `data`; raises `FrameError`: no header, damaged, or another version."""
    body = unseal(data, WEIGHT_FRAME_BYTES, _MAGIC)
    _, _, kind, length, request, layout, first, count, payload, checksum, matrix = _FRAME.unpack(body)
    if payload > MAX_PAYLOAD_BYTES:
        raise FrameError(f"a payload of {payload} bytes is announced, {MAX_PAYLOAD_BYTES} are allowed")
    try:
        name = decode_id(matrix, length) if length else ""
        return WeightFrame(WeightFrameKind(kind), request, layout, name, first, count, payload, checksum)
    except ValueError as error:
        raise FrameError(f"the header names what this version does not know: {error}") from None


def encode_inventory(inventory: WeightInventory) -> bytes:
    """Return a LISTED frame's payload."""
    return _INVENTORY.encode(inventory)


def decode_inventory(data: bytes | bytearray | memoryview) -> WeightInventory:
    """Return what a LISTED frame says; raises `FrameError`."""
    try:
        return _INVENTORY.decode(bytes(data))
    except DecodeError as error:
        raise FrameError(f"not an inventory: {error}") from None


def encode_sketch(sketch: ModelSketch) -> bytes:
    """Return a DESCRIBED frame's payload."""
    return _SKETCH.encode(sketch)


def decode_sketch(data: bytes | bytearray | memoryview) -> ModelSketch:
    """Return what a DESCRIBED frame says; raises `FrameError`."""
    try:
        return _SKETCH.decode(bytes(data))
    except DecodeError as error:
        raise FrameError(f"not a model's sketch: {error}") from None
