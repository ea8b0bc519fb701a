"""Encodes and decodes a group's orders and reports, for the streams between a leader and its devices."""

from __future__ import annotations

from spotwise.core.messages.groups import GroupOrder, GroupReport
from spotwise.wire.message_codec import UnionCodec
from spotwise.wire.v1 import group_pb2

_ORDERS = UnionCodec(GroupOrder, group_pb2.GroupOrder, "order", "an order that this version does not know")
_REPORTS = UnionCodec(GroupReport, group_pb2.GroupReport, "report", "a report that this version does not know")


def encode_order(order: GroupOrder) -> bytes:
    """Return an order's bytes."""
    return _ORDERS.encode(order)


def decode_order(payload: bytes) -> GroupOrder:
    """Return the order; raises `MalformedMessageError` where the bytes are none that this version knows."""
    order: GroupOrder = _ORDERS.decode(payload)
    return order


def encode_report(report: GroupReport) -> bytes:
    """Return a report's bytes."""
    return _REPORTS.encode(report)


def decode_report(payload: bytes) -> GroupReport:
    """Return the report; raises `MalformedMessageError` where the bytes are none that this version knows."""
    report: GroupReport = _REPORTS.decode(payload)
    return report
