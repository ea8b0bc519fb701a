"""Codecs of what a KV hand-off is about: its target, the processes that keep a worker's KV, and what comes with it."""

from __future__ import annotations

from typing import Any

from spotwise.core.requests.kv_part import KvPart
from spotwise.core.requests.record import KvHandoff, KvShare, KvTarget, QueueLevel
from spotwise.wire.field_codec import Codec, codec_of, same
from spotwise.wire.v1 import group_pb2 as group
from spotwise.wire.v1 import worker_pb2 as worker


def _level_to(level: QueueLevel | None) -> Any:
    return None if level is None else group.QueueLevel(queue=level.queue, used=level.used)


def _level_from(proto: Any) -> QueueLevel | None:
    return QueueLevel(proto.queue, proto.used) if proto.queue else None


_PART = codec_of(KvPart, worker.KvPart, "first_layer", "num_layers", "first_head", "num_heads")
SHARE = codec_of(KvShare, worker.KvShare, "member_id", "incarnation", "address", part=_PART)
_SHARES: Codec = (
    lambda shares: [*map(SHARE[0], shares)],
    lambda protos: tuple(map(SHARE[1], protos)),
)
TARGET = codec_of(
    KvTarget, worker.KvTarget, "worker_id", "incarnation", "address", block_ids=(same, tuple), shares=_SHARES
)
HANDOFF = codec_of(
    KvHandoff,
    group.KvHandoff,
    *("choice_id", "epoch", "num_tokens", "first_token_id"),
    level=(_level_to, _level_from),
    later_token_ids=(same, tuple),
)
