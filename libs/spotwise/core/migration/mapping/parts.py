"""The parts of a model and of requests' KV, and which of them stages have.

Stage 0 has the embedding, the last stage with layers the head; a part is divided among a stage's shards
(`core.parallel.shares`). KV is cut token by token, each token's KV in a layer at the same place.
"""

from __future__ import annotations

from enum import StrEnum
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


def has_head(stage: int, stages: int, model: ModelShape) -> bool:
    """Return whether a stage has the head: the last one with layers has."""
    return stage == model.last_stage(stages)


def common_layers(
    stage: int, config: ParallelConfig, other_stage: int, other_config: ParallelConfig, model: ModelShape
) -> range:
    """Return the layers that a stage of one configuration and a stage of another both have."""
    one = model.stage_layers(stage, config.pipeline)
    other = model.stage_layers(other_stage, other_config.pipeline)
    start = max(one.start, other.start)
    return range(start, max(start, min(one.stop, other.stop)))
