"""Every message and every record survives the wire."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.core.lives.survival import PiecewiseHazard
from spotwise.core.messages import mesh as m
from spotwise.core.messages.fleet import InstanceState, Market
from spotwise.core.messages.members import DevicePlace
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.model_partition import LayerMatrix, ModelDimensions
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.requests.names import AdapterRef
from spotwise.core.requests.record import KvTarget, RequestRecord
from spotwise.core.requests.request import FinishReason, StopCriteria
from spotwise.core.requests.sampling import Pooling, SamplingParams, TokenLogprobs
from spotwise.wire import codec, codec_records
from spotwise.wire.message_codec import MalformedMessageError

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
PRIORITIES = st.integers(-(2**31), 2**31 - 1)
EPOCHS = st.integers(1, 2**32 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
EMBEDDINGS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=3).map(tuple)
LOGPROBS = st.floats(allow_nan=False)
IDS = st.lists(U32, max_size=8).map(tuple)

STREAMS = st.builds(m.StreamRef, TEXT, U32, U64)
TARGETS = st.builds(KvTarget, TEXT, U64, TEXT, IDS)
LOADS = st.builds(
    m.WorkerLoad,
    pending_prompt_tokens=U64,
    remaining_tokens=U64,
    kv_blocks_total=U32,
    kv_blocks_free=U32,
    kv_blocks_kept=U32,
    kv_blocks_used=U32,
    kv_block_size=U32,
    reserved_new_tokens=st.none() | U32,
    waiting=U32,
    waiting_for_kv=U32,
    running=U32,
    preempted=U32,
    migrating=U32,
    decoding=U32,
    prompts_in_place=U32,
    prompts_to_hand_off=U32,
    swapped=U32,
    kv_host_blocks_total=U32,
    kv_host_blocks_free=U32,
    preemptions=U64,
    kv_blocks_swapped_out=U64,
    kv_blocks_swapped_in=U64,
    prompt_token_s=st.none() | NUMBERS,
    kv_push_token_s=st.none() | NUMBERS,
    assignments_seen=st.dictionaries(TEXT, U64, max_size=3).map(lambda seen: tuple(sorted(seen.items()))),
    gateways=st.lists(st.builds(m.GatewayStreams, TEXT, U64, U64), max_size=3).map(tuple),
)
FEW = st.integers(1, 2**32 - 1)
PAIRS = st.tuples(U32, U32)
PLACES = st.builds(DevicePlace, U64, U32, U32, U32, U32, PAIRS, PAIRS, TEXT)


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


MARKETS = st.sampled_from(Market)
PURCHASES = st.builds(m.Purchase, TEXT, TEXTS, MARKETS, U32, TEXT)
HAZARDS = st.just(PiecewiseHazard((0.0,), (0.5,))) | st.just(PiecewiseHazard((0.0, 60.0), (0.25, 0.0)))
FLEET_REPORTS = st.builds(
    m.FleetReported,
    TEXT,
    U64,
    NUMBERS,
    TEXT,
    st.lists(
        st.builds(
            m.FleetInstance,
            TEXT,
            TEXT,
            MARKETS,
            st.sampled_from(InstanceState),
            NUMBERS,
            TEXT,
            TEXT,
            NUMBERS,
            st.none() | NUMBERS,
            TEXT,
        ),
        max_size=2,
    ).map(tuple),
    st.lists(st.builds(m.InstanceOffer, TEXT, MARKETS, NUMBERS, U32, TEXT, NUMBERS, TEXT), max_size=2).map(tuple),
    st.lists(st.builds(m.PurchaseStatus, PURCHASES, NUMBERS, st.booleans(), U32, TEXT), max_size=2).map(tuple),
    st.lists(st.builds(m.LearnedLives, TEXT, TEXT, HAZARDS, U64, U64), max_size=2).map(tuple),
    NUMBERS,
    TEXT,
)
MESSAGES: dict[type, st.SearchStrategy[m.Message]] = {
    m.SubmitRequest: st.builds(
        m.SubmitRequest,
        TEXT,
        EPOCHS,
        STREAMS,
        U32,
        U32,
        st.lists(U64, max_size=5).map(tuple),
        PRIORITIES,
        st.lists(st.lists(TEXT, min_size=1, max_size=2).map(tuple), max_size=3).map(tuple),
    ),
    m.CloseRequest: st.builds(m.CloseRequest, TEXT, EPOCHS, st.booleans(), TEXTS),
    m.ConfirmAttempts: st.builds(
        m.ConfirmAttempts, TEXT, st.lists(st.tuples(TEXT, EPOCHS), max_size=5).map(tuple), st.booleans()
    ),
    m.AttemptsConfirmed: st.builds(m.AttemptsConfirmed, st.lists(st.tuples(TEXT, EPOCHS), max_size=5).map(tuple)),
    m.RequestAccepted: st.builds(m.RequestAccepted, TEXT, EPOCHS),
    m.RequestRejected: st.builds(
        m.RequestRejected, TEXT, EPOCHS, st.sampled_from(m.RejectCode), TEXT, st.none() | NUMBERS
    ),
    m.RequestAssigned: st.builds(m.RequestAssigned, TEXT, EPOCHS, TEXT, TEXT),
    m.ReserveKv: st.builds(m.ReserveKv, TEXT, EPOCHS, STREAMS, TEXT, U64, U32, U32, NUMBERS, TEXT, U32),
    m.MoveRequest: st.builds(m.MoveRequest, TEXT, EPOCHS, TEXT, TEXT, U64),
    m.MoveEnded: st.builds(
        m.MoveEnded, TEXT, EPOCHS, TEXT, TEXT, st.sampled_from(m.MoveOutcome), TEXT, U32, NUMBERS, NUMBERS
    ),
    m.GiveBackRequest: st.builds(m.GiveBackRequest, TEXT, EPOCHS, TEXT, U64),
    m.SurveyWorker: st.builds(m.SurveyWorker, TEXT, U64),
    m.WorkerSurveyed: st.builds(
        m.WorkerSurveyed,
        TEXT,
        U64,
        st.none() | NUMBERS,
        st.lists(st.builds(m.SurveyedSequence, TEXT, EPOCHS, U32, U32, U32, TEXT), max_size=3).map(tuple),
    ),
    m.RequestMoved: st.builds(
        m.RequestMoved, TEXT, EPOCHS, U32, TEXT, TEXT, FEW, U32, st.lists(U32, max_size=5).map(tuple)
    ),
    m.MoveAcknowledged: st.builds(m.MoveAcknowledged, TEXT, EPOCHS, TEXT, U32),
    m.StartPrefill: st.builds(m.StartPrefill, TEXT, EPOCHS, STREAMS, TEXT, U64, U32, TARGETS, NUMBERS, U32),
    m.PrefillAccepted: st.builds(m.PrefillAccepted, TEXT, EPOCHS, U64, TEXT),
    m.CancelRequest: st.builds(m.CancelRequest, TEXT, EPOCHS),
    m.ChangeHomePool: st.builds(m.ChangeHomePool, TEXT, st.sampled_from(m.Pool)),
    m.ForgetGateway: st.builds(m.ForgetGateway, TEXT, U64),
    m.Drain: st.builds(m.Drain, TEXT, NUMBERS, TEXT, st.booleans()),
    m.ReshapeMesh: st.builds(
        m.ReshapeMesh,
        st.builds(ParallelConfig, FEW, FEW, FEW, prompt_data=st.integers(0, 2**32 - 1)),
        st.booleans(),
    ),
    m.ReshapeReply: st.builds(
        m.ReshapeReply,
        st.booleans(),
        TEXT,
        U64,
        st.none()
        | st.builds(
            m.PredictedReshape,
            st.lists(st.builds(m.DeviceGroup, TEXT, st.sampled_from(m.Pool), U32, U32, TEXTS), max_size=3).map(tuple),
            TEXTS,
            TEXTS,
            U64,
            U64,
            NUMBERS,
            NUMBERS,
        ),
    ),
    m.SurveyDevice: st.builds(m.SurveyDevice, TEXT, U64),
    m.DeviceSurveyed: st.builds(
        m.DeviceSurveyed,
        TEXT,
        U64,
        U64,
        st.integers(1, 2**32 - 1).flatmap(shapes),
        st.lists(st.builds(m.GroupMembership, TEXT, PLACES), max_size=3).map(tuple),
    ),
    m.LeadGroup: st.builds(
        m.LeadGroup,
        TEXT,
        st.sampled_from(m.Pool),
        U32,
        U32,
        st.lists(TEXT, max_size=4).map(tuple),
        U64,
        U64,
        TEXT,
        st.lists(st.builds(m.PlannedWeights, TEXT, TEXT, st.integers(-1, 2**31 - 1), U32), max_size=3).map(tuple),
        st.booleans(),
    ),
    m.GroupFormed: st.builds(m.GroupFormed, TEXT, U64, U64, U64, U64),
    m.LoadReported: st.builds(
        m.LoadReported, TEXT, U64, U64, st.lists(NUMBERS, max_size=4).map(tuple), U64, U64, U64, U64
    ),
    m.FleetReported: FLEET_REPORTS,
    m.FleetOrder: st.builds(
        m.FleetOrder,
        TEXT,
        U64,
        U64,
        st.lists(PURCHASES, max_size=3).map(tuple),
        st.lists(st.builds(m.InstanceRelease, TEXT, NUMBERS, TEXT), max_size=3).map(tuple),
    ),
    m.ShowFleet: st.builds(m.ShowFleet),
    m.FleetView: st.builds(
        m.FleetView,
        st.none() | FLEET_REPORTS,
        NUMBERS,
        NUMBERS,
        U64,
        U64,
        TEXT,
        TEXT,
        NUMBERS,
        st.none() | NUMBERS,
        NUMBERS,
        st.none() | NUMBERS,
        st.lists(st.builds(m.WantedInstances, TEXT, U32, U32, U32), max_size=2).map(tuple),
        st.lists(st.builds(m.InstanceReason, TEXT, TEXT), max_size=2).map(tuple),
        TEXT,
    ),
    m.InterruptionReported: st.builds(
        m.InterruptionReported,
        TEXT,
        TEXT,
        st.sampled_from(m.InterruptionKind),
        st.lists(TEXT, max_size=4).map(tuple),
        st.none() | NUMBERS,
        TEXT,
    ),
    m.DrainReply: st.builds(m.DrainReply, st.booleans(), TEXT),
    m.KvReserved: st.builds(m.KvReserved, TEXT, EPOCHS, U64, TARGETS),
    m.KvRefused: st.builds(m.KvRefused, TEXT, EPOCHS, U64, TEXT, TEXT),
    m.RenewLeases: st.builds(m.RenewLeases, st.lists(st.tuples(TEXT, EPOCHS), max_size=5).map(tuple)),
    m.TokenBatch: st.builds(m.TokenBatch, TEXT, st.lists(deltas(), max_size=6).map(tuple), U64, st.none() | U64),
    m.Member: st.builds(
        m.Member,
        TEXT,
        st.sampled_from(m.MemberKind),
        U64,
        st.sampled_from(m.MemberState),
        TEXT,
        U32,
        TEXT,
        st.none() | st.sampled_from(m.Pool),
        TEXT,
        TEXT,
        st.none() | LOADS,
        st.none() | TEXT,
        st.lists(st.builds(m.QuarantinedPair, TEXT, TEXT, U32, NUMBERS), max_size=2).map(tuple),
        st.none() | U32,
        st.none() | U32,
        st.none() | NUMBERS,
    ),
}
RECORDS = st.builds(
    RequestRecord,
    TEXT,
    EPOCHS,
    TEXT,
    U32,
    TEXT,
    IDS,
    IDS,
    st.builds(
        SamplingParams,
        temperature=NUMBERS,
        top_p=NUMBERS,
        top_k=st.none() | U32,
        min_p=NUMBERS,
        seed=U64,
        presence_penalty=NUMBERS,
        frequency_penalty=NUMBERS,
        repetition_penalty=NUMBERS,
        logit_bias=st.lists(st.tuples(U32, NUMBERS), max_size=4).map(tuple),
        allowed_token_ids=IDS,
        bad_words=st.lists(IDS, max_size=3).map(tuple),
        grammar=TEXT,
        logprobs=st.none() | U32,
        prompt_logprobs=st.none() | U32,
        pooling=st.none() | st.sampled_from(Pooling),
    ),
    st.builds(StopCriteria, U32, IDS, U32),
    NUMBERS,
    PRIORITIES,
    TEXT,
    st.none() | TEXT,
    adapter=st.none() | st.builds(AdapterRef, TEXT, TEXT),
)


def test_every_message_of_the_mesh_is_tried() -> None:
    """A message added to the mesh must be added here."""
    assert set(MESSAGES) == set(get_args(m.Message))


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
@given(RECORDS)
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
