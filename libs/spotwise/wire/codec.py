"""Encodes and decodes core messages; protobuf types never leave `wire`. One row of a table per message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from spotwise.core import messages as m
from spotwise.core.messages import Message
from spotwise.core.record import KvTarget
from spotwise.wire import codec_spot, codec_tokens
from spotwise.wire.v1 import cluster_pb2 as cluster
from spotwise.wire.v1 import envelope_pb2, spot_pb2
from spotwise.wire.v1 import worker_pb2 as worker

_Codec: TypeAlias = tuple[Callable[[Any], Any], Callable[[Any], Any]]  # to protobuf, and back


class MalformedMessageError(ValueError):
    """The bytes are not a message of this version."""


def encode(message: Message) -> bytes:
    """Return the envelope bytes of a message; raises `TypeError` where it is not a message of the mesh."""
    try:
        field, to_proto, _ = _BY_TYPE[type(message)]
    except KeyError:
        raise TypeError(f"{type(message).__name__} is no mesh message") from None
    envelope = envelope_pb2.Envelope()
    getattr(envelope, field).MergeFrom(to_proto(message))
    return envelope.SerializeToString()


def decode(payload: bytes) -> Message:
    """Return the message that `encode` turned into `payload`; raises `MalformedMessageError` where the bytes are no envelope,
    or hold a message that this version does not know.
    """
    try:
        envelope = envelope_pb2.Envelope.FromString(payload)
        field = envelope.WhichOneof("message")
        if field is None:
            raise MalformedMessageError("empty envelope, or a message this version does not know")
        message: Message = _BY_FIELD[field](getattr(envelope, field))
        return message
    except (DecodeError, ValueError, IndexError) as error:
        raise MalformedMessageError(str(error)) from error


def _codec(
    core_type: Callable[..., Any],
    proto_type: Callable[..., Any],
    *names: str,
    optional: tuple[str, ...] = (),
    **parts: _Codec,
) -> _Codec:
    """Return the codec of two types with the same field names; `names` have equal values on both sides, `optional` fields are
    `None` where protobuf's are unset, `parts` have a codec of their own.
    """

    def to_proto(value: Any) -> Any:
        own = {name: to(getattr(value, name)) for name, (to, _) in parts.items()}
        return proto_type(**{name: getattr(value, name) for name in (*names, *optional)}, **own)

    def from_proto(proto: Any) -> Any:
        own = {name: back(getattr(proto, name)) for name, (_, back) in parts.items()}
        unset = {name: getattr(proto, name) if proto.HasField(name) else None for name in optional}
        return core_type(**{name: getattr(proto, name) for name in names}, **unset, **own)

    return to_proto, from_proto


def _attempts_codec(
    core_type: Callable[..., Any], proto_type: Callable[..., Any], field: str, columns: tuple[str, str], *names: str
) -> _Codec:
    """Return the codec of a message whose `field` holds attempts: two protobuf columns, choice ids and epochs."""
    ids, epochs = columns

    def to_proto(message: Any) -> Any:
        attempts: tuple[m.Attempt, ...] = getattr(message, field)
        pair = {ids: [choice_id for choice_id, _ in attempts], epochs: [epoch for _, epoch in attempts]}
        return proto_type(**{name: getattr(message, name) for name in names}, **pair)

    def from_proto(proto: Any) -> Any:
        attempts = tuple(zip(getattr(proto, ids), getattr(proto, epochs), strict=True))
        return core_type(**{name: getattr(proto, name) for name in names}, **{field: attempts})

    return to_proto, from_proto


def _same(value: Any) -> Any:
    return value


_STREAM = _codec(m.StreamRef, cluster.StreamRef, "gateway_id", "attempt_id", "incarnation")
_TARGET = _codec(KvTarget, worker.KvTarget, "worker_id", "incarnation", "address", block_ids=(_same, tuple))
_GATEWAY = _codec(m.GatewayStreams, cluster.GatewayStreams, "gateway_id", "incarnation", "batches_sent")
_SUSPECTS: _Codec = (
    lambda avoid: [cluster.Suspects(worker_ids=suspects) for suspects in avoid],
    lambda protos: tuple(tuple(proto.worker_ids) for proto in protos),
)
_LOAD = _codec(
    m.WorkerLoad,
    cluster.WorkerLoad,
    "pending_prompt_tokens",
    "remaining_tokens",
    "kv_blocks_total",
    "kv_blocks_free",
    "kv_blocks_kept",
    "kv_blocks_used",
    "kv_block_size",
    "waiting",
    "waiting_for_kv",
    "running",
    "preempted",
    "migrating",
    "decoding",
    "prompts_in_place",
    "prompts_to_hand_off",
    "swapped",
    "kv_host_blocks_total",
    "kv_host_blocks_free",
    "preemptions",
    "kv_blocks_swapped_out",
    "kv_blocks_swapped_in",
    optional=("reserved_new_tokens", "prompt_token_s", "kv_push_token_s"),
    assignments_seen=(dict, lambda seen: tuple(sorted(seen.items()))),
    gateways=(lambda streams: [*map(_GATEWAY[0], streams)], lambda protos: tuple(map(_GATEWAY[1], protos))),
)


def member_to(member: m.Member) -> cluster.Member:
    """Return a member's protobuf message; engine control uses it, too."""
    return cluster.Member(
        id=member.id,
        kind=member.kind,
        incarnation=member.incarnation,
        state=member.state,
        host=member.host,
        pid=member.pid,
        grpc_address=member.grpc_address,
        pool=member.pool or "",
        transfer_address=member.transfer_address,
        model=member.model,
        load=_LOAD[0](member.load) if member.load else None,
        model_digest=member.model_digest,
        quarantined=[
            cluster.QuarantinedPair(
                prompt_worker=pair.prompt_worker,
                token_worker=pair.token_worker,
                failures=pair.failures,
                until_unix_s=pair.until_s,
            )
            for pair in member.quarantined
        ],
        open_requests=member.open_requests,
        queued_requests=member.queued_requests,
    )


