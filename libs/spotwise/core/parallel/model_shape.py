"""A language model's shape as planning needs it: layers, their bytes, and a token's KV.

Law: equal layers, an embedding before the first and a head after the last. P stages take ceil(layers / P) layers each while
they last (SpotServe's artifact); shard m of M holds [m/M, (m+1)/M) of each layer of its stage, of its KV, and of the stage's
embedding or head.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model; bytes are of weights unless they are KV.

    Attributes:
        hidden_size, value_bytes: numbers in a token's activation between stages, and bytes of each.
        head_bytes: after the last layer; where tied with the embedding, those of the last stage's copy.
        kv_layer_token_bytes: keys and values of one token in one layer.
    """

    name: str
    layers: int
    hidden_size: int
    layer_bytes: int
    embedding_bytes: int
    head_bytes: int
    kv_layer_token_bytes: int
    value_bytes: int = 2

    def __post_init__(self) -> None:
        counted = (self.layers, self.hidden_size, self.layer_bytes, self.kv_layer_token_bytes, self.value_bytes)
        if min(counted) < 1 or min(self.embedding_bytes, self.head_bytes) < 0:
            raise ValueError(f"layers and their bytes must be at least 1: {self}")

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return self.layers * self.layer_bytes + self.embedding_bytes + self.head_bytes

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of one token's KV, all layers."""
        return self.layers * self.kv_layer_token_bytes

    def stage_layers(self, stage: int, stages: int) -> range:
        """Return the layers of a stage of a pipeline with that many stages; the last stages may have none."""
        each = -(-self.layers // stages)
        return range(min(stage * each, self.layers), min((stage + 1) * each, self.layers))
