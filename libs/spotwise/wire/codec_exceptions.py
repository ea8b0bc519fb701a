"""The differences of core types and protobuf messages: each field whose name or shape is not the same on both sides.

What is not in these tables follows from the types (`field_codec.py`). Types have their names here, and what is written by hand
imports its types when it is first needed: a process that only shows members needs none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from spotwise.wire.field_codec import Codecs, Exceptions, SplitField, columns, elsewhere


def _config() -> SplitField:
    """Return how an order holds a configuration, without the batch size, which the order ignores."""
    from spotwise.core.parallel.config import ParallelConfig

    return SplitField(
        ("data", "stages", "shards", "prompt_data"),
        lambda config: {
            "data": config.data,
            "stages": config.pipeline,
            "shards": config.tensor,
            "prompt_data": config.prompt_data,
        },
        lambda proto: ParallelConfig(proto.data, proto.stages, proto.shards, prompt_data=proto.prompt_data),
    )


def _deltas() -> SplitField:
    """Return how a batch holds tokens in a few bytes each: three packed columns, and an extra for what is more than a token."""
    from spotwise.core.messages.mesh import TokenDelta
    from spotwise.wire.v1.request_pb2 import TokenExtra

    extras = CODECS.of(TokenDelta, TokenExtra.DESCRIPTOR)
    no_extra = TokenDelta(0, 0, 0)[3:]  # the columns come first

    def to_fields(deltas: tuple[TokenDelta, ...]) -> dict[str, Any]:
        return {
            "attempt_ids": [delta.attempt_id for delta in deltas],
            "token_indexes": [delta.token_index for delta in deltas],
            "token_ids": [delta.token_id or 0 for delta in deltas],
            "extras": [
                {**extras.to_fields(delta), "position": position, "without_token": delta.token_id is None}
                for position, delta in enumerate(deltas)
                if delta.token_id is None or delta[3:] != no_extra
            ],
        }

    def from_proto(proto: Any) -> tuple[TokenDelta, ...]:
        tokens = zip(proto.attempt_ids, proto.token_indexes, proto.token_ids, strict=True)
        deltas = [TokenDelta(attempt_id, index, token_id) for attempt_id, index, token_id in tokens]
        for extra in proto.extras:
            position, rest = extra.position, extras.from_proto(extra)[3:]
            token = (*deltas[position][:2], None) if extra.without_token else deltas[position][:3]
            deltas[position] = TokenDelta._make(token + rest)
        return tuple(deltas)

    return SplitField(("attempt_ids", "token_indexes", "token_ids", "extras"), to_fields, from_proto)


def _rows() -> SplitField:
    """Return how a step holds its rows: a column for each field, and the blocks of all rows behind one another."""
    from spotwise.core.messages.groups import StepRow

    names = ("sequence_ids", "first_positions", "num_tokens", "kept_blocks", "new_block_counts", "new_block_ids")

    def to_fields(rows: tuple[StepRow, ...]) -> dict[str, Any]:
        return {
            "sequence_ids": [row.sequence_id for row in rows],
            "first_positions": [row.first_position for row in rows],
            "num_tokens": [row.num_tokens for row in rows],
            "kept_blocks": [row.kept_blocks for row in rows],
            "new_block_counts": [len(row.new_block_ids) for row in rows],
            "new_block_ids": [block for row in rows for block in row.new_block_ids],
        }

    def from_proto(proto: Any) -> tuple[StepRow, ...]:
        counts, blocks = proto.new_block_counts, tuple(proto.new_block_ids)
        rows = zip(
            *(proto.sequence_ids, proto.first_positions, proto.num_tokens, proto.kept_blocks),
            *(counts, accumulate(counts)),
            strict=True,
        )
        if sum(counts) != len(blocks):
            raise ValueError(f"{len(blocks)} blocks for rows with {sum(counts)}")
        return tuple(
            [
                StepRow(name, first, tokens, kept, blocks[end - count : end])
                for name, first, tokens, kept, count, end in rows
            ]
        )

    return SplitField(names, to_fields, from_proto)


def _push_mode() -> SplitField:
    """Return how a report goes without its mode, which is read as the default."""
    from spotwise.core.messages.hand_offs import PushMode

    return elsewhere(PushMode.SERIAL)


def _panels_to(panels: Mapping[str, tuple[range, ...]]) -> dict[str, Any]:
    return {
        "panels": [
            {"name": name, "spans": [{"first": span.start, "count": len(span)} for span in spans if span]}
            for name, spans in panels.items()
        ]
    }


def _panels_from(proto: Any) -> Mapping[str, tuple[range, ...]]:
    return {
        matrix.name: tuple(range(span.first, span.first + span.count) for span in matrix.spans)
        for matrix in proto.panels
    }


#: A column of the batch, which gives an extra its position.
_COLUMN = elsewhere(None, "position", "without_token")
_EXCEPTIONS: Exceptions = {
    "AttemptsConfirmed": {"ended": columns("ended_choice_ids", "ended_epochs")},
    "ConfirmAttempts": {"attempts": columns("choice_ids", "epochs")},
    "Drain": {"deadline_s": "deadline_unix_s"},
    "HandoffDelivered": {"mode": _push_mode},
    "InterruptionReported": {"deadline_s": "deadline_unix_s"},
    "Member": {"leaves_at_s": "leaves_at_unix_s"},
    "QuarantinedPair": {"until_s": "until_unix_s"},
    "RenewLeases": {"leases": columns("choice_ids", "epochs")},
    "ReshapeMesh": {"config": _config},
    "RunStep": {"rows": _rows},
    "SamplingParams": {"logit_bias": columns("logit_bias_token_ids", "logit_bias_values")},
    "TokenBatch": {"deltas": _deltas},
    "TokenDelta": {"attempt_id": _COLUMN, "token_index": _COLUMN, "token_id": _COLUMN},
    "WeightInventory": {"panels": SplitField(("panels",), _panels_to, _panels_from)},
}
#: Orders whose field of the union is not of a message with their name; the first three have one field, which it holds itself.
UNION_FIELDS = {
    "AddGroupSequence": "add",
    "DropGroupSequence": "drop_sequence_id",
    "ForgetKv": "forget_kv_of_choice_id",
    "AbortPush": "abort_push",
}
CODECS = Codecs(_EXCEPTIONS)
