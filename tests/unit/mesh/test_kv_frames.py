"""The frame header codec of KV transfers."""

from __future__ import annotations

import contextlib
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.requests.kv_part import KvPart
from spotwise.core.requests.record import KvHandoff, QueueLevel
from spotwise.wire import framing, kv_frames, link_hello
from spotwise.wire.framing import FrameError
from spotwise.wire.kv_frames import FrameKind, KvFrame, NackReason
from spotwise.wire.link_hello import LinkHello

U16 = st.integers(0, 2**16 - 1)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
IDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=32)
DIGESTS = st.none() | st.text("0123456789abcdef", min_size=1, max_size=link_hello.MAX_MODEL_DIGEST_BYTES)
CLASSES = st.just("") | st.text("abc/0123", min_size=1, max_size=framing.MAX_NUMERICS_CLASS_BYTES)

FRAMES = st.builds(
    KvFrame,
    kind=st.sampled_from(FrameKind),
    choice_id=IDS,
    epoch=U64,
    push_id=U64,
    sender_incarnation=U64,
    target_incarnation=U64,
    part=st.builds(KvPart, U16, st.integers(1, 2**16 - 1), U16, st.integers(1, 2**16 - 1)),
    reason=st.none() | st.sampled_from(NackReason),
    first_layer=U32,
    num_layers=U32,
    first_block=U32,
    num_blocks=U32,
    chunk_index=U32,
    chunk_total=U32,
    payload_bytes=st.integers(0, framing.MAX_PAYLOAD_BYTES),
    payload_checksum=U64,
)

PART = KvPart.of(range(2, 6), range(1, 3))
FRAME = KvFrame(FrameKind.CHUNK, "chatcmpl-1#0", 2, 7, 11, 12, PART, num_layers=4, num_blocks=3, payload_bytes=48)


@given(FRAMES)
def test_a_header_survives_the_wire(frame: KvFrame) -> None:
    data = kv_frames.encode_frame(frame)
    assert len(data) == kv_frames.FRAME_BYTES
    assert kv_frames.decode_frame(data) == frame


@given(st.integers(0, kv_frames.FRAME_BYTES * 8 - 1))
def test_any_flipped_bit_is_noticed(bit: int) -> None:
    data = bytearray(kv_frames.encode_frame(FRAME))
    data[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(FrameError):
        kv_frames.decode_frame(data)


@given(st.binary(max_size=2 * kv_frames.FRAME_BYTES))
def test_noise_is_malformed_and_nothing_else(noise: bytes) -> None:
    with pytest.raises(FrameError):
        kv_frames.decode_frame(noise)
    for kind in link_hello.HeadKind:
        with pytest.raises(FrameError):
            link_hello.decode_head(kind, noise)
    assert link_hello.decode_refusal(noise) is None
    with contextlib.suppress(FrameError):  # under a proof: it has no checksum of its own
        link_hello.decode_hello(noise[: link_hello.HELLO_BYTES].ljust(link_hello.HELLO_BYTES, b"x"))


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (5, 99, "does not know"),
        (4, framing.VERSION + 1, rf"version {framing.VERSION + 1} .* this process {framing.VERSION}"),
    ],
    ids=["kind", "version"],
)
def test_a_valid_header_of_an_unknown_kind_or_version_is_malformed(place: int, value: int, said: str) -> None:
    """The error names both versions, so that an operator sees which worker is old."""
    body = bytearray(kv_frames.encode_frame(FRAME)[:-8])
    body[place] = value
    with pytest.raises(FrameError, match=said):
        kv_frames.decode_frame(framing.seal(bytes(body)))


def test_an_absurd_payload_size_is_malformed() -> None:
    frame = KvFrame(FrameKind.CHUNK, "r", 1, 1, 1, 1, PART, payload_bytes=framing.MAX_PAYLOAD_BYTES + 1)
    with pytest.raises(FrameError, match="allowed"):
        kv_frames.decode_frame(kv_frames.encode_frame(frame))


@pytest.mark.parametrize("choice_id", ["", "x" * 129, "é" * 65])
def test_ids_that_do_not_fit_are_refused_when_encoded(choice_id: str) -> None:
    """Ids are 1 to 128 utf-8 bytes, counted in bytes and not in characters."""
    with pytest.raises(ValueError, match="128 utf-8 bytes"):
        kv_frames.encode_frame(KvFrame(FrameKind.ABORT, choice_id, 1, 1, 1, 1, PART))


