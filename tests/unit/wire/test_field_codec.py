"""Codecs follow from core's types and from protobuf's descriptors, and a field of one alone is refused."""

from __future__ import annotations

import random
from dataclasses import make_dataclass
from enum import StrEnum
from typing import Any, get_args

import pytest
from google.protobuf.descriptor import Descriptor

from spotwise.core.messages import groups as g
from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.requests.record import RequestRecord
from spotwise.core.weights.inventory import FilePiece, ModelSketch, SketchFile, WeightInventory
from spotwise.wire import codec, codec_groups, codec_records, weight_frames
from spotwise.wire.field_codec import Codec, Codecs, columns, elsewhere
from spotwise.wire.framing import FrameError
from spotwise.wire.message_codec import MessageCodec, UnionCodec
from spotwise.wire.v1 import (
    cluster_pb2,
    envelope_pb2,
    fleet_pb2,
    group_pb2,
    request_pb2,
    reshape_pb2,
    spot_pb2,
    weights_pb2,
    worker_pb2,
)
from tests.property.any_messages import any_message

FILES = (cluster_pb2, fleet_pb2, group_pb2, request_pb2, reshape_pb2, spot_pb2, weights_pb2, worker_pb2)
SamplingParams = request_pb2.SamplingParams
make_enum: Any = StrEnum
#: Some of their fields have 32 bits, or are not sent; for each of them there are examples, or hypothesis draws what fits.
NARROWED = {m.TokenBatch, m.Member, m.ReshapeMesh, g.StepEnded, h.HandoffDelivered}
REF = {"gateway_id": str, "attempt_id": int, "incarnation": int}


