"""Bytes of a model's parts, known before any is loaded: a group's leader chooses the number of KV blocks with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from spotwise.core.parallel.model_partition import ModelDimensions
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.engine.model.loading import EngineConfig, warn_of_limits
from spotwise.engine.native.shard import Shard
from spotwise.engine.parts.group_place import GroupPlace, require_cpu
from spotwise.engine.parts.sharding import dimensions, find_layers
from spotwise.engine.parts.sketch import sketch_model
from spotwise.engine.parts.weight_store import WeightStore


def model_partition(config: EngineConfig) -> ModelDimensions:
    """Return where the model of `config.model_dir` can be cut, without loading it; raises `ModelError`, and
    `UnsupportedModelError` where it cannot be cut at all."""
    sketch = sketch_model(config)
    return dimensions(sketch.model, sketch.facts)


def model_shape(store: WeightStore) -> ModelShape:
    """Return how large the parts of a store's model are, without loading any; raises as `WeightStore.structure`."""
    sketch = store.structure.sketch
    model, parts = sketch.model, dimensions(sketch.model, sketch.facts)
    _, layers = find_layers(model, sketch.facts)
    kept_bytes = store.structure.kept_bytes()

    def bytes_of(module: torch.nn.Module) -> int:
        return sum(
            kept_bytes.get(parameter, parameter.nbytes) for parameter in module.parameters()
        )  # of tied weights one

    layer_bytes = max(map(bytes_of, layers))
    head = model.get_output_embeddings()
    head_bytes = 0 if head is None else bytes_of(head)
    outside = bytes_of(model) - sum(map(bytes_of, layers))
    is_tied = head is not None and head.weight is model.get_input_embeddings().weight
    geometry = sketch.facts.geometry
    return ModelShape(
        store.config.model_dir.name,
        geometry.num_layers,
        parts.hidden_size,
        layer_bytes,
        outside - (0 if is_tied else head_bytes),
        head_bytes,
        geometry.kv_heads * (geometry.key_dim + geometry.value_dim) * sketch.facts.kv_dtype.itemsize,
        model.dtype.itemsize,
        parts,
    )


@dataclass(frozen=True, slots=True)
class PartSizes:
    """The parts of a model in one shape.

    Attributes:
        block_bytes: bytes of a KV block, by position: stage, then shard.
        dtype: the model's number format, as in `EngineConfig`.
        digest: hash of its weights.
        context_length: positions that a sequence may have.
    """

    block_bytes: tuple[int, ...]
    dtype: str
    digest: str | None
    context_length: int

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
        return cls(
            tuple(sizes),
            str(sketch.model.dtype).removeprefix("torch."),
            sketch.facts.digest,
            sketch.facts.context_length,
        )

    def blocks(self, member_bytes: Sequence[int]) -> int:
        """Return how many blocks every member can hold, given its bytes, in order of position."""
        return min(given // block for given, block in zip(member_bytes, self.block_bytes, strict=True))