def member_from(proto: cluster.Member) -> m.Member:
    """Return the member that `member_to` turned into `proto`."""
    return m.Member(
        id=proto.id,
        kind=m.MemberKind(proto.kind),
        incarnation=proto.incarnation,
        state=m.MemberState(proto.state),
        host=proto.host,
        pid=proto.pid,
        grpc_address=proto.grpc_address,
        pool=m.Pool(proto.pool) if proto.pool else None,
        transfer_address=proto.transfer_address,
        model=proto.model,
        load=_LOAD[1](proto.load) if proto.HasField("load") else None,
        model_digest=proto.model_digest if proto.HasField("model_digest") else None,
        quarantined=tuple(
            m.QuarantinedPair(pair.prompt_worker, pair.token_worker, pair.failures, pair.until_unix_s)
            for pair in proto.quarantined
        ),
        open_requests=proto.open_requests if proto.HasField("open_requests") else None,
        queued_requests=proto.queued_requests if proto.HasField("queued_requests") else None,
    )


_ATTEMPT = ("choice_id", "epoch")
_ORDER = (*_ATTEMPT, "scheduler_id", "assignment", "lease_s")
_RESERVATION = (*_ORDER, "kv_tokens", "max_new_tokens", "source_id", "hop")
_CODECS: tuple[tuple[type, str, Callable[[Any], Proto], Callable[[Any], Any]], ...] = (
    (m.TokenBatch, "token_batch", codec_tokens.batch_to, codec_tokens.batch_from),
    (
        m.SubmitRequest,
        "submit_request",
        *_codec(
            m.SubmitRequest,
            cluster.SubmitRequest,
            *(*_ATTEMPT, "prompt_tokens", "max_new_tokens", "priority"),
            stream=_STREAM,
            prefix_spans=(_same, tuple),
            avoid=_SUSPECTS,
        ),
    ),
    (m.CloseRequest, "close_request", *_codec(m.CloseRequest, cluster.CloseRequest, *_ATTEMPT, "finished")),
    (
        m.ConfirmAttempts,
        "confirm_attempts",
        *_attempts_codec(m.ConfirmAttempts, cluster.ConfirmAttempts, "attempts", ("choice_ids", "epochs"), "holder_id"),
    ),
    (
        m.AttemptsConfirmed,
        "attempts_confirmed",
        *_attempts_codec(m.AttemptsConfirmed, cluster.AttemptsConfirmed, "ended", ("ended_choice_ids", "ended_epochs")),
    ),
    (m.RequestAccepted, "request_accepted", *_codec(m.RequestAccepted, cluster.RequestAccepted, *_ATTEMPT)),
    (
        m.RequestRejected,
        "request_rejected",
        *_codec(
            m.RequestRejected,
            cluster.RequestRejected,
            *(*_ATTEMPT, "message"),
            optional=("retry_after_s",),
            code=(_same, m.RejectCode),
        ),
    ),
    (
        m.RequestAssigned,
        "request_assigned",
        *_codec(m.RequestAssigned, cluster.RequestAssigned, *_ATTEMPT, "prompt_worker", "token_worker"),
    ),
    (
        m.ReserveKv,
        "reserve_kv",
        *_codec(m.ReserveKv, worker.ReserveKv, *_RESERVATION, stream=_STREAM),
    ),
    (m.MoveRequest, "move_request", *_codec(m.MoveRequest, worker.MoveRequest, *_ATTEMPT, "sender_id", "target_id")),
    (
        m.MoveEnded,
        "move_ended",
        *_codec(
            m.MoveEnded,
            worker.MoveEnded,
            *(*_ATTEMPT, "worker_id", "target_id", "reason"),
            outcome=(_same, m.MoveOutcome),
        ),
    ),
    (
        m.RequestMoved,
        "request_moved",
        *_codec(
            m.RequestMoved,
            worker.RequestMoved,
            *(*_ATTEMPT, "attempt_id", "worker_id", "source_id", "hop", "first_index"),
            token_ids=(_same, tuple),
        ),
    ),
    (
        m.MoveAcknowledged,
        "move_acknowledged",
        *_codec(m.MoveAcknowledged, worker.MoveAcknowledged, *_ATTEMPT, "worker_id"),
    ),
    (
        m.StartPrefill,
        "start_prefill",
        *_codec(
            m.StartPrefill,
            worker.StartPrefill,
            *(*_ORDER, "prompt_tokens", "max_new_tokens"),
            stream=_STREAM,
            target=_TARGET,
        ),
    ),
    (
        m.PrefillAccepted,
        "prefill_accepted",
        *_codec(m.PrefillAccepted, worker.PrefillAccepted, *_ATTEMPT, "assignment", "worker_id"),
    ),
    (m.CancelRequest, "cancel_request", *_codec(m.CancelRequest, worker.CancelRequest, *_ATTEMPT)),
    (m.KvReserved, "kv_reserved", *_codec(m.KvReserved, worker.KvReserved, *_ATTEMPT, "assignment", target=_TARGET)),
    (m.KvRefused, "kv_refused", *_codec(m.KvRefused, worker.KvRefused, *_ATTEMPT, "assignment", "worker_id", "reason")),
    (
        m.RenewLeases,
        "renew_leases",
        *_attempts_codec(m.RenewLeases, worker.RenewLeases, "leases", ("choice_ids", "epochs")),
    ),
    (
        m.ChangeHomePool,
        "change_home_pool",
        *_codec(m.ChangeHomePool, worker.ChangeHomePool, "worker_id", pool=(_same, m.Pool)),
    ),
    (m.ForgetGateway, "forget_gateway", *_codec(m.ForgetGateway, worker.ForgetGateway, "gateway_id", "incarnation")),
    (m.Member, "member", member_to, member_from),
    (m.Drain, "drain", codec_spot.drain_to, codec_spot.drain_from),
    (m.InterruptionReported, "interruption_reported", codec_spot.interruption_to, codec_spot.interruption_from),
    (m.DrainReply, "drain_reply", *_codec(m.DrainReply, spot_pb2.DrainReply, "accepted", "detail")),
)
_BY_TYPE = {core_type: (field, to_proto, from_proto) for core_type, field, to_proto, from_proto in _CODECS}
_BY_FIELD = {field: from_proto for _, field, _, from_proto in _CODECS}