def test_numbers_that_do_not_fit_are_refused_when_encoded() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        kv_frames.encode_frame(KvFrame(FrameKind.ABORT, "r", -1, 1, 1, 1, PART))
    with pytest.raises(ValueError, match="does not fit"):
        kv_frames.encode_handoff(KvHandoff("r", 1, num_tokens=-1, first_token_id=3))


HELLOS = st.builds(
    LinkHello,
    worker_id=IDS,
    incarnation=U64,
    layout=U64,
    model_digest=DIGESTS,
    numerics_class=CLASSES,
)


@given(HELLOS)
def test_a_hello_survives_the_wire(hello: LinkHello) -> None:
    data = link_hello.encode_hello(hello)
    assert len(data) == link_hello.HELLO_BYTES
    assert link_hello.decode_hello(data) == hello


HEADS = st.builds(
    link_hello.LinkHead,
    kind=st.sampled_from(link_hello.LinkKind),
    wish=st.sampled_from(link_hello.SealWish),
    public_key=st.binary(min_size=32, max_size=32),
)


@given(st.sampled_from(link_hello.HeadKind), HEADS, st.sampled_from(link_hello.HelloRefusal))
def test_a_head_and_a_refusal_survive_the_wire(
    kind: link_hello.HeadKind, head: link_hello.LinkHead, refusal: link_hello.HelloRefusal
) -> None:
    """None is taken for another."""
    data = link_hello.encode_head(kind, head)
    assert link_hello.decode_head(kind, data) == head
    (other,) = {*link_hello.HeadKind} - {kind}
    message = link_hello.encode_refusal(refusal, 200)
    assert link_hello.decode_refusal(message) is refusal
    assert link_hello.decode_refusal(data) is None
    for wrong in (data, message[: link_hello.HEAD_BYTES]):
        with pytest.raises(FrameError):
            link_hello.decode_head(other, wrong)


@given(HELLOS, st.integers(0, link_hello.HELLO_BYTES - 1))
def test_a_hello_that_is_cut_off_is_malformed(hello: LinkHello, size: int) -> None:
    with pytest.raises(FrameError):
        link_hello.decode_hello(link_hello.encode_hello(hello)[:size])


def test_layouts_are_distinguished_by_their_words() -> None:
    assert link_hello.layout_fingerprint("2 layers, tiled") == 0x4DDAF090E0B001FA
    assert link_hello.layout_fingerprint("2 layers, plain") != link_hello.layout_fingerprint("2 layers, tiled")


@given(
    U64,
    U32,
    st.none() | st.builds(QueueLevel, st.integers(1, 2**64 - 1), st.floats(0.0, 1.0)),
    st.lists(U32, max_size=9),
    CLASSES,
    st.booleans(),
)
def test_a_hand_off_travels_in_header_and_payload(
    num_tokens: int,
    first_token_id: int,
    level: QueueLevel | None,
    later: list[int],
    numerics_class: str,
    has_foreign_kv: bool,
) -> None:
    """Request and epoch come from the COMMIT's header, the rest from its payload; a level is there or is not."""
    tokens = num_tokens, first_token_id, level, tuple(later)
    handoff = KvHandoff("chatcmpl-1#0", 2, *tokens, numerics_class, has_foreign_kv)
    payload = kv_frames.encode_handoff(handoff)
    assert kv_frames.decode_handoff(FRAME, payload) == handoff


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(kv_frames.encode_handoff(KvHandoff("r", 1, 100, 0)) + b"\0", id="too long"),
        pytest.param(struct.pack("!QQQd", 100, 0, 3, 0.5), id="that of an earlier version"),
        pytest.param(struct.pack("!QQdI", 100, 0, 0.0, 0), id="no token"),
        pytest.param(struct.pack("!QQdI", 100, 0, 0.0, 2**31), id="fewer tokens than it says"),
        pytest.param(struct.pack("!QQdII", 100, 3, 1.5, 1, 7), id="more than all of a quantum"),
        pytest.param(struct.pack("!QQdII", 100, 3, math.nan, 1, 7), id="no number of a quantum"),
    ],
)
def test_what_is_no_hand_off_is_malformed(payload: bytes) -> None:
    with pytest.raises(FrameError, match="not a hand-off"):
        kv_frames.decode_handoff(FRAME, payload)
