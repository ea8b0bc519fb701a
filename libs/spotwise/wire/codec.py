"""Core messages to bytes and back.

Law: this is the only place where a core type meets its protobuf twin; protobuf types never leave `wire`. One table row a
message; `decode(encode(m)) == m` for every message there is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from spotwise.core import messages as m
from spotwise.core.messages import Message
from spotwise.core.record import KvTarget
from spotwise.wire import codec_spot, codec_tokens
from spotwise.wire.v1 import cluster_pb2 as cluster
from spotwise.wire.v1 import envelope_pb2, spot_pb2
from spotwise.wire.v1 import worker_pb2 as worker


class MalformedMessageError(ValueError):
    """Bytes that are not a message of this version."""


def encode(message: Message) -> bytes:
    """Return the envelope bytes of a message.

    Raises:
        TypeError: not a message of the mesh.
    """
    try:
        field, to_proto, _ = _BY_TYPE[type(message)]
    except KeyError:
        raise TypeError(f"{type(message).__name__} is no mesh message") from None
    envelope = envelope_pb2.Envelope()
    getattr(envelope, field).MergeFrom(to_proto(message))
    return envelope.SerializeToString()


def decode(payload: bytes) -> Message:
    """Return the message that `encode` turned into `payload`.

    Raises:
        MalformedMessageError: the bytes are no envelope, or it holds what this version does not know.
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


def _stream_to(stream: m.StreamRef) -> cluster.StreamRef:
    return cluster.StreamRef(gateway_id=stream.gateway_id, attempt_id=stream.attempt_id, incarnation=stream.incarnation)


def _stream_from(stream: cluster.StreamRef) -> m.StreamRef:
    return m.StreamRef(stream.gateway_id, stream.attempt_id, stream.incarnation)


def _target_to(target: KvTarget) -> worker.KvTarget:
    return worker.KvTarget(
        worker_id=target.worker_id,
        incarnation=target.incarnation,
        address=target.address,
        block_ids=target.block_ids,
    )


def _target_from(target: worker.KvTarget) -> KvTarget:
    return KvTarget(target.worker_id, target.incarnation, target.address, tuple(target.block_ids))


def _load_to(load: m.WorkerLoad) -> cluster.WorkerLoad:
    counts = {name: getattr(load, name) for name in _LOAD_COUNTS}
    figures = {name: getattr(load, name) for name in _LOAD_OPTIONAL}
    proto = cluster.WorkerLoad(**counts, **figures)
    proto.assignments_seen.update(dict(load.assignments_seen))
    proto.gateways.extend(_GATEWAY_TO(streams) for streams in load.gateways)
    return proto


def _load_from(proto: cluster.WorkerLoad) -> m.WorkerLoad:
    counts = {name: getattr(proto, name) for name in _LOAD_COUNTS}
    figures: dict[str, Any] = {name: getattr(proto, name) if proto.HasField(name) else None for name in _LOAD_OPTIONAL}
    return m.WorkerLoad(
        **counts,
        **figures,
        assignments_seen=tuple(sorted(proto.assignments_seen.items())),
        gateways=tuple(_GATEWAY_FROM(streams) for streams in proto.gateways),
    )


_LOAD_COUNTS = (
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
)
_LOAD_OPTIONAL: tuple[Literal["reserved_new_tokens", "prompt_token_s", "kv_push_token_s"], ...] = (
    "reserved_new_tokens",
    "prompt_token_s",
    "kv_push_token_s",
)


def member_to(member: m.Member) -> cluster.Member:
    """Return a member's protobuf twin; for this package's gRPC codec too."""
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
        load=_load_to(member.load) if member.load else None,
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
        load=_load_from(proto.load) if proto.HasField("load") else None,
        model_digest=proto.model_digest if proto.HasField("model_digest") else None,
        quarantined=tuple(
            m.QuarantinedPair(pair.prompt_worker, pair.token_worker, pair.failures, pair.until_unix_s)
            for pair in proto.quarantined
        ),
        open_requests=proto.open_requests if proto.HasField("open_requests") else None,
        queued_requests=proto.queued_requests if proto.HasField("queued_requests") else None,
    )


