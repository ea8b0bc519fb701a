"""Every message and every record survives the wire: values of each field by its type, integers as wide as in `proto/`."""

from __future__ import annotations

import types
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from google.protobuf.descriptor import FieldDescriptor as Field
from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.core.lives.survival import PiecewiseHazard
from spotwise.core.messages import mesh as m
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.model_partition import LayerMatrix, ModelDimensions
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.request import FinishReason
from spotwise.core.requests.sampling import TokenLogprobs
from spotwise.wire import codec, codec_records
from spotwise.wire.message_codec import MalformedMessageError
from spotwise.wire.v1 import cluster_pb2, envelope_pb2, fleet_pb2, request_pb2, reshape_pb2, spot_pb2, worker_pb2

PROTO = {
    name: message
    for module in (cluster_pb2, envelope_pb2, fleet_pb2, request_pb2, reshape_pb2, spot_pb2, worker_pb2)
    for name, message in module.DESCRIPTOR.message_types_by_name.items()
}
U32 = st.integers(0, 2**32 - 1)
FEW = EPOCHS = st.integers(1, 2**32 - 1)
INTEGERS = {
    Field.TYPE_UINT32: U32,
    Field.TYPE_UINT64: st.integers(0, 2**64 - 1),
    **dict.fromkeys((Field.TYPE_INT32, Field.TYPE_SINT32), st.integers(-(2**31), 2**31 - 1)),
}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
EMBEDDINGS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=3).map(tuple)
LOGPROBS = st.floats(allow_nan=False)
PLAIN = {str: TEXT, float: NUMBERS, bool: st.booleans(), int: U32}


def shapes(layers: int) -> st.SearchStrategy[ModelShape]:
    """Models of so many layers, also such as the engine cannot cut."""
    matrices = st.lists(st.builds(LayerMatrix, U32, U32, st.booleans()), max_size=3).map(tuple)
    sizes = (FEW, FEW, FEW, FEW, FEW, FEW, FEW)
    partitions = st.builds(
        ModelDimensions, st.just(layers), *sizes, NUMBERS.map(abs), matrices, stays_whole=st.none() | TEXT
    )
    return st.builds(ModelShape, TEXT, st.just(layers), FEW, FEW, U32, U32, FEW, FEW, partition=st.none() | partitions)


def tops(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[float, ...]]:
    pairs = draw(st.lists(st.tuples(U32, LOGPROBS), max_size=4))
    return tuple(token_id for token_id, _ in pairs), tuple(logprob for _, logprob in pairs)


@st.composite
def logprobs(draw: st.DrawFn) -> TokenLogprobs:
    return TokenLogprobs(draw(LOGPROBS), *tops(draw))


@st.composite
def deltas(draw: st.DrawFn) -> m.TokenDelta:
    """A delta as a worker makes it: an error comes with its reason and without a token, all else with a token."""
    attempt_id, index = draw(U32), draw(U32)
    if draw(st.booleans()):
        suspects = draw(st.lists(TEXT, max_size=2).map(tuple))
        return m.TokenDelta(
            attempt_id, index, None, FinishReason.ERROR, draw(TEXT), draw(st.booleans()), suspects=suspects
        )
    return m.TokenDelta(
        attempt_id,
        index,
        draw(U32),
        draw(st.none() | st.sampled_from(FinishReason)),
        queue_s=draw(st.none() | NUMBERS),
        cached_tokens=draw(st.none() | U32),
        logprobs=draw(st.none() | logprobs()),
        prompt_logprobs=draw(st.none() | st.lists(st.none() | logprobs(), max_size=3).map(tuple)),
        embedding=draw(st.none() | EMBEDDINGS),
    )


#: Types that have no message of their name, or laws about their values.
OF_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    m.TokenDelta: deltas(),
    ModelShape: FEW.flatmap(shapes),
    ParallelConfig: st.builds(ParallelConfig, FEW, FEW, FEW, prompt_data=U32),
    PiecewiseHazard: st.sampled_from([PiecewiseHazard((0.0,), (0.5,)), PiecewiseHazard((0.0, 60.0), (0.25, 0.0))]),
}
#: Fields with laws about their values.
OF_FIELD: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("epoch", "hop", "num_layers", "num_heads"), EPOCHS),
    **dict.fromkeys(("attempts", "ended", "leases"), st.lists(st.tuples(TEXT, EPOCHS), max_size=5).map(tuple)),
    "assignments_seen": st.dictionaries(TEXT, U32, max_size=3).map(lambda seen: tuple(sorted(seen.items()))),
    "avoid": st.lists(st.lists(TEXT, min_size=1, max_size=2).map(tuple), max_size=3).map(tuple),
}


def values_of(hint: Any, integers: st.SearchStrategy[int] = U32) -> st.SearchStrategy[Any]:
    """Return any value of a type that a field may have."""
    if hint in OF_TYPE:
        return OF_TYPE[hint]
    if hint is int:
        return integers
    if hint in PLAIN:
        return PLAIN[hint]
    if get_origin(hint) in (Union, types.UnionType):
        (kind,) = (each for each in get_args(hint) if each is not type(None))
        return st.none() | values_of(kind, integers)
    if get_origin(hint) is tuple:
        first, *rest = get_args(hint)
        if rest == [...]:
            return st.lists(values_of(first, integers), max_size=3).map(tuple)
        return st.tuples(*(values_of(each, integers) for each in (first, *rest)))
    return st.sampled_from(hint) if issubclass(hint, Enum) else objects_of(hint)


def objects_of(kind: type) -> st.SearchStrategy[Any]:
    """Return any object of a core type, whose message has its name and its fields."""
    widths = {field.name: INTEGERS.get(field.type, U32) for field in PROTO[kind.__name__].fields}
    given = {
        name: OF_FIELD[name] if name in OF_FIELD else values_of(hint, widths.get(name, U32))
        for name, hint in get_type_hints(kind).items()
    }
    return st.builds(kind, **given)


MESSAGES: dict[type, st.SearchStrategy[m.Message]] = {kind: objects_of(kind) for kind in get_args(m.Message)}


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_every_message_survives_the_wire(kind: type) -> None:
    """A decoded message equals the encoded one, to the bit of each number and with the types of core."""

    @settings(max_examples=40)
    @given(MESSAGES[kind])
    def survives(message: m.Message) -> None:
        received = codec.decode(codec.encode(message))
        assert received == message
        assert repr(received) == repr(message)

    survives()


@settings(max_examples=80)
@given(objects_of(RequestRecord))
def test_every_record_survives_the_store(record: RequestRecord) -> None:
    read = codec_records.decode_record(codec_records.encode_record(record))
    assert read == record
    assert repr(read) == repr(record)


@settings(max_examples=200)
@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_a_message_or_malformed(payload: bytes) -> None:
    try:
        received = codec.decode(payload)
    except MalformedMessageError:
        return
    assert isinstance(received, get_args(m.Message))


@settings(max_examples=200)
@given(st.one_of(*MESSAGES.values()), st.data())
def test_damaged_messages_are_a_message_or_malformed(message: m.Message, data: st.DataObject) -> None:
    payload = bytearray(codec.encode(message))
    at = data.draw(st.integers(0, len(payload) - 1))
    if data.draw(st.booleans()):
        payload[at] = data.draw(st.integers(0, 255))
    else:
        del payload[at:]
    try:
        received = codec.decode(bytes(payload))
    except MalformedMessageError:
        return
    assert isinstance(received, get_args(m.Message))
