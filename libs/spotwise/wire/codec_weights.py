"""Payloads of links that carry weights, to bytes and back."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from spotwise.core.weights import inventory as w
from spotwise.wire.field_codec import codec_of
from spotwise.wire.framing import FrameError
from spotwise.wire.v1 import weights_pb2 as weights

_PIECE = codec_of(w.FilePiece, weights.FilePiece, "offset", "data")
_FILE = codec_of(
    w.SketchFile,
    weights.SketchFile,
    *("name", "byte_count"),
    pieces=(lambda pieces: [*map(_PIECE[0], pieces)], lambda protos: tuple(map(_PIECE[1], protos))),
)
_SKETCH = codec_of(
    w.ModelSketch,
    weights.ModelSketch,
    *("name", "digest"),
    files=(lambda files: [*map(_FILE[0], files)], lambda protos: tuple(map(_FILE[1], protos))),
)


def _panels_to(panels: w.Panels) -> list[weights.HeldMatrix]:
    return [
        weights.HeldMatrix(
            name=name, spans=[weights.PanelSpan(first=span.start, count=len(span)) for span in spans if span]
        )
        for name, spans in panels.items()
    ]


def _panels_from(protos: list[weights.HeldMatrix]) -> w.Panels:
    return {proto.name: tuple(range(span.first, span.first + span.count) for span in proto.spans) for proto in protos}


_INVENTORY = codec_of(
    w.WeightInventory,
    weights.WeightInventory,
    *("device_id", "layout"),
    fused_layers=(dict, dict),
    panels=(_panels_to, _panels_from),
)


def encode_inventory(inventory: w.WeightInventory) -> bytes:
    """Return a LISTED frame's payload."""
    data: bytes = _INVENTORY[0](inventory).SerializeToString()
    return data


def decode_inventory(data: bytes | bytearray | memoryview) -> w.WeightInventory:
    """Return what a LISTED frame says; raises `FrameError`."""
    try:
        proto = weights.WeightInventory.FromString(bytes(data))
    except DecodeError as error:
        raise FrameError(f"not an inventory: {error}") from None
    inventory: w.WeightInventory = _INVENTORY[1](proto)
    return inventory


def encode_sketch(sketch: w.ModelSketch) -> bytes:
    """Return a DESCRIBED frame's payload."""
    data: bytes = _SKETCH[0](sketch).SerializeToString()
    return data


def decode_sketch(data: bytes | bytearray | memoryview) -> w.ModelSketch:
    """Return what a DESCRIBED frame says; raises `FrameError`."""
    try:
        proto = weights.ModelSketch.FromString(bytes(data))
    except DecodeError as error:
        raise FrameError(f"not a model's sketch: {error}") from None
    sketch: w.ModelSketch = _SKETCH[1](proto)
    return sketch