def _plain(core_type: Callable[..., Any], proto_type: Callable[..., Any], *names: str) -> tuple[Any, Any]:
    """Codec of a message whose fields are the same on both sides."""

    def to_proto(message: Any) -> Any:
        return proto_type(**{name: getattr(message, name) for name in names})

    def from_proto(proto: Any) -> Any:
        return core_type(**{name: getattr(proto, name) for name in names})

    return to_proto, from_proto


def _nested(core_type: Callable[..., Any], proto_type: Callable[..., Any], nested: str, *names: str) -> tuple[Any, Any]:
    """Codec of a message with one nested field, `stream` or `target`, or both joined by a space."""
    to_nested = {"stream": _stream_to, "target": _target_to}
    from_nested = {"stream": _stream_from, "target": _target_from}
    nested_names = nested.split()

    def to_proto(message: Any) -> Any:
        inner = {name: to_nested[name](getattr(message, name)) for name in nested_names}  # type: ignore[operator]
        return proto_type(**{name: getattr(message, name) for name in names}, **inner)

    def from_proto(proto: Any) -> Any:
        inner = {name: from_nested[name](getattr(proto, name)) for name in nested_names}  # type: ignore[operator]
        return core_type(**{name: getattr(proto, name) for name in names}, **inner)

    return to_proto, from_proto


def _submit_to(message: m.SubmitRequest) -> cluster.SubmitRequest:
    return cluster.SubmitRequest(
        choice_id=message.choice_id,
        epoch=message.epoch,
        stream=_stream_to(message.stream),
        prompt_tokens=message.prompt_tokens,
        max_new_tokens=message.max_new_tokens,
        prefix_spans=message.prefix_spans,
        priority=message.priority,
        avoid=[cluster.Suspects(worker_ids=suspects) for suspects in message.avoid],
    )


def _submit_from(proto: cluster.SubmitRequest) -> m.SubmitRequest:
    return m.SubmitRequest(
        choice_id=proto.choice_id,
        epoch=proto.epoch,
        stream=_stream_from(proto.stream),
        prompt_tokens=proto.prompt_tokens,
        max_new_tokens=proto.max_new_tokens,
        prefix_spans=tuple(proto.prefix_spans),
        priority=proto.priority,
        avoid=tuple(tuple(suspects.worker_ids) for suspects in proto.avoid),
    )


def _rejected_to(message: m.RequestRejected) -> cluster.RequestRejected:
    return cluster.RequestRejected(
        choice_id=message.choice_id,
        epoch=message.epoch,
        code=message.code,
        message=message.message,
        retry_after_s=message.retry_after_s,
    )


def _rejected_from(proto: cluster.RequestRejected) -> m.RequestRejected:
    retry_after_s = proto.retry_after_s if proto.HasField("retry_after_s") else None
    return m.RequestRejected(proto.choice_id, proto.epoch, m.RejectCode(proto.code), proto.message, retry_after_s)


def _leases_to(message: m.RenewLeases) -> worker.RenewLeases:
    return worker.RenewLeases(
        choice_ids=[choice_id for choice_id, _ in message.leases], epochs=[epoch for _, epoch in message.leases]
    )


def _leases_from(proto: worker.RenewLeases) -> m.RenewLeases:
    return m.RenewLeases(tuple(zip(proto.choice_ids, proto.epochs, strict=True)))


def _confirm_to(message: m.ConfirmAttempts) -> cluster.ConfirmAttempts:
    choice_ids, epochs = _columns(message.attempts)
    return cluster.ConfirmAttempts(holder_id=message.holder_id, choice_ids=choice_ids, epochs=epochs)


def _confirm_from(proto: cluster.ConfirmAttempts) -> m.ConfirmAttempts:
    return m.ConfirmAttempts(proto.holder_id, tuple(zip(proto.choice_ids, proto.epochs, strict=True)))


def _confirmed_to(message: m.AttemptsConfirmed) -> cluster.AttemptsConfirmed:
    choice_ids, epochs = _columns(message.ended)
    return cluster.AttemptsConfirmed(ended_choice_ids=choice_ids, ended_epochs=epochs)


