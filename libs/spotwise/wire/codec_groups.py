"""Encodes and decodes a group's orders and reports, for the streams between a leader and its devices."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

from google.protobuf.message import DecodeError

from spotwise.core.messages import groups as g
from spotwise.core.messages import hand_offs as h
from spotwise.core.requests.sampling import SampledToken
from spotwise.wire import codec_kv, codec_reshape
from spotwise.wire.codec import MalformedMessageError
from spotwise.wire.codec_records import record_from, record_to
from spotwise.wire.codec_tokens import logprobs_from, logprobs_to
from spotwise.wire.field_codec import Codec, codec_of, same
from spotwise.wire.v1 import group_pb2 as pb


def encode_order(order: g.GroupOrder) -> bytes:
    """Return an order's bytes."""
    field, to_proto, _ = _ORDERS[type(order)]
    return pb.GroupOrder(**{field: to_proto(order)}).SerializeToString()


def decode_order(payload: bytes) -> g.GroupOrder:
    """Return the order; raises `MalformedMessageError` where the bytes are none that this version knows."""
    order: g.GroupOrder = _decoded(pb.GroupOrder, payload, "order", _ORDERS)
    return order


def encode_report(report: g.GroupReport) -> bytes:
    """Return a report's bytes."""
    field, to_proto, _ = _REPORTS[type(report)]
    return pb.GroupReport(**{field: to_proto(report)}).SerializeToString()


def decode_report(payload: bytes) -> g.GroupReport:
    """Return the report; raises `MalformedMessageError` where the bytes are none that this version knows."""
    report: g.GroupReport = _decoded(pb.GroupReport, payload, "report", _REPORTS)
    return report


_Table = dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]]


def _decoded(proto_type: Any, payload: bytes, kind: str, table: _Table) -> Any:
    try:
        proto = proto_type.FromString(payload)
        field = proto.WhichOneof(kind)
        if field is None:
            raise MalformedMessageError(f"an {kind} that this version does not know")
        from_proto = next(back for name, _, back in table.values() if name == field)
        return from_proto(getattr(proto, field))
    except (DecodeError, ValueError, IndexError) as error:
        raise MalformedMessageError(str(error)) from error


def _step_to(step: g.RunStep) -> pb.RunStep:
    return pb.RunStep(
        number=step.number,
        sequence_ids=[row.sequence_id for row in step.rows],
        first_positions=[row.first_position for row in step.rows],
        num_tokens=[row.num_tokens for row in step.rows],
        kept_blocks=[row.kept_blocks for row in step.rows],
        new_block_counts=[len(row.new_block_ids) for row in step.rows],
        new_block_ids=[block for row in step.rows for block in row.new_block_ids],
    )


def _step_from(proto: pb.RunStep) -> g.RunStep:
    counts, blocks = proto.new_block_counts, tuple(proto.new_block_ids)
    columns = zip(
        proto.sequence_ids,
        proto.first_positions,
        proto.num_tokens,
        proto.kept_blocks,
        counts,
        accumulate(counts),
        strict=True,
    )
    if sum(counts) != len(blocks):
        raise ValueError(f"{len(blocks)} blocks for rows with {sum(counts)}")
    rows = (
        g.StepRow(name, first, tokens, kept, blocks[end - count : end])
        for name, first, tokens, kept, count, end in columns
    )
    return g.RunStep(proto.number, tuple(rows))


def _sampled_to(sampled: tuple[SampledToken, ...]) -> list[pb.SampledToken]:
    return [
        pb.SampledToken(
            sequence_id=token.sequence_id,
            token_id=token.token_id,
            logprobs=None if token.logprobs is None else logprobs_to(token.logprobs),
            has_prompt_logprobs=token.prompt_logprobs is not None,
            prompt_logprobs=[logprobs_to(entry) for entry in token.prompt_logprobs or ()],
            failure=token.failure,
            embedding=token.embedding or (),
            may_be_ill=token.may_be_ill,
        )
        for token in sampled
    ]


def _sampled_from(protos: Any) -> tuple[SampledToken, ...]:
    return tuple(
        SampledToken(
            proto.sequence_id,
            proto.token_id,
            logprobs_from(proto.logprobs) if proto.HasField("logprobs") else None,
            tuple(map(logprobs_from, proto.prompt_logprobs)) if proto.has_prompt_logprobs else None,
            proto.failure if proto.HasField("failure") else None,
            tuple(proto.embedding) or None,
            proto.may_be_ill,
        )
        for proto in protos
    )


