"""Encodes and decodes interruption notices and reports; a deadline is Unix time, and unset where it is unknown."""

from __future__ import annotations

from spotwise.core.messages import mesh as m
from spotwise.wire.v1 import spot_pb2


def drain_to(message: m.Drain) -> spot_pb2.Drain:
    """Return a notice's protobuf message."""
    return spot_pb2.Drain(
        worker_id=message.worker_id,
        deadline_unix_s=message.deadline_s,
        reason=message.reason,
        devices_stay=message.devices_stay,
        term=message.term,
    )


def drain_from(proto: spot_pb2.Drain) -> m.Drain:
    """Return the notice that `drain_to` turned into `proto`."""
    return m.Drain(proto.worker_id, proto.deadline_unix_s, proto.reason, proto.devices_stay, proto.term)


def interruption_to(message: m.InterruptionReported) -> spot_pb2.InterruptionReported:
    """Return a report's protobuf message."""
    return spot_pb2.InterruptionReported(
        watcher_id=message.watcher_id,
        event_id=message.event_id,
        kind=message.kind,
        worker_ids=message.worker_ids,
        deadline_unix_s=message.deadline_s,
        reason=message.reason,
    )


def interruption_from(proto: spot_pb2.InterruptionReported) -> m.InterruptionReported:
    """Return the report that `interruption_to` turned into `proto`; raises `ValueError` for a kind unknown to this version."""
    return m.InterruptionReported(
        watcher_id=proto.watcher_id,
        event_id=proto.event_id,
        kind=m.InterruptionKind(proto.kind),
        worker_ids=tuple(proto.worker_ids),
        deadline_s=proto.deadline_unix_s if proto.HasField("deadline_unix_s") else None,
        reason=proto.reason,
    )
