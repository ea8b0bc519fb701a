"""Orders and reports of groups survive the wire, and bytes of another version do not pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.messages import groups as g
from spotwise.core.messages import hand_offs as h
from spotwise.core.messages.reshape import PlannedWeights
from spotwise.core.requests.kv_part import KvPart
from spotwise.core.requests.record import KvHandoff, KvShare, KvTarget, QueueLevel, RequestRecord
from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import SampledToken, SamplingParams, TokenLogprobs
from spotwise.wire.codec_groups import decode_order, decode_report, encode_order, encode_report
from spotwise.wire.message_codec import MalformedMessageError
from spotwise.wire.v1 import group_pb2

RECORD = RequestRecord(
    "r#0", 2, "g", 5, "model", (1, 2, 3), (4,), SamplingParams(temperature=0.5, logprobs=2), StopCriteria(9, (2,)), 1.5
)
FORM = g.FormGroup(7, "mixed-0", 2, 3, 1, 2, "/proc/1/fd/5", 100, 10, 16, "bfloat16", "abc")
SHARE = KvShare("d", 3, "127.0.0.1:4000", KvPart.of(range(4, 9), range(2, 3)))
HANDOFF = KvHandoff("r#0", 2, 40, 5, QueueLevel(2, 0.1), (7, 8))
SCORES = TokenLogprobs(-0.5, (7, 8), (-0.5, -1.5))


@pytest.mark.parametrize(
    "order",
    [
        FORM,
        g.FormGroup(8, "w", 1, 2, 0, 1, "x", 1, 0, 16, "float32", None),
        g.FormGroup(9, "w", 1, 2, 0, 1, "00" * 16, 1, 0, 16, "float32", None, ("a:1", "b:2")),
        replace(
            FORM, serves_early=True, weights=(PlannedWeights("d1", "d0", -1, 16), PlannedWeights("d2", "d0", 16, 15))
        ),
        g.AddGroupSequence(RECORD),
        g.DropGroupSequence("r#0@2"),
        g.AppendGroupTokens(("a@1", "b@1"), (5, 0)),
        g.RunStep(
            3, (g.StepRow("a@1", 0, 17, 0, (4, 5)), g.StepRow("b@1", 9, 1, 1, ()), g.StepRow("d@1", 32, 1, 2, (9,)))
        ),
        g.RunStep(4, ()),
        g.SwapGroupKv(5, (1, 2), (3, 4), to_host=True),
        g.ClearGroupKv((4, 9)),
        g.DissolveGroup("a member is gone"),
        g.DissolveGroup("drained", for_good=True),
        g.DissolveGroup("another shape serves", is_last=True),
        h.ExpectKv("r#0", 2, (5, 1)),
        h.ForgetKv("r#0"),
        h.OpenPush("r#0", 2, KvTarget("t", 9, "t:1", (3, 4), (SHARE,)), (5, 1), 30, 16),
        h.OpenPush("r#0", 2, KvTarget("t", 9, "t:1", (3, 4)), (5, 1), None, 16),
        h.CommitPush(HANDOFF, (5, 1, 6)),
        h.CommitPush(KvHandoff("r#0", 2, 40, 5)),
        h.AbortPush("r#0", 2),
    ],
    ids=lambda order: type(order).__name__,
)
def test_an_order_is_read_as_it_was_written(order: g.GroupOrder) -> None:
    """Every kind, with and without what is optional."""
    assert decode_order(encode_order(order)) == order


@pytest.mark.parametrize(
    "report",
    [
        g.DeviceOffered("d", 1 << 34, 0, "machine", "host:7000"),
        g.GroupJoined(7, g.LoadedWeights(5, 1, 2), "bfloat16 on cpu", SHARE),
        g.PartArrived(HANDOFF, 4096, 0.5, "shm"),
        h.PushCaughtUp("r#0", 2),
        h.HandoffDelivered("r#0", 2, 4096, 0.5, "shm", 0.25),
        h.HandoffFailed("r#0", 2, "gone"),
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
        g.StepFailed(7, 3, "member 2 of the group is gone"),
        g.GroupSwapEnded(7, 5, ""),
        g.GroupRefused(7, "too little memory"),
        g.GroupBroken(7, "member 1 of the group is gone"),
    ],
    ids=lambda report: type(report).__name__,
)
def test_a_report_is_read_as_it_was_written(report: g.GroupReport) -> None:
    """Every kind; an empty list of prompt log-probabilities is not the same as none."""
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
