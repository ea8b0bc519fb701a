"""Shapes of the models of SpotServe's paper. Single-precision weights: 12 x hidden^2 a layer, and an embedding of about 50,000
rows copied by the last stage (Table 1, section 6.1). The artifact's "30B" has 48 layers of 7,168, LLaMA-30B 60 of 6,656."""

from __future__ import annotations

from spotwise.core.parallel.model_shape import ModelShape

_VOCABULARY = 50_304
_FLOAT32_BYTES = 4


def _shape(name: str, layers: int, hidden_size: int) -> ModelShape:
    embedding_bytes = _VOCABULARY * hidden_size * _FLOAT32_BYTES
    return ModelShape(
        name,
        layers,
        hidden_size,
        layer_bytes=12 * hidden_size**2 * _FLOAT32_BYTES,
        embedding_bytes=embedding_bytes,
        head_bytes=embedding_bytes,
        kv_layer_token_bytes=2 * hidden_size * _FLOAT32_BYTES,
        value_bytes=_FLOAT32_BYTES,
    )


OPT_6_7B_SHAPE = _shape("OPT-6.7B", 32, 4096)
GPT_20B_SHAPE = _shape("GPT-20B", 44, 6144)
LLAMA_30B_SHAPE = _shape("LLaMA-30B", 48, 7168)
PAPER_SHAPES = (OPT_6_7B_SHAPE, GPT_20B_SHAPE, LLAMA_30B_SHAPE)
