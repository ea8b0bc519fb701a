"""What a position holds, part by part: the listing that closed forms and tables are checked against."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from spotwise.core.migration.deployment import RunningRequest
from spotwise.core.migration.mapping.shares import (
    Part,
    PartKind,
    Share,
    common_layers,
    has_head,
    kv_share_bytes,
    overlap,
    share_bytes,
    share_of,
)
from spotwise.core.parallel.config import ParallelConfig, Position
from spotwise.core.parallel.model_shape import ModelShape


class HeldShare(NamedTuple):
    """A share of a part that a position holds, and its bytes."""

    part: Part
    start: Fraction
    end: Fraction
    bytes: int

    @property
    def share(self) -> Share:
        return Share(self.start, self.end)


def weights_of(position: Position, config: ParallelConfig, model: ModelShape) -> list[HeldShare]:
    """Return the weights that a position of a configuration holds, in the order of the model; parts of 0 bytes too."""
    share = share_of(position.shard, config.tensor)
    parts = [(Part(PartKind.EMBEDDING), model.embedding_bytes)] if position.stage == 0 else []
    layers = model.stage_layers(position.stage, config.pipeline)
    parts += [(Part(PartKind.LAYER, layer), model.layer_bytes) for layer in layers]
    if has_head(position.stage, config.pipeline, model):
        parts.append((Part(PartKind.HEAD), model.head_bytes))
    return [HeldShare(part, share.start, share.end, share_bytes(whole_bytes, share)) for part, whole_bytes in parts]


def kv_of(position: Position, config: ParallelConfig, model: ModelShape, request: RunningRequest) -> list[HeldShare]:
    """Return the KV of a request that a position holds where its pipeline has the request, by layer."""
    share = share_of(position.shard, config.tensor)
    num_bytes = kv_share_bytes(request.tokens, model, share)
    layers = model.stage_layers(position.stage, config.pipeline)
    return [HeldShare(Part(PartKind.KV, layer, request.id), share.start, share.end, num_bytes) for layer in layers]


def weight_overlap_bytes(
    position: Position, config: ParallelConfig, other: Position, other_config: ParallelConfig, model: ModelShape
) -> int:
    """Return the bytes of weights that two positions both hold."""
    share = overlap(share_of(position.shard, config.tensor), share_of(other.shard, other_config.tensor))
    layers = common_layers(position.stage, config, other.stage, other_config, model)
    num_bytes = len(layers) * share_bytes(model.layer_bytes, share)
    if position.stage == other.stage == 0:
        num_bytes += share_bytes(model.embedding_bytes, share)
    if has_head(position.stage, config.pipeline, model) and has_head(other.stage, other_config.pipeline, model):
        num_bytes += share_bytes(model.head_bytes, share)
    return num_bytes


def kv_overlap_bytes(
    position: Position,
    config: ParallelConfig,
    other: Position,
    other_config: ParallelConfig,
    model: ModelShape,
    tokens: int,
) -> int:
    """Return the bytes of so many tokens' KV that two positions both hold where both pipelines have the requests."""
    share = overlap(share_of(position.shard, config.tensor), share_of(other.shard, other_config.tensor))
    layers = common_layers(position.stage, config, other.stage, other_config, model)
    return len(layers) * kv_share_bytes(tokens, model, share)
