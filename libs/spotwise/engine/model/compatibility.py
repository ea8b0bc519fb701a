"""Decides before serving whether this engine computes a model exactly.

One tiny forward runs with probes in place of attention and masks. Every layer must attend through the interface exactly once,
and with nothing that `LayerAttention` does not describe; otherwise the model is refused. Where only long contexts would
differ (chunked attention, length-dependent rotary scaling), the context is limited to what is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from spotwise.engine.kv.cache import KvGeometry
from spotwise.engine.model import bloom
from spotwise.engine.model.attention import causal_attention
from spotwise.engine.model.attention_interface import AttentionCall, LayerAttention, set_attention_context
from spotwise.engine.model.errors import UnsupportedModelError
from spotwise.engine.model.score_terms import MaskProbe, ScoreTerms

_PROBE_TOKENS = 3

# Keyword arguments of transformers' attention functions that change the result, with their meaning.
_UNSUPPORTED_OPTIONS = {
    "position_bias": "a position bias in its attention",
    "indices": "sparse attention",
}
# Rotary embeddings whose frequencies follow the longest sequence of a batch once it exceeds the original context.
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Properties of a model that the engine relies on.

    Attributes:
        geometry: KV kept per token.
        layers: what the attention of each layer computes, in layer order.
        kv_dtype: dtype in which attention receives keys and values.
        context_length: positions that are computed exactly.
        context_limit: why that is less than the model's own context; `None`: it is not less.
        vocab_size: rows of the embedding.
        query_heads: query heads of each layer; `None` where layers differ.
        context_parity: context length at which a token's attention takes as many multiplications as the rest of the model.
        digest: hash of weights and structure as the files have them; `None`: the model was not read from files.
        quantisation: the format in which the files have the weights; empty where they are numbers of a dtype.
    """

    geometry: KvGeometry
    layers: tuple[LayerAttention, ...]
    kv_dtype: torch.dtype
    context_length: int
    context_limit: str | None
    vocab_size: int
    query_heads: int | None
    context_parity: float
    digest: str | None = None
    quantisation: str = ""

    def of_heads(self, query_heads: slice) -> ModelFacts:
        """Return the facts of a shard with some of the query heads; `geometry` stays that of the whole model."""
        if self.query_heads is None:
            return self
        layers = tuple(layer.of_heads(query_heads) for layer in self.layers)
        return replace(self, layers=layers, query_heads=query_heads.stop - query_heads.start)


@dataclass(frozen=True, slots=True)
class _Call:
    layer: int
    query_heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    attention: LayerAttention


