"""Encodes and decodes core messages; protobuf types never leave `wire`. One row of a table per message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from spotwise.core.messages import mesh as m
from spotwise.core.messages.mesh import Message
from spotwise.wire import codec_fleet, codec_kv, codec_members, codec_reshape, codec_spot, codec_tokens
from spotwise.wire.field_codec import Codec, attempts_codec, codec_of, each_of, same
from spotwise.wire.finite import check_finite
from spotwise.wire.v1 import cluster_pb2 as cluster
from spotwise.wire.v1 import envelope_pb2, spot_pb2
from spotwise.wire.v1 import worker_pb2 as worker


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
    or hold a message that this version does not know, or a number that is not finite.
    """
    try:
        envelope = envelope_pb2.Envelope.FromString(payload)
        field = envelope.WhichOneof("message")
        if field is None:
            raise MalformedMessageError("empty envelope, or a message this version does not know")
        check_finite(envelope)
        message: Message = _BY_FIELD[field](getattr(envelope, field))
        return message
    except (DecodeError, ValueError, IndexError) as error:
        raise MalformedMessageError(str(error)) from error


_STREAM = codec_of(m.StreamRef, cluster.StreamRef, "gateway_id", "attempt_id", "incarnation")
_SUSPECTS: Codec = (
    lambda avoid: [cluster.Suspects(worker_ids=suspects) for suspects in avoid],
    lambda protos: tuple(tuple(proto.worker_ids) for proto in protos),
)
_SEQUENCE = codec_of(
    m.SurveyedSequence,
    worker.SurveyedSequence,
    *("choice_id", "epoch", "tokens", "known_tokens", "remaining", "target_id"),
)
_SURVEYED: Codec = each_of(_SEQUENCE)
_ATTEMPT = ("choice_id", "epoch")
_ORDER = (*_ATTEMPT, "scheduler_id", "assignment", "lease_s", "term")
_RESERVATION = (*_ORDER, "kv_tokens", "max_new_tokens", "source_id", "hop")
_CODECS: tuple[tuple[type, str, Callable[[Any], Proto], Callable[[Any], Any]], ...] = (
    (m.TokenBatch, "token_batch", codec_tokens.batch_to, codec_tokens.batch_from),
    (
        m.SubmitRequest,
        "submit_request",
        *codec_of(
            m.SubmitRequest,
            cluster.SubmitRequest,
            *(*_ATTEMPT, "prompt_tokens", "max_new_tokens", "priority", "recovering", "open_bound", "tenant"),
            optional=("deadline_unix_s",),
            stream=_STREAM,
            prefix_spans=(same, tuple),
            avoid=_SUSPECTS,
        ),
    ),
    (
        m.CloseRequest,
        "close_request",
        *codec_of(m.CloseRequest, cluster.CloseRequest, *_ATTEMPT, "finished", workers=(same, tuple)),
    ),
    (
        m.ConfirmAttempts,
        "confirm_attempts",
        *attempts_codec(
            m.ConfirmAttempts,
            cluster.ConfirmAttempts,
            "attempts",
            ("choice_ids", "epochs"),
            *("holder_id", "assigned"),
        ),
    ),
    (
        m.AttemptsConfirmed,
        "attempts_confirmed",
        *attempts_codec(m.AttemptsConfirmed, cluster.AttemptsConfirmed, "ended", ("ended_choice_ids", "ended_epochs")),
    ),
    (m.RequestAccepted, "request_accepted", *codec_of(m.RequestAccepted, cluster.RequestAccepted, *_ATTEMPT)),
    (
        m.RequestRejected,
        "request_rejected",
        *codec_of(
            m.RequestRejected,
            cluster.RequestRejected,
            *(*_ATTEMPT, "message"),
            optional=("retry_after_s",),
            code=(same, m.RejectCode),
        ),
    ),
    (
        m.RequestAssigned,
        "request_assigned",
        *codec_of(m.RequestAssigned, cluster.RequestAssigned, *_ATTEMPT, "prompt_worker", "token_worker"),
    ),
    (
        m.ReserveKv,
        "reserve_kv",
        *codec_of(m.ReserveKv, worker.ReserveKv, *_RESERVATION, "priority", "tenant", stream=_STREAM),
    ),
    (
        m.MoveRequest,
        "move_request",
        *codec_of(m.MoveRequest, worker.MoveRequest, *_ATTEMPT, "sender_id", "target_id", "term"),
    ),
    (
        m.GiveBackRequest,
        "give_back_request",
        *codec_of(m.GiveBackRequest, worker.GiveBackRequest, *_ATTEMPT, "reason", "term"),
    ),
    (m.SurveyWorker, "survey_worker", *codec_of(m.SurveyWorker, worker.SurveyWorker, "sender_id", "number")),
    (
        m.WorkerSurveyed,
        "worker_surveyed",
        *codec_of(
            m.WorkerSurveyed,
            worker.WorkerSurveyed,
            *("worker_id", "number"),
            optional=("step_s",),
            sequences=_SURVEYED,
        ),
    ),
    (
        m.MoveEnded,
        "move_ended",
        *codec_of(
            m.MoveEnded,
            worker.MoveEnded,
            *(*_ATTEMPT, "worker_id", "target_id", "reason", "tokens", "copy_s", "pause_s"),
            outcome=(same, m.MoveOutcome),
        ),
    ),
    (
        m.RequestMoved,
        "request_moved",
        *codec_of(
            m.RequestMoved,
            worker.RequestMoved,
            *(*_ATTEMPT, "attempt_id", "worker_id", "source_id", "hop", "first_index"),
            token_ids=(same, tuple),
        ),
    ),
    (
        m.MoveAcknowledged,
        "move_acknowledged",
        *codec_of(m.MoveAcknowledged, worker.MoveAcknowledged, *_ATTEMPT, "worker_id", "hop"),
    ),
    (
        m.StartPrefill,
        "start_prefill",
        *codec_of(
            m.StartPrefill,
            worker.StartPrefill,
            *(*_ORDER, "prompt_tokens", "max_new_tokens"),
            stream=_STREAM,
            target=codec_kv.TARGET,
        ),
    ),
    (
        m.PrefillAccepted,
        "prefill_accepted",
        *codec_of(m.PrefillAccepted, worker.PrefillAccepted, *_ATTEMPT, "assignment", "worker_id"),
    ),
    (m.CancelRequest, "cancel_request", *codec_of(m.CancelRequest, worker.CancelRequest, *_ATTEMPT, "term")),
    (
        m.KvReserved,
        "kv_reserved",
        *codec_of(m.KvReserved, worker.KvReserved, *_ATTEMPT, "assignment", target=codec_kv.TARGET),
    ),
    (
        m.KvRefused,
        "kv_refused",
        *codec_of(m.KvRefused, worker.KvRefused, *_ATTEMPT, "assignment", "worker_id", "reason"),
    ),
    (
        m.RenewLeases,
        "renew_leases",
        *attempts_codec(m.RenewLeases, worker.RenewLeases, "leases", ("choice_ids", "epochs")),
    ),
    (
        m.ChangeHomePool,
        "change_home_pool",
        *codec_of(m.ChangeHomePool, worker.ChangeHomePool, "worker_id", "term", pool=(same, m.Pool)),
    ),
    (
        m.ForgetGateway,
        "forget_gateway",
        *codec_of(m.ForgetGateway, worker.ForgetGateway, "gateway_id", "incarnation", "term"),
    ),
    (m.Member, "member", codec_members.member_to, codec_members.member_from),
    (m.Drain, "drain", codec_spot.drain_to, codec_spot.drain_from),
    (m.InterruptionReported, "interruption_reported", codec_spot.interruption_to, codec_spot.interruption_from),
    (m.DrainReply, "drain_reply", *codec_of(m.DrainReply, spot_pb2.DrainReply, "accepted", "detail")),
    (m.ReshapeMesh, "reshape_mesh", codec_reshape.mesh_to, codec_reshape.mesh_from),
    (m.ReshapeReply, "reshape_reply", codec_reshape.reply_to, codec_reshape.reply_from),
    (m.SurveyDevice, "survey_device", *codec_reshape.SURVEY),
    (m.DeviceSurveyed, "device_surveyed", *codec_reshape.SURVEYED),
    (m.LeadGroup, "lead_group", *codec_reshape.LEAD),
    (m.GroupFormed, "group_formed", *codec_reshape.FORMED),
    (m.LoadReported, "load_reported", *codec_fleet.LOAD),
    (m.FleetReported, "fleet_reported", *codec_fleet.REPORT),
    (m.FleetOrder, "fleet_order", *codec_fleet.ORDER),
    (m.ShowFleet, "show_fleet", *codec_fleet.SHOW),
    (m.FleetView, "fleet_view", codec_fleet.view_to, codec_fleet.view_from),
)
_BY_TYPE = {core_type: (field, to_proto, from_proto) for core_type, field, to_proto, from_proto in _CODECS}
_BY_FIELD = {field: from_proto for _, field, _, from_proto in _CODECS}
