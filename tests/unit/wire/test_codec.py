"""What the codecs refuse, and how little a token costs; the round trips are property tests."""

from __future__ import annotations

import math
from typing import Any

import pytest

from spotwise.core.messages import groups as g
from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import ProcessCores
from spotwise.core.requests.sampling import SampledToken, TokenLogprobs
from spotwise.wire import codec, codec_members, codec_records
from spotwise.wire.codec_groups import decode_order, decode_report, encode_report
from spotwise.wire.message_codec import MalformedMessageError
from spotwise.wire.v1 import cluster_pb2, envelope_pb2, fleet_pb2, group_pb2, request_pb2, spot_pb2, worker_pb2


def malformed(**message: Any) -> bytes:
    return envelope_pb2.Envelope(**message).SerializeToString()


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xff\xff\xff", id="noise"),
        pytest.param(b"\xfa\x07\x00", id="a message of a later version"),
        pytest.param(
            malformed(request_rejected=cluster_pb2.RequestRejected(choice_id="r", epoch=1, code="odd")),
            id="an unknown rejection",
        ),
        pytest.param(malformed(member=cluster_pb2.Member(id="w", kind="odd", state="ready")), id="an unknown kind"),
        pytest.param(
            malformed(member=cluster_pb2.Member(id="w", kind="gateway", state="odd")), id="an unknown member state"
        ),
        pytest.param(
            malformed(member=cluster_pb2.Member(id="w", kind="token_worker", state="ready", pool="odd")),
            id="an unknown pool",
        ),
        pytest.param(
            malformed(renew_leases=worker_pb2.RenewLeases(choice_ids=["a", "b"], epochs=[1])),
            id="leases without their epochs",
        ),
        pytest.param(
            malformed(token_batch=request_pb2.TokenBatch(attempt_ids=[1, 2], token_indexes=[0, 0], token_ids=[5])),
            id="columns of different lengths",
        ),
        pytest.param(
            malformed(
                token_batch=request_pb2.TokenBatch(
                    attempt_ids=[1], token_indexes=[0], token_ids=[5], extras=[request_pb2.TokenExtra(position=1)]
                )
            ),
            id="an extra of a token that is not there",
        ),
        pytest.param(
            malformed(drain=spot_pb2.Drain(worker_id="w", deadline_unix_s=math.nan)), id="a deadline that is no number"
        ),
        pytest.param(
            malformed(move_ended=worker_pb2.MoveEnded(choice_id="r", epoch=1, outcome="moved", copy_s=math.inf)),
            id="a copy without an end",
        ),
        pytest.param(
            malformed(
                fleet_reported=fleet_pb2.FleetReported(
                    lives=[fleet_pb2.LearnedLives(hazard=fleet_pb2.Hazard(from_s=[0.0], per_s=[-math.inf]))]
                )
            ),
            id="an infinite number within parts",
        ),
        pytest.param(
            malformed(request_moved=worker_pb2.RequestMoved(choice_id="r", epoch=1)), id="a move of no number"
        ),
    ],
)
def test_bytes_that_are_no_message_of_this_version_are_malformed(payload: bytes) -> None:
    """The receiver has one error to expect."""
    with pytest.raises(MalformedMessageError):
        codec.decode(payload)


@pytest.mark.parametrize("thing", [m.Tick(), m.StreamRef("g", 1), "text"], ids=lambda thing: type(thing).__name__)
def test_what_is_no_mesh_message_cannot_be_encoded(thing: Any) -> None:
    with pytest.raises(TypeError, match=f"{type(thing).__name__} is no mesh message"):
        codec.encode(thing)


def test_a_malformed_record_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="not a request record"):
        codec_records.decode_record(b"\xff\xff\xff")
    odd = request_pb2.RequestRecord(sampling=request_pb2.SamplingParams(logit_bias_token_ids=[1]))
    with pytest.raises(ValueError, match="zip"):
        codec_records.decode_record(odd.SerializeToString())


def test_plain_tokens_cost_a_few_bytes_each() -> None:
    """Three packed columns: a batch of 256 streams stays far below any broker's limit."""
    deltas = tuple(m.TokenDelta(stream, 100, 40_000) for stream in range(1, 257))
    assert len(codec.encode(m.TokenBatch("token-worker-0", deltas))) < 256 * 8


@pytest.mark.parametrize("cores", [None, ProcessCores((0, 3), "0-3,8", 4, is_pinned=True), ProcessCores((), "")])
def test_a_member_survives_without_an_envelope_too(cores: ProcessCores | None) -> None:
    kind, state = m.MemberKind.TOKEN_WORKER, m.MemberState.READY
    member = m.Member("w", kind, 3, state, "host", 1, "host:1", m.Pool.MIXED, cores=cores)
    assert codec_members.member_from(codec_members.member_to(member)) == member


SCORES = TokenLogprobs(-0.5, (7, 8), (-0.5, -1.5))


@pytest.mark.parametrize(
    "report",
    [
        h.HandoffDelivered("r#0", 2, 4096, 0.5, "shm", 0.25),
        g.StepEnded(
            7,
            3,
            (
                SampledToken("a@1", 5),
                SampledToken("b@1", 0, SCORES, (None, SCORES)),
                SampledToken("c@1", 0, failure="no"),
                SampledToken("d@1", 7, embedding=(0.5, -1.0, 0.0)),
            ),
        ),
        g.StepEnded(7, 4, ()),
    ],
    ids=["hand-off", "step", "empty step"],
)
def test_a_report_is_read_as_it_was_written(report: g.GroupReport) -> None:
    """An empty list of prompt log-probabilities is not the same as none; all other kinds are in `test_field_codec`."""
    assert decode_report(encode_report(report)) == report


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff\xff",
        group_pb2.GroupOrder(run=group_pb2.RunStep(number=1, sequence_ids=["a"])).SerializeToString(),
        group_pb2.GroupOrder(
            run=group_pb2.RunStep(
                number=1,
                sequence_ids=["a"],
                first_positions=[0],
                num_tokens=[1],
                kept_blocks=[0],
                new_block_counts=[2],
                new_block_ids=[1],
            )
        ).SerializeToString(),
    ],
    ids=["nothing", "noise", "columns of different lengths", "fewer blocks than rows have"],
)
def test_bytes_that_are_no_order_are_malformed(payload: bytes) -> None:
    """The device ends the stream instead of computing something else."""
    with pytest.raises(MalformedMessageError):
        decode_order(payload)