_ATTEMPT = ("choice_id", "epoch")
_SAMPLED: Codec = (_sampled_to, _sampled_from)
_LOADED = codec_of(g.LoadedWeights, pb.LoadedWeights, "fetched_bytes", "unplanned_bytes", "read_bytes")
_ORDERS: _Table = {
    g.FormGroup: (
        "form",
        *codec_of(
            g.FormGroup,
            pb.FormGroup,
            *("epoch", "leader_id", "stages", "shards", "stage", "shard", "exchange", "num_blocks", "host_blocks"),
            *("block_size", "dtype", "serves_early"),
            optional=("model_digest",),
            addresses=(same, tuple),
            weights=codec_reshape.WEIGHTS,
        ),
    ),
    g.AddGroupSequence: (
        "add",
        lambda order: record_to(order.record),
        lambda proto: g.AddGroupSequence(record_from(proto)),
    ),
    g.DropGroupSequence: ("drop_sequence_id", lambda order: order.sequence_id, g.DropGroupSequence),
    g.AppendGroupTokens: (
        "append",
        *codec_of(g.AppendGroupTokens, pb.AppendGroupTokens, sequence_ids=(same, tuple), token_ids=(same, tuple)),
    ),
    g.RunStep: ("run", _step_to, _step_from),
    g.SwapGroupKv: (
        "swap",
        *codec_of(
            g.SwapGroupKv, pb.SwapGroupKv, "number", "to_host", block_ids=(same, tuple), host_block_ids=(same, tuple)
        ),
    ),
    g.ClearGroupKv: ("clear", *codec_of(g.ClearGroupKv, pb.ClearGroupKv, block_ids=(same, tuple))),
    g.DissolveGroup: ("dissolve", *codec_of(g.DissolveGroup, pb.DissolveGroup, "reason", "is_last", "for_good")),
    h.ExpectKv: ("expect_kv", *codec_of(h.ExpectKv, pb.ExpectKv, "choice_id", "epoch", block_ids=(same, tuple))),
    h.ForgetKv: ("forget_kv_of_choice_id", lambda order: order.choice_id, h.ForgetKv),
    h.OpenPush: (
        "open_push",
        *codec_of(
            h.OpenPush,
            pb.OpenPush,
            *(*_ATTEMPT, "written_tokens", "number"),
            optional=("num_tokens",),
            target=codec_kv.TARGET,
            source_block_ids=(same, tuple),
        ),
    ),
    h.CommitPush: (
        "commit_push",
        *codec_of(h.CommitPush, pb.CommitPush, handoff=codec_kv.HANDOFF, source_block_ids=(same, tuple)),
    ),
    h.AbortPush: ("abort_push", *codec_of(h.AbortPush, pb.OfAttempt, *_ATTEMPT)),
}
_REPORTS: _Table = {
    g.DeviceOffered: (
        "offered",
        *codec_of(
            g.DeviceOffered,
            pb.DeviceOffered,
            *("device_id", "kv_cache_bytes", "kv_host_bytes", "machine", "exchange_address"),
        ),
    ),
    g.GroupJoined: (
        "joined",
        *codec_of(g.GroupJoined, pb.GroupJoined, "epoch", "computes_with", loaded=_LOADED, share=codec_kv.SHARE),
    ),
    g.StepEnded: ("ended", *codec_of(g.StepEnded, pb.StepEnded, "epoch", "number", sampled=_SAMPLED)),
    g.StepFailed: ("failed", *codec_of(g.StepFailed, pb.StepFailed, "epoch", "number", "reason")),
    g.GroupSwapEnded: ("swapped", *codec_of(g.GroupSwapEnded, pb.GroupSwapEnded, "epoch", "number", "error")),
    g.GroupRefused: ("refused", *codec_of(g.GroupRefused, pb.GroupRefused, "epoch", "reason")),
    g.GroupBroken: ("broken", *codec_of(g.GroupBroken, pb.GroupBroken, "epoch", "reason")),
    h.PushCaughtUp: ("push_caught_up", *codec_of(h.PushCaughtUp, pb.PushCaughtUp, *_ATTEMPT, "number")),
    h.HandoffDelivered: (
        "handoff_delivered",
        *codec_of(
            h.HandoffDelivered,
            pb.HandoffDelivered,
            *(*_ATTEMPT, "kv_bytes", "transfer_s", "transport", "visible_s"),
        ),
    ),
    h.HandoffFailed: ("handoff_failed", *codec_of(h.HandoffFailed, pb.HandoffFailed, *_ATTEMPT, "reason")),
    g.PartArrived: (
        "part_arrived",
        *codec_of(g.PartArrived, pb.PartArrived, "kv_bytes", "transfer_s", "transport", handoff=codec_kv.HANDOFF),
    ),
}
