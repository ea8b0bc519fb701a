"""How large the parts of a model are, before any is loaded: a group's leader chooses the number of KV blocks with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from spotwise.core.parallel.model_partition import ModelDimensions
from spotwise.engine.group_place import GroupPlace, require_cpu
from spotwise.engine.loading import EngineConfig, warn_of_limits
from spotwise.engine.shard import Shard
from spotwise.engine.sharding import dimensions
from spotwise.engine.sketch import sketch_model
from spotwise.engine.weight_store import WeightStore


def model_partition(config: EngineConfig) -> ModelDimensions:
    """Return where the model of `config.model_dir` can be cut, without loading it; raises `ModelError`, and
    `UnsupportedModelError` where it cannot be cut at all."""
    sketch = sketch_model(config)
    return dimensions(sketch.model, sketch.facts)


@dataclass(frozen=True, slots=True)
class PartSizes:
    """The parts of a model in one shape.

    Attributes:
        block_bytes: of a KV block, by position: stage, then shard.
        dtype: of the model, as in `EngineConfig`.
        digest: of its weights.
    """

    block_bytes: tuple[int, ...]
    dtype: str
    digest: str | None

    @classmethod
    def of(cls, store: WeightStore, stages: int, shards: int) -> Self:
        """Cut the model of a store, without loading it.

        Raises:
            ModelError: the folder cannot be read.
            UnsupportedModelError: the model cannot be cut like this.
            ValueError: no group can compute on the device.
        """
        require_cpu(store.config)
        sketch = store.structure.sketch
        warn_of_limits(sketch.facts)
        sizes = []
        for stage in range(stages):
            for index in range(shards):
                share = GroupPlace(Shard(index, shards, stage), stages).share_of(sketch)
                sizes.append(share.block_elements(store.config.block_size) * sketch.facts.kv_dtype.itemsize)
        return cls(tuple(sizes), str(sketch.model.dtype).removeprefix("torch."), sketch.facts.digest)

    def blocks(self, member_bytes: Sequence[int]) -> int:
        """Return how many blocks every member can hold, given its bytes, in order of position."""
        return min(given // block for given, block in zip(member_bytes, self.block_bytes, strict=True))
