"""A language model's shape as planning needs it: layers, their bytes, and a token's KV.

Law: equal layers, an embedding before the first and a head after the last. With the engine's `partition`, stages and shards
have what the engine's have (`model_partition.py`), and every shard of the first stage the whole embedding. Without one, P
stages take ceil(layers / P) layers each while they last (SpotServe's artifact), and shard m of M holds [m/M, (m+1)/M) of each
layer of its stage, of its KV, and of the stage's embedding or head.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.parallel.model_partition import ModelDimensions, stage_layers
from spotwise.core.parallel.shares import PartBytes

#: Values of M that the papers try.
_PAPERS_DEGREES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model; bytes are of weights unless they are KV.

    Attributes:
        hidden_size, value_bytes: numbers in a token's activation between stages, and bytes of each.
        head_bytes: after the last layer; where tied with the embedding, those of the last stage's copy.
        kv_layer_token_bytes: keys and values of one token in one layer.
        partition: how the engine cuts it; `None`: as in the papers.
    """

    name: str
    layers: int
    hidden_size: int
    layer_bytes: int
    embedding_bytes: int
    head_bytes: int
    kv_layer_token_bytes: int
    value_bytes: int = 2
    partition: ModelDimensions | None = None

    def __post_init__(self) -> None:
        counted = (self.layers, self.hidden_size, self.layer_bytes, self.kv_layer_token_bytes, self.value_bytes)
        if min(counted) < 1 or min(self.embedding_bytes, self.head_bytes) < 0:
            raise ValueError(f"layers and their bytes must be at least 1: {self}")
        if self.partition is not None and self.partition.layers != self.layers:
            raise ValueError(f"{self.layers} layers, and {self.partition.layers} that the engine cuts")

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return self.layers * self.layer_bytes + self.embedding_bytes + self.head_bytes

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of one token's KV, all layers."""
        return self.layers * self.kv_layer_token_bytes

    @property
    def embedding(self) -> PartBytes:
        """The part before the first layer."""
        return PartBytes(self.embedding_bytes, is_whole=self.partition is not None)

    @property
    def layer(self) -> PartBytes:
        """A layer's weights."""
        matrices = () if self.partition is None else self.partition.matrices
        each_bytes = self.layer_bytes // max(1, sum(matrix.columns * matrix.inputs for matrix in matrices))
        return PartBytes(self.layer_bytes, tuple((matrix.columns, matrix.inputs * each_bytes) for matrix in matrices))

    @property
    def head(self) -> PartBytes:
        """The part after the last layer."""
        if self.partition is None:
            return PartBytes(self.head_bytes)
        columns = self.partition.vocab_size
        return PartBytes(self.head_bytes, ((columns, self.head_bytes // columns),))

    @property
    def kv_layer_token(self) -> PartBytes:
        """A token's KV in a layer."""
        return PartBytes(self.kv_layer_token_bytes)

    def why_not(self, stages: int, shards: int) -> str | None:
        """Return why P stages of M shards cannot have the model; `None`: they can."""
        if self.partition is not None:
            return self.partition.why_not(stages, shards)
        return f"{stages} stages for {self.layers} layers; each stage needs one" if stages > self.layers else None

    @property
    def shard_degrees(self) -> tuple[int, ...]:
        """Values of M to try: those that the engine can have, or powers of two."""
        return _PAPERS_DEGREES if self.partition is None else self.partition.shard_degrees

    def group_bytes(self, shards: int) -> int:
        """Return the bytes of weights that all positions of a pipeline hold."""
        copies = shards - 1 if self.embedding.is_whole else 0
        return self.weight_bytes + copies * self.embedding_bytes

    def stage_layers(self, stage: int, stages: int) -> range:
        """Return the layers of a stage of a pipeline with that many stages; as in the papers, the last stages may have none."""
        if self.partition is not None:
            return stage_layers(self.layers, stages, self.partition.head_layers)[stage]
        each = -(-self.layers // stages)
        return range(min(stage * each, self.layers), min((stage + 1) * each, self.layers))

    def last_stage(self, stages: int) -> int:
        """Return the last of so many stages that has a layer."""
        return stages - 1 if self.partition is not None else -(-self.layers // -(-self.layers // stages)) - 1