def refused(fields: dict[str, Any], message: Descriptor, **exceptions: Any) -> str:
    core_type = make_dataclass("Core", fields.items())
    with pytest.raises(TypeError) as caught:
        Codecs({"Core": exceptions}).of(core_type, message)
    return str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message", "reason"),
    [
        (REF | {"spare": str}, cluster_pb2.StreamRef, "Core.spare has no field in spotwise.v1.StreamRef"),
        ({"gateway_id": str}, cluster_pb2.StreamRef, "differ in attempt_id, incarnation"),
        (REF | {"attempt_id": str}, cluster_pb2.StreamRef, "Core.attempt_id: <class 'str'> is no type of"),
        (REF | {"attempt_id": bool}, cluster_pb2.StreamRef, "Core.attempt_id: <class 'bool'> is no type of"),
        (REF | {"attempt_id": int | None}, cluster_pb2.StreamRef, "Core.attempt_id: optional, unlike"),
        (REF | {"attempt_id": int | str}, cluster_pb2.StreamRef, "Core.attempt_id: int | str is more than one type"),
        (
            {"choice_id": str, "epoch": int, "code": m.RejectCode, "message": str, "retry_after_s": float},
            cluster_pb2.RequestRejected,
            "Core.retry_after_s: not optional, unlike",
        ),
        ({"worker_ids": list[str]}, cluster_pb2.Suspects, "Core.worker_ids: list[str] is no type of the repeated"),
        ({"worker_ids": tuple[str, int]}, cluster_pb2.Suspects, "Core.worker_ids: tuple[str, int] is no type of"),
        ({"worker_ids": tuple[str | None, ...]}, cluster_pb2.Suspects, "worker_ids cannot hold None"),
        ({"purchase": m.InstanceReason}, fleet_pb2.PurchaseStatus, "InstanceReason.instance_id has no field in"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_field_without_its_counterpart_is_named(fields: dict[str, Any], message: Any, reason: str) -> None:
    assert reason in refused(fields, message.DESCRIPTOR)


def test_an_exception_names_fields_that_are_there() -> None:
    """What is left of a removed field's exception does not stay, and a misspelt field of protobuf is found."""
    assert "Core has no former" in refused(REF, cluster_pb2.StreamRef.DESCRIPTOR, former="gateway_id")
    misspelt = {"attempts": tuple[tuple[str, int], ...]}
    reason = refused(misspelt, worker_pb2.RenewLeases.DESCRIPTOR, attempts=columns("choice_ids", "epoch"))
    assert "differ in epoch, epochs" in reason


def pooling_codec(*names: str) -> Codec:
    """Return the codec of sampling parameters, of which only the pooling is read, by an enum with these names."""
    pooling: Any = make_enum("Pooling", names)
    core_type = make_dataclass("Core", [("pooling", pooling | None), ("rest", str)])
    rest = elsewhere("", *({field.name for field in SamplingParams.DESCRIPTOR.fields} - {"pooling"}))
    return Codecs({"Core": {"rest": rest}}).of(core_type, SamplingParams.DESCRIPTOR)


@pytest.mark.parametrize("names", [("LAST", "MEAN", "FIRST"), ("LAST",)])
def test_an_enum_has_the_values_of_protobuf(names: tuple[str, ...]) -> None:
    """A value that only one side knows is refused at once, before a message has it."""
    with pytest.raises(TypeError, match="Pooling"):
        pooling_codec(*names)


def test_an_optional_enum_is_unspecified_or_a_value() -> None:
    """`None` is protobuf's 0, as is a value of a later version."""
    made = pooling_codec("MEAN", "LAST")
    for number in (request_pb2.POOLING_UNSPECIFIED, request_pb2.POOLING_LAST, request_pb2.POOLING_MEAN):
        assert SamplingParams(**made.to_fields(made.from_proto(SamplingParams(pooling=number)))).pooling == number
    assert made.from_proto(SamplingParams(pooling=request_pb2.POOLING_MEAN)).pooling.name == "MEAN"
    assert made.from_proto(SamplingParams.FromString(b"\x90\x03\x09")).pooling is None


@pytest.mark.parametrize(
    ("union", "reason"),
    [
        (m.Drain | m.DrainReply, "Envelope has no type for .*'token_batch'"),
        (m.Message | m.Tick, "Envelope has no field for Tick"),
        (m.Message | g.FormGroup, "Envelope has no field for FormGroup"),
    ],
)
def test_a_union_has_a_field_for_each_type_and_a_type_for_each_field(union: Any, reason: str) -> None:
    """A message of core alone, or of protobuf alone, is an error at import."""
    with pytest.raises(TypeError, match=reason):
        UnionCodec(union, envelope_pb2.Envelope, "message", "unknown")


def used_by(message: Descriptor, found: set[str]) -> set[str]:
    if message.full_name not in found:
        found.add(message.full_name)
        for field in message.fields:
            if field.message_type is not None:
                used_by(field.message_type, found)
    return found


def test_every_message_of_protobuf_is_of_a_codec() -> None:
    """A message that no codec reaches is of no use; those of engine control are made by its adapter."""
    roots = (
        *(envelope_pb2.Envelope, group_pb2.GroupOrder, group_pb2.GroupReport, request_pb2.RequestRecord),
        *(weights_pb2.WeightInventory, weights_pb2.ModelSketch),
    )
    found: set[str] = set()
    for root in roots:
        used_by(root.DESCRIPTOR, found)
    assert {each.full_name for file in FILES for each in file.DESCRIPTOR.message_types_by_name.values()} <= found


@pytest.mark.parametrize(
    ("kind", "encode", "decode"),
    [
        *((kind, codec.encode, codec.decode) for kind in get_args(m.Message)),
        *((kind, codec_groups.encode_order, codec_groups.decode_order) for kind in get_args(g.GroupOrder)),
        *((kind, codec_groups.encode_report, codec_groups.decode_report) for kind in get_args(g.GroupReport)),
        (RequestRecord, codec_records.encode_record, codec_records.decode_record),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_type_is_encoded_and_decoded(kind: type, encode: Any, decode: Any) -> None:
    """With any values in its fields, and as it was where the wire keeps all of them."""
    rng = random.Random(1)
    survived = 0
    while survived < 20:
        try:
            sent = any_message(rng, kind)
            message = decode(encode(sent))
        except ValueError:
            continue  # such values do not go together, or are refused
        assert type(message) is kind
        assert repr(decode(encode(message))) == repr(message)
        if kind not in NARROWED:
            assert repr(message) == repr(sent)
        survived += 1


def test_an_inventory_and_a_sketch_survive_the_link() -> None:
    inventory = WeightInventory("d", 2**64 - 1, {1: True, 2: False}, {"a": (range(3), range(5, 9)), "b": (range(0),)})
    read = weight_frames.decode_inventory(bytearray(weight_frames.encode_inventory(inventory)))
    assert (read.device_id, read.layout, read.fused_layers) == ("d", 2**64 - 1, {1: True, 2: False})
    assert read.panels == {"a": (range(3), range(5, 9)), "b": ()}
    sketch = ModelSketch(
        "model", "digest", (SketchFile("config", 9, (FilePiece(1, b"\0\xff"),)), SketchFile("a", 0, ()))
    )
    assert weight_frames.decode_sketch(weight_frames.encode_sketch(sketch)) == sketch
    for decode in (weight_frames.decode_inventory, weight_frames.decode_sketch):
        with pytest.raises(FrameError):
            decode(b"\xff\xff")


def test_a_codec_of_one_type_needs_no_union() -> None:
    made = MessageCodec(m.StreamRef, cluster_pb2.StreamRef)
    assert (
        made.encode(m.StreamRef("g", 5, 7))
        == cluster_pb2.StreamRef(gateway_id="g", attempt_id=5, incarnation=7).SerializeToString()
    )
    assert made.decode(made.encode(m.StreamRef("g", 5, 7))) == m.StreamRef("g", 5, 7)
