"""As much of a language model as planning must know: layers, their bytes, and what a token's KV weighs.

Law: a model is equal layers, with an embedding before the first and a head after the last. P stages take them in order,
ceil(layers / P) each while they last, so that the last stage may have fewer (SpotServe's artifact does so); shard m of M
holds [m/M, (m+1)/M) of each layer of its stage, of its KV, and of embedding or head where the stage has one.

Invariants: stages share all layers out, each layer once; a stage's bytes are those of its parts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model.

    Attributes:
        name: for people.
        layers: transformer layers.
        hidden_size: numbers in a token's activation between stages.
        layer_bytes: weights of one layer.
        embedding_bytes: weights before the first layer.
        head_bytes: weights after the last layer; where tied with the embedding, the bytes of the copy that the last stage has.
        kv_layer_token_bytes: keys and values of one token in one layer.
        value_bytes: of one number of an activation.
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
        """Return the layers of a stage of a pipeline with that many stages; the last ones may have none."""
        each = -(-self.layers // stages)
        return range(min(stage * each, self.layers), min((stage + 1) * each, self.layers))