def _confirmed_from(proto: cluster.AttemptsConfirmed) -> m.AttemptsConfirmed:
    return m.AttemptsConfirmed(tuple(zip(proto.ended_choice_ids, proto.ended_epochs, strict=True)))


def _columns(attempts: tuple[m.Attempt, ...]) -> tuple[list[str], list[int]]:
    return [choice_id for choice_id, _ in attempts], [epoch for _, epoch in attempts]


def _home_to(message: m.ChangeHomePool) -> worker.ChangeHomePool:
    return worker.ChangeHomePool(worker_id=message.worker_id, pool=message.pool)


def _home_from(proto: worker.ChangeHomePool) -> m.ChangeHomePool:
    return m.ChangeHomePool(proto.worker_id, m.Pool(proto.pool))


_GATEWAY_TO, _GATEWAY_FROM = _plain(
    m.GatewayStreams, cluster.GatewayStreams, "gateway_id", "incarnation", "batches_sent"
)
_ATTEMPT = ("choice_id", "epoch")
_ORDER = (*_ATTEMPT, "scheduler_id", "assignment", "lease_s")
_Row = tuple[type, str, Callable[[Any], Proto], Callable[[Any], Any]]
_ROWS: tuple[_Row, ...] = (
    (m.TokenBatch, "token_batch", codec_tokens.batch_to, codec_tokens.batch_from),
    (m.SubmitRequest, "submit_request", _submit_to, _submit_from),
    (m.CloseRequest, "close_request", *_plain(m.CloseRequest, cluster.CloseRequest, *_ATTEMPT, "finished")),
    (m.ConfirmAttempts, "confirm_attempts", _confirm_to, _confirm_from),
    (m.AttemptsConfirmed, "attempts_confirmed", _confirmed_to, _confirmed_from),
    (m.RequestAccepted, "request_accepted", *_plain(m.RequestAccepted, cluster.RequestAccepted, *_ATTEMPT)),
    (m.RequestRejected, "request_rejected", _rejected_to, _rejected_from),
    (
        m.RequestAssigned,
        "request_assigned",
        *_plain(m.RequestAssigned, cluster.RequestAssigned, *_ATTEMPT, "prompt_worker", "token_worker"),
    ),
    (
        m.ReserveKv,
        "reserve_kv",
        *_nested(m.ReserveKv, worker.ReserveKv, "stream", *_ORDER, "kv_tokens", "max_new_tokens"),
    ),
    (
        m.StartPrefill,
        "start_prefill",
        *_nested(m.StartPrefill, worker.StartPrefill, "stream target", *_ORDER, "prompt_tokens", "max_new_tokens"),
    ),
    (
        m.PrefillAccepted,
        "prefill_accepted",
        *_plain(m.PrefillAccepted, worker.PrefillAccepted, *_ATTEMPT, "assignment", "worker_id"),
    ),
    (m.CancelRequest, "cancel_request", *_plain(m.CancelRequest, worker.CancelRequest, *_ATTEMPT)),
    (m.KvReserved, "kv_reserved", *_nested(m.KvReserved, worker.KvReserved, "target", *_ATTEMPT, "assignment")),
    (m.KvRefused, "kv_refused", *_plain(m.KvRefused, worker.KvRefused, *_ATTEMPT, "assignment", "worker_id", "reason")),
    (m.RenewLeases, "renew_leases", _leases_to, _leases_from),
    (m.ChangeHomePool, "change_home_pool", _home_to, _home_from),
    (m.ForgetGateway, "forget_gateway", *_plain(m.ForgetGateway, worker.ForgetGateway, "gateway_id", "incarnation")),
    (m.Member, "member", member_to, member_from),
    (m.Drain, "drain", codec_spot.drain_to, codec_spot.drain_from),
    (m.InterruptionReported, "interruption_reported", codec_spot.interruption_to, codec_spot.interruption_from),
    (m.DrainReply, "drain_reply", *_plain(m.DrainReply, spot_pb2.DrainReply, "accepted", "detail")),
)
_BY_TYPE = {core_type: (field, to_proto, from_proto) for core_type, field, to_proto, from_proto in _ROWS}
_BY_FIELD = {field: from_proto for _, field, _, from_proto in _ROWS}
