"""Assigns a model's layers, heads and columns to the devices of a group; one table for the engine and for planning.

Law: P stages have consecutive layers, at least one each, cut so that the costliest stage costs least; the head costs as many
layers as `head_layers` says, and is the last stage's. Of each matrix a shard has whole panels of output columns, and of the
attention whole KV heads with their query heads: nothing is added across shards, so that no result depends on P or M.
Norms and the embedding are on every device of a stage that computes them, the embedding in the first stage only.
Sources: pipelines and shards, SpotServe section 4.1; column cuts of all matrices, in place of Megatron-LM's row cuts
(Shoeybi et al., 2019, section 3), whose all-reduce adds in an order that depends on M.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fractions import Fraction

#: Output columns that are stored and computed together.
PANEL_COLUMNS = 32


@dataclass(frozen=True, slots=True)
class LayerMatrix:
    """A matrix of a decoder layer.

    Attributes:
        columns, inputs: its output columns, and numbers in each.
        gathers: gathers its inputs before it, and its outputs after it.
    """

    columns: int
    inputs: int
    gathers: bool


@dataclass(frozen=True, slots=True)
class ModelDimensions:
    """A model's parts that are cut.

    Attributes:
        layers: decoder layers.
        query_heads, kv_heads: heads of each layer.
        key_dim, value_dim: columns of one head's key (and query), and of its value.
        hidden_size: columns of the residual stream.
        inner_size: columns between the MLP's two matrices.
        vocab_size: columns of the logits.
        head_layers: layers whose weights are as large as the head's: decodes read all weights once.
        matrices: matrices of a decoder layer; none where it has to stay whole.
        stays_whole: why no layer can be cut into shards; `None`: they can.
    """

    layers: int
    query_heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    hidden_size: int
    inner_size: int
    vocab_size: int
    head_layers: float
    matrices: tuple[LayerMatrix, ...] = ()
    stays_whole: str | None = None

    def why_not(self, stages: int, shards: int) -> str | None:
        """Return why P stages of M shards cannot compute the model; `None`: they can."""
        if min(stages, shards) < 1:
            return f"{stages} stages of {shards} shards; each must be at least 1"
        if stages > self.layers:
            return f"{stages} stages for {self.layers} layers; each stage needs one"
        reason = self._uneven(shards)
        if reason is None or reason == self.stays_whole:
            return reason
        return f"{reason}; possible: {', '.join(map(str, self.shard_degrees))}"

    @property
    def shard_degrees(self) -> tuple[int, ...]:
        """Values of M that can compute the model."""
        return tuple(shards for shards in range(1, self.kv_heads + 1) if self._uneven(shards) is None)

    def _uneven(self, shards: int) -> str | None:
        if shards == 1:
            return None
        if self.stays_whole is not None:
            return self.stays_whole
        if self.kv_heads % shards:
            return f"{shards} shards do not divide its {self.kv_heads} KV heads"
        for part, columns in self._head_columns:
            if columns // shards % PANEL_COLUMNS:
                return f"{shards} shards cut its {columns} columns of {part} within a panel of {PANEL_COLUMNS}"
        narrowest = min(self.hidden_size, self.inner_size, self.vocab_size)
        panels = _panels(narrowest)
        return None if panels >= shards else f"{shards} shards for {narrowest} columns, which are {panels} panels"

    @property
    def gathered_columns(self) -> tuple[int, ...]:
        """Columns of each gather of a layer."""
        gathering = [matrix for matrix in self.matrices if matrix.gathers]
        return tuple(columns for matrix in gathering for columns in (matrix.inputs, matrix.columns))

    @property
    def _head_columns(self) -> tuple[tuple[str, int], ...]:
        return (
            ("queries", self.query_heads * self.key_dim),
            ("keys", self.kv_heads * self.key_dim),
            ("values", self.kv_heads * self.value_dim),
        )


@dataclass(frozen=True, slots=True)
class ModelShare:
    """What the device at one position of a group computes.

    Attributes:
        stage, stages, shard, shards: the position, and P and M.
        layers: layers of the stage.
        kv_heads, query_heads: heads of the shard, in each of these layers.
    """

    dimensions: ModelDimensions
    stage: int
    stages: int
    shard: int
    shards: int

    def __post_init__(self) -> None:
        reason = self.dimensions.why_not(self.stages, self.shards)
        if reason is None and not (0 <= self.stage < self.stages and 0 <= self.shard < self.shards):
            reason = f"position {self.stage},{self.shard} of {self.stages} stages of {self.shards} shards"
        if reason is not None:
            raise ValueError(reason)

    @property
    def layers(self) -> range:
        """Layers of the stage."""
        return stage_layers(self.dimensions.layers, self.stages, self.dimensions.head_layers)[self.stage]

    @property
    def kv_heads(self) -> range:
        """KV heads of the shard."""
        return _part(self.dimensions.kv_heads, self.shards, self.shard)

    @property
    def query_heads(self) -> range:
        """Query heads of the shard: those of its KV heads."""
        return _part(self.dimensions.query_heads, self.shards, self.shard)

    @property
    def is_first(self) -> bool:
        """Whether the stage has the embedding."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether the stage has the last norm and the head."""
        return self.stage == self.stages - 1

    def block_elements(self, block_size: int) -> int:
        """Return the numbers in a KV block of this position: of all its layers and heads, keys and values."""
        dimensions = self.dimensions
        return len(self.layers) * len(self.kv_heads) * (dimensions.key_dim + dimensions.value_dim) * block_size

    def columns(self, width: int) -> range:
        """Return the shard's output columns of a matrix with `width` of them."""
        bounds = column_bounds(width, self.shards)
        return range(bounds[self.shard], bounds[self.shard + 1])


def stage_layers(layers: int, stages: int, head_layers: float) -> tuple[range, ...]:
    """Return the layers of each stage; where cuts cost the same, the last stage has the fewest, and earlier ones more."""
    if stages == 1:
        return (range(layers),)
    last = min(
        range(1, layers - stages + 2),
        key=lambda count: (max(count + head_layers, -(-(layers - count) // (stages - 1))), count),
    )
    bounds = [-(-(layers - last) * stage // (stages - 1)) for stage in range(stages)]
    return (*(range(start, end) for start, end in itertools.pairwise(bounds)), range(layers - last, layers))


def column_bounds(width: int, shards: int) -> tuple[int, ...]:
    """Return where each shard's columns of a matrix begin, and last `width`: whole panels, the last of which may be cut."""
    return tuple(columns_before(width, Fraction(shard, shards)) for shard in range(shards + 1))


def columns_before(width: int, place: Fraction) -> int:
    """Return the columns of a matrix before a place in it, a fraction from 0 to 1: whole panels, but for the last."""
    return min(width, _panels(width) * place.numerator // place.denominator * PANEL_COLUMNS)


def _panels(width: int) -> int:
    return -(-width // PANEL_COLUMNS)


def _part(count: int, shards: int, shard: int) -> range:
    return range(count * shard // shards, count * (shard + 1) // shards)
