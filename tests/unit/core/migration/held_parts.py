"""What a position holds, part by part: the listing that closed forms and tables are checked against."""

from __future__ import annotations

from typing import NamedTuple

from spotwise.core.migration.deployment import RunningRequest
from spotwise.core.migration.mapping.parts import Part, PartKind, has_head
from spotwise.core.parallel.config import ParallelConfig, Position
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.parallel.shares import PartBytes, Share, overlap


class HeldShare(NamedTuple):
    """A share of a part that a position holds; the part's bytes, or those of a token in it."""

    part: Part
    share: Share
    unit: PartBytes
    units: int = 1

    @property
    def bytes(self) -> int:
        return self.units * self.unit.of(self.share)

    @property
    def places(self) -> range:
        """Which bytes of the unit they are."""
        return range(self.unit.before(self.share.start), self.unit.before(self.share.end))

    def in_common(self, other: HeldShare) -> int:
        """Return the bytes that two positions both hold of the part."""
        return self.units * self.unit.of(overlap(self.share, other.share))


def weights_of(position: Position, config: ParallelConfig, model: ModelShape) -> list[HeldShare]:
    """Return the weights that a position of a configuration holds, in the order of the model; parts of 0 bytes too."""
    parts = [(Part(PartKind.EMBEDDING), model.embedding)] if position.stage == 0 else []
    layers = model.stage_layers(position.stage, config.pipeline)
    parts += [(Part(PartKind.LAYER, layer), model.layer) for layer in layers]
    if has_head(position.stage, config.pipeline, model):
        parts.append((Part(PartKind.HEAD), model.head))
    return [HeldShare(part, unit.share(position.shard, config.tensor), unit) for part, unit in parts]


def kv_of(position: Position, config: ParallelConfig, model: ModelShape, request: RunningRequest) -> list[HeldShare]:
    """Return the KV of a request that a position holds where its pipeline has the request, by layer."""
    unit = model.kv_layer_token
    share = unit.share(position.shard, config.tensor)
    layers = model.stage_layers(position.stage, config.pipeline)
    return [HeldShare(Part(PartKind.KV, layer, request.id), share, unit, request.tokens) for layer in layers]


def common_bytes(ours: list[HeldShare], theirs: list[HeldShare]) -> int:
    """Return the bytes that two positions both hold, part by part."""
    others = {held.part: held for held in theirs}
    return sum(held.in_common(others[held.part]) for held in ours if held.part in others)
