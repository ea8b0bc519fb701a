"""Payloads of links that carry weights, to bytes and back."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from spotwise.core.weights.inventory import ModelSketch, WeightInventory
from spotwise.wire.framing import FrameError
from spotwise.wire.message_codec import MessageCodec
from spotwise.wire.v1 import weights_pb2

_INVENTORY = MessageCodec(WeightInventory, weights_pb2.WeightInventory)
_SKETCH = MessageCodec(ModelSketch, weights_pb2.ModelSketch)


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
