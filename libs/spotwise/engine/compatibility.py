"""Whether this engine computes a model rightly, decided before it serves.

Law: what a model's attention needs is seen where it is used: one tiny forward runs through a probe in place of our attention.
Every layer must call it exactly once, causally, with no mask, bias, cap or sink; otherwise the model is refused with one
sentence. Where only *long* contexts would differ (sliding windows, rotary scalings that change with the length of a batch),
the context is limited to what is exact.

Invariant: a model that passes gives the same distribution as transformers' own attention, at every position it accepts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from spotwise.engine.attention import causal_attention, effective_scaling, set_attention_context
from spotwise.engine.errors import UnsupportedModelError
from spotwise.engine.kv_cache import KvGeometry

_PROBE_TOKENS = 3

# Keyword arguments of transformers' attention functions that change the result, and what they are.
_UNSUPPORTED_OPTIONS = {
    "softcap": "soft-capped attention scores",
    "s_aux": "attention sinks",
    "position_bias": "a position bias in its attention",
    "indices": "sparse attention",
}
# Rotary embeddings whose frequencies follow the longest sequence of a batch once it exceeds the original context.
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the engine must know of a model.

    Attributes:
        geometry: what it keeps per token.
        kv_dtype: in which type its attention gets keys and values.
        context_length: positions it computes exactly.
        context_limit: why that is less than the model's own context; `None` where it is not.
        vocab_size: size of its embedding.
    """

    geometry: KvGeometry
    kv_dtype: torch.dtype
    context_length: int
    context_limit: str | None
    vocab_size: int


@dataclass(frozen=True, slots=True)
class _Call:
    layer: int
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    window: int | None


class AttentionProbe:
    """Stands in for the serving attention in one forward of a single short sequence, and notes what it is asked."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None,
        options: Mapping[str, Any],
    ) -> torch.Tensor:
        """Note the call and compute it; shapes as in `AttentionContext`.

        Raises:
            UnsupportedModelError: the call needs what the serving attention has not.
        """
        for option, meaning in _UNSUPPORTED_OPTIONS.items():
            if options.get(option) is not None:
                raise UnsupportedModelError(f"the model uses {meaning}, which this engine does not compute yet")
        if getattr(module, "sinks", None) is not None:
            raise UnsupportedModelError("the model uses attention sinks, which this engine does not compute yet")
        if attention_mask is not None:
            raise UnsupportedModelError(
                "the model builds an attention mask of its own (ALiBi, for one), which is not supported"
            )
        causal = options.get("is_causal")
        if not (getattr(module, "is_causal", True) if causal is None else causal):
            raise UnsupportedModelError("the model attends in both directions; only decoder-only models can be served")
        self.calls.append(
            _Call(
                layer=int(module.layer_idx),  # type: ignore[arg-type]
                kv_heads=key.shape[1],
                key_dim=key.shape[3],
                value_dim=value.shape[3],
                dtype=key.dtype,
                window=options.get("sliding_window"),
            )
        )
        attended = causal_attention(query[0], key[0], value[0], effective_scaling(module, query, scaling))
        return attended.unsqueeze(0)


@torch.inference_mode()
def inspect_model(model: PreTrainedModel) -> ModelFacts:
    """Run the probe through `model` (its attention implementation set to ours) and judge.

    Raises:
        UnsupportedModelError: the model cannot be served exactly; the message says why.
    """
    config: Any = model.config.get_text_config(decoder=True)
    if config.is_encoder_decoder:
        raise UnsupportedModelError("it is an encoder-decoder model; only decoder-only models can be served")
    probe = AttentionProbe()
    set_attention_context(model, probe)
    token_ids = torch.arange(_PROBE_TOKENS, device=model.device).unsqueeze(0)
    model(input_ids=token_ids, position_ids=token_ids, use_cache=False)
    layers = int(config.num_hidden_layers)
    seen = sorted(call.layer for call in probe.calls)
    if seen != list(range(layers)):
        raise UnsupportedModelError(
            f"{len(set(seen))} of the {layers} layers of {config.model_type!r} attend through transformers' attention "
            "interface once (others are recurrent, or have an attention of their own); this model cannot be served"
        )
    shapes = {(call.kv_heads, call.key_dim, call.value_dim, call.dtype) for call in probe.calls}
    if len(shapes) != 1:
        raise UnsupportedModelError("the layers keep keys and values of different shapes, which is not supported yet")
    kv_heads, key_dim, value_dim, kv_dtype = shapes.pop()
    context_length, context_limit = _context(config, [call.window for call in probe.calls])
    return ModelFacts(
        KvGeometry(layers, kv_heads, key_dim, value_dim),
        kv_dtype,
        context_length,
        context_limit,
        int(config.vocab_size),
    )


def _context(config: Any, windows: list[int | None]) -> tuple[int, str | None]:
    """Return the context that is computed exactly, and what limits it if it is not the model's own."""
    own = getattr(config, "max_position_embeddings", None)
    if own is None:
        raise UnsupportedModelError(f"the config of {config.model_type!r} does not say max_position_embeddings")
    limits: list[tuple[int, str | None]] = [(int(own), None)]
    limits += [(window, "its sliding-window attention") for window in windows if window is not None]
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):  # some models have it in their masks alone
        limits.append((int(config.sliding_window), "its sliding-window attention"))
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk is not None:
        limits.append((chunk, "its chunked attention"))
    for rope in _rope_parameters(config):
        if rope.get("rope_type") in _LENGTH_DEPENDENT_ROPE:
            original = rope.get("original_max_position_embeddings")
            original = original or getattr(config, "original_max_position_embeddings", None) or own
            limits.append((int(original), f"its {rope['rope_type']} rotary scaling"))
    return min(limits, key=lambda limit: limit[0])


def _rope_parameters(config: PretrainedConfig) -> Iterator[Mapping[str, Any]]:
    """Yield the rotary parameters: one set for all layers, or one per kind of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if "rope_type" in parameters:
        yield parameters
    else:
        yield from (kind for kind in parameters.values() if isinstance(kind, Mapping))
