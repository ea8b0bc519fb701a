"""Members to protobuf and back, for engine control; imports none of the messages, which take long to make."""

from __future__ import annotations

from spotwise.core.messages.members import Member
from spotwise.wire.message_codec import MessageCodec
from spotwise.wire.v1 import cluster_pb2

_MEMBER = MessageCodec(Member, cluster_pb2.Member)


def member_to(member: Member) -> cluster_pb2.Member:
    """Return a member's protobuf message."""
    proto: cluster_pb2.Member = _MEMBER.to_proto(member)
    return proto


def member_from(proto: cluster_pb2.Member) -> Member:
    """Return the member that `member_to` turned into `proto`; raises `ValueError` for a kind, state or pool unknown here."""
    return _MEMBER.from_proto(proto)
