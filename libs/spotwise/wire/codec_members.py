"""Members and their loads, to protobuf and back."""

from __future__ import annotations

from spotwise.core.messages import members as m
from spotwise.wire.field_codec import codec_of, same
from spotwise.wire.v1 import cluster_pb2 as cluster

_GATEWAY = codec_of(m.GatewayStreams, cluster.GatewayStreams, "gateway_id", "incarnation", "batches_sent")
_LOAD = codec_of(
    m.WorkerLoad,
    cluster.WorkerLoad,
    "pending_prompt_tokens",
    "computing_prompt_tokens",
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
    "refused_connections",
    "scheduler_term",
    optional=(
        *("reserved_new_tokens", "prompt_token_s", "kv_push_token_s"),
        *("prompt_tokens_timed", "kv_push_tokens_timed"),
    ),
    assignments_seen=(dict, lambda seen: tuple(sorted(seen.items()))),
    gateways=(lambda streams: [*map(_GATEWAY[0], streams)], lambda protos: tuple(map(_GATEWAY[1], protos))),
)

#: A device's place in a group.
PLACE = codec_of(
    m.DevicePlace,
    cluster.DevicePlace,
    *("epoch", "stages", "shards", "stage", "shard", "exchange"),
    layers=(same, tuple),
    kv_heads=(same, tuple),
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
        leaves_at_unix_s=member.leaves_at_s,
        leader_id=member.leader_id,
        place=None if member.place is None else PLACE[0](member.place),
        term=member.term,
        trouble=member.trouble,
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
        leaves_at_s=proto.leaves_at_unix_s if proto.HasField("leaves_at_unix_s") else None,
        leader_id=proto.leader_id,
        place=PLACE[1](proto.place) if proto.HasField("place") else None,
        term=proto.term if proto.HasField("term") else None,
        trouble=proto.trouble,
    )