class AttentionProbe:
    """An attention context that records the calls of one forward over a short sequence."""

    def __init__(self, masks: MaskProbe) -> None:
        self.calls: list[_Call] = []
        self.on_written: Callable[[int], None] | None = None
        self._masks = masks

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Record the call and compute it.

        Raises:
            UnsupportedModelError: the call uses a feature that the serving attention lacks.
        """
        _, query, key, value, attention_mask, scaling, options = call
        module: torch.nn.Module = call.module
        for option, meaning in _UNSUPPORTED_OPTIONS.items():
            if options.get(option) is not None:
                raise UnsupportedModelError(f"the model uses {meaning}, which this engine does not compute yet")
        causal = options.get("is_causal")
        if not (getattr(module, "is_causal", True) if causal is None else causal):
            raise UnsupportedModelError("the model attends in both directions; only decoder-only models can be served")
        attention = LayerAttention(
            scaling=_scaling(module, query, scaling),
            window=self._masks.window(attention_mask),
            softcap=options.get("softcap"),
            alibi_slopes=options.get("alibi_slopes"),
            sinks=_sinks(module, options.get("s_aux"), num_heads=query.shape[1]),
        )
        self.calls.append(
            _Call(
                layer=call.layer,
                query_heads=query.shape[1],
                kv_heads=key.shape[1],
                key_dim=key.shape[3],
                value_dim=value.shape[3],
                dtype=key.dtype,
                attention=attention,
            )
        )
        return causal_attention(query[0], key[0], value[0], ScoreTerms(attention, query.device)).unsqueeze(0)


def _scaling(module: torch.nn.Module, query: torch.Tensor, scaling: float | None) -> float:
    """Return the softmax scale: the caller's, else the module's own, else `1 / sqrt(dim)`."""
    if scaling is None:
        scaling = getattr(module, "scaling", None)
    return query.shape[-1] ** -0.5 if scaling is None else float(scaling)


def _sinks(module: torch.nn.Module, sinks: torch.Tensor | None, num_heads: int) -> tuple[float, ...] | None:
    """Return the sink of each head.

    Raises:
        UnsupportedModelError: the module has sinks but does not pass them on, or their shape is not one number a head.
    """
    if sinks is None:
        if getattr(module, "sinks", None) is None:
            return None
    elif sinks.numel() == num_heads:
        return tuple(sinks.flatten().tolist())
    raise UnsupportedModelError("the model has attention sinks that are not one number a head, which is not supported")


@torch.inference_mode()
def inspect_model(model: PreTrainedModel) -> ModelFacts:
    """Run the probe through `model`, whose attention implementation is ours, and return its facts.

    Raises:
        UnsupportedModelError: the model cannot be served exactly; the message says why.
    """
    config: Any = model.config.get_text_config(decoder=True)
    if config.is_encoder_decoder:
        raise UnsupportedModelError("it is an encoder-decoder model; only decoder-only models can be served")
    if model._is_stateful:  # the attention probe cannot see it: every layer of falcon_h1 has attention and a state
        raise UnsupportedModelError(
            f"the layers of {config.model_type!r} keep a state beside keys and values (recurrent, for one); this model "
            "cannot be served"
        )
    limits = _context_limits(config)
    context_length, context_limit = min(limits, key=lambda limit: limit[0], default=(_PROBE_TOKENS, None))
    masks = MaskProbe(context_length)
    probe = AttentionProbe(masks)
    set_attention_context(model, probe)
    token_ids = torch.arange(_PROBE_TOKENS, device=model.device).unsqueeze(0)
    with masks.installed(model):
        _run(model, token_ids)
    layers = int(config.num_hidden_layers)
    seen = sorted(call.layer for call in probe.calls)
    if seen and seen[-1] >= layers:
        raise UnsupportedModelError(
            f"more layers of {config.model_type!r} attend than its config counts; only decoder-only models can be served"
        )
    if seen != list(range(layers)):
        raise UnsupportedModelError(
            f"{len(set(seen))} of the {layers} layers of {config.model_type!r} attend through transformers' attention "
            "interface once (others are recurrent, or have an attention of their own); this model cannot be served"
        )
    if not limits:
        raise UnsupportedModelError(f"the config of {config.model_type!r} does not say max_position_embeddings")
    shapes = {(call.kv_heads, call.key_dim, call.value_dim, call.dtype) for call in probe.calls}
    if len(shapes) != 1:
        raise UnsupportedModelError("the layers keep keys and values of different shapes, which is not supported yet")
    kv_heads, key_dim, value_dim, kv_dtype = shapes.pop()
    by_layer = sorted(probe.calls, key=lambda call: call.layer)
    query_heads = {call.query_heads for call in probe.calls}
    return ModelFacts(
        KvGeometry(layers, kv_heads, key_dim, value_dim),
        tuple(call.attention for call in by_layer),
        kv_dtype,
        context_length,
        context_limit,
        int(config.vocab_size),
        query_heads.pop() if len(query_heads) == 1 else None,
        _products_per_token(model, config)
        / sum(call.query_heads * (call.key_dim + call.value_dim) for call in probe.calls),
    )


def _products_per_token(model: PreTrainedModel, config: Any) -> float:
    """Return the multiplications per token of the matrix products, without attention and logits."""
    embeddings: Any = (model.get_input_embeddings(), model.get_output_embeddings())  # type: ignore[no-untyped-call]
    tables = {id(table.weight) for table in embeddings if table is not None}
    weights = [
        (name, weight) for name, weight in model.named_parameters() if weight.dim() >= 2 and id(weight) not in tables
    ]
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    share = getattr(config, "num_experts_per_tok", experts) / experts if experts else 1.0
    return sum(weight.numel() * (share if "experts" in name else 1.0) for name, weight in weights)


def _run(model: PreTrainedModel, token_ids: torch.Tensor) -> None:
    try:
        model(input_ids=token_ids, position_ids=token_ids, use_cache=False)
    except UnsupportedModelError:
        raise
    except Exception as error:  # any model's code may run here, and would raise the same in service
        raise UnsupportedModelError(f"it cannot compute three plain tokens: {type(error).__name__}: {error}") from error


def _context_limits(config: Any) -> list[tuple[int, str | None]]:
    """Return each bound of the exact context with its reason, `None` for the model's own context; empty where unknown."""
    own = getattr(config, "max_position_embeddings", None) or getattr(config, "seq_length", None)
    if own is None:
        return [(bloom.TRAINED_CONTEXT_LENGTH, "what it was trained on")] if config.model_type == "bloom" else []
    limits: list[tuple[int, str | None]] = [(int(own), None)]
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk is not None:
        limits.append((chunk, "its chunked attention"))
    for rope in _rope_parameters(config):
        if rope.get("rope_type") in _LENGTH_DEPENDENT_ROPE:
            original = rope.get("original_max_position_embeddings")
            original = original or getattr(config, "original_max_position_embeddings", None) or own
            limits.append((int(original), f"its {rope['rope_type']} rotary scaling"))
    return limits


def _rope_parameters(config: PretrainedConfig) -> Iterator[Mapping[str, Any]]:
    """Yield the rotary parameters: one set for all layers, or one per layer type."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if "rope_type" in parameters:
        yield parameters
    else:
        yield from (kind for kind in parameters.values() if isinstance(kind, Mapping))
