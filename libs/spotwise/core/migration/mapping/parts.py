"""The parts of a model and of requests' KV at a position, and the bytes of it that each device has already.

Stage 0 has the embedding, the last stage with layers the head; a part is divided among a stage's shards
(`core.parallel.shares`). KV is cut token by token, each token's KV in a layer at the same place.

Law: a device can reuse for a position what both hold (`parts.py`): weights, and KV of requests that move from the device's old
pipeline to the position's (SpotServe, section 4.2).
Overlaps of layers and of shares are independent, so the bytes of all pairs are products of small tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spotwise.core.parallel.config import ParallelConfig, Position
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.parallel.shares import PartBytes, overlap


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


Table = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Reusable:
    """Bytes of a new pipeline's place that a device at a place of an old one has.
    `weight_bytes` is old x new places of a pipeline, a place being stage x M + shard; `kv_token_bytes` the same of a token's KV
    of a continued request; `tokens` those with KV that a new pipeline takes over from an old one, by (old, new).
    """

    before: ParallelConfig
    config: ParallelConfig
    weight_bytes: Table
    kv_token_bytes: Table
    tokens: Mapping[tuple[int, int], int]

    @classmethod
    def between(
        cls, before: ParallelConfig, config: ParallelConfig, model: ModelShape, tokens: Mapping[tuple[int, int], int]
    ) -> Reusable:
        """Return the tables for a change from one configuration to another."""

        def shards(part: PartBytes) -> Table:
            held = [part.share(shard, before.tensor) for shard in range(before.tensor)]
            needed = [part.share(shard, config.tensor) for shard in range(config.tensor)]
            return np.array([[part.of(overlap(one, other)) for other in needed] for one in held], dtype=np.int64)

        old = [model.stage_layers(stage, before.pipeline) for stage in range(before.pipeline)]
        new = [model.stage_layers(stage, config.pipeline) for stage in range(config.pipeline)]
        first = np.maximum.outer([layers.start for layers in old], [layers.start for layers in new])
        stop = np.minimum.outer([layers.stop for layers in old], [layers.stop for layers in new])
        layers = np.maximum(stop - first, 0)
        embedding = np.zeros_like(layers)
        embedding[0, 0] = 1
        head = np.outer(
            [has_head(stage, before.pipeline, model) for stage in range(before.pipeline)],
            [has_head(stage, config.pipeline, model) for stage in range(config.pipeline)],
        )
        weight_bytes = (
            np.kron(layers, shards(model.layer))
            + np.kron(embedding, shards(model.embedding))
            + np.kron(head, shards(model.head))
        )
        return cls(before, config, weight_bytes, np.kron(layers, shards(model.kv_layer_token)), tokens)

    def pair_bytes(self, old: Position | None, new: Position) -> tuple[int, int]:
        """Return the bytes of weights and of KV that the device at an old position has of a new one."""
        if old is None:
            return 0, 0
        old_place, new_place = _place(old, self.before), _place(new, self.config)
        tokens = self.tokens.get((old.pipeline, new.pipeline), 0)
        return int(self.weight_bytes[old_place, new_place]), tokens * int(self.kv_token_bytes[old_place, new_place])

    def gains(self, devices: Sequence[Position | None], positions: Sequence[Position]) -> Table:
        """Return the bytes that each device, known by its old position, has of each new position."""
        gains = np.zeros((len(devices), len(positions)), dtype=np.int64)
        rows = [row for row, old in enumerate(devices) if old is not None]
        held = [old for old in devices if old is not None]
        if not held or not positions:
            return gains
        tokens = np.zeros((self.before.pipelines, self.config.pipelines), dtype=np.int64)
        for (old_pipeline, new_pipeline), count in self.tokens.items():
            tokens[old_pipeline, new_pipeline] = count
        places = np.ix_([_place(old, self.before) for old in held], [_place(new, self.config) for new in positions])
        pipelines = np.ix_([old.pipeline for old in held], [new.pipeline for new in positions])
        gains[rows] = self.weight_bytes[places] + tokens[pipelines] * self.kv_token_bytes[places]
        return gains


def _place(position: Position, config: ParallelConfig) -> int:
    return position.stage * config.tensor + position.shard
