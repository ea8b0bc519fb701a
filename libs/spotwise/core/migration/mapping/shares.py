"""The parts of a model and of requests' KV, and the share of each that a position holds, to the byte.

Law: a part (a layer, the embedding, the head, a request's KV in a layer) is cut by shares: shard m of M holds [m/M, (m+1)/M) of
it (SpotServe, section 4.2). Stage 0 has the embedding, the last stage with layers the head.
Two positions have in common the overlap of their shares, whatever their tensor degrees.
Shares are fractions; a share that cuts a byte is rounded down at both ends, so that shards add up to the whole.
KV is cut token by token, each token's KV in a layer at the same place.
"""

from __future__ import annotations

from enum import StrEnum
from fractions import Fraction
from typing import NamedTuple

from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.model_shape import ModelShape


class PartKind(StrEnum):
    """What a part is of."""

    EMBEDDING = "embedding"  #: weights before the first layer
    LAYER = "layer"  #: weights of a layer
    HEAD = "head"  #: weights after the last layer
    KV = "kv"  #: a request's keys and values in a layer


class Part(NamedTuple):
    """A part of the model (embedding and head without a layer), or of the KV of the request with that id."""

    kind: PartKind
    layer: int | None = None
    request: str | None = None


class Share(NamedTuple):
    """A part from `start`, included, to `end`, excluded, as fractions."""

    start: Fraction
    end: Fraction


def share_of(shard: int, tensor: int) -> Share:
    """Return the share of shard number `shard` of `tensor`."""
    return Share(Fraction(shard, tensor), Fraction(shard + 1, tensor))


def overlap(one: Share, other: Share) -> Share | None:
    """Return the common share of two shares, if any."""
    start, end = max(one.start, other.start), min(one.end, other.end)
    return Share(start, end) if start < end else None


def share_bytes(whole_bytes: int, share: Share | None) -> int:
    """Return the bytes of a share of `whole_bytes`: 0 of no share. Adjacent shares add up."""
    if share is None:
        return 0
    start, end = share
    return whole_bytes * end.numerator // end.denominator - whole_bytes * start.numerator // start.denominator


def kv_share_bytes(tokens: int, model: ModelShape, share: Share | None) -> int:
    """Return the bytes of a share of so many tokens' KV in one layer."""
    return tokens * share_bytes(model.kv_layer_token_bytes, share)


def has_head(stage: int, stages: int, model: ModelShape) -> bool:
    """Return whether a stage has the head: the last one with layers has."""
    layers = model.stage_layers(stage, stages)
    return bool(layers) and layers.stop == model.layers


def common_layers(
    stage: int, config: ParallelConfig, other_stage: int, other_config: ParallelConfig, model: ModelShape
) -> range:
    """Return the layers that a stage of one configuration and a stage of another both have."""
    one = model.stage_layers(stage, config.pipeline)
    other = model.stage_layers(other_stage, other_config.pipeline)
    start = max(one.start, other.start)
    return range(start, max(start, min(one.stop, other.stop)))
