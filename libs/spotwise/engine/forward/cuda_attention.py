"""Chooses FlashInfer or torch for attention where no native kernel computes it, once, at load.

FlashInfer is used where it is installed, supports every layer (`flashinfer_attention.refusal`) and agrees with torch on a
trial: a prompt and a decode through each kind of layer. The log says why it is not used.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import structlog
import torch

from spotwise.core.costs.batching import BatchRow
from spotwise.engine.forward.flashinfer_attention import FlashInferAttention, FlashInferLayout, refusal
from spotwise.engine.forward.iteration import BatchLayout, SequenceRow
from spotwise.engine.forward.sequences import EngineSequence
from spotwise.engine.kv.cache import PagedKvCache
from spotwise.engine.model.attention import PagedAttention
from spotwise.engine.model.attention_interface import AttentionCall
from spotwise.engine.model.compatibility import ModelFacts

_log = structlog.get_logger(__name__)

# Largest relative distance of the outputs of a trial: bfloat16's 8-bit significands are rounded in different places.
_TOLERANCE = 2e-2
_TRIAL_PROMPT, _TRIAL_DECODE = 23, 37


@dataclass(frozen=True, slots=True)
class TorchBackend:
    """Attention by torch, and its batch layout."""

    attention: PagedAttention
    layout: BatchLayout
    name: str = "torch attention"


@dataclass(frozen=True, slots=True)
class FlashInferBackend:
    """Attention by FlashInfer, and its batch layout."""

    attention: FlashInferAttention
    layout: FlashInferLayout
    name: str = "FlashInfer attention"


def choose_attention(cache: PagedKvCache, facts: ModelFacts) -> TorchBackend | FlashInferBackend:
    """Return the attention backend of a model; the trial overwrites the cache, so it must be empty."""
    plain = torch_attention(cache, facts)
    if cache.device.type != "cuda":
        return plain
    try:
        library = importlib.import_module("flashinfer")
    except Exception as error:  # importing it loads other libraries, which may raise anything
        _log.info("flashinfer_not_used", reason=f"cannot be imported: {error}")
        return plain
    if torch.cuda.get_device_capability(cache.device) < (8, 0):
        _log.info("flashinfer_not_used", reason="the device has less than compute capability 8.0")
        return plain
    return try_flashinfer(library, cache, facts, plain) or plain


def torch_attention(cache: PagedKvCache, facts: ModelFacts) -> TorchBackend:
    """Return the torch attention backend."""
    return TorchBackend(PagedAttention(cache, facts.layers), BatchLayout(cache))


def try_flashinfer(
    library: Any, cache: PagedKvCache, facts: ModelFacts, reference: TorchBackend
) -> FlashInferBackend | None:
    """Return the FlashInfer backend if its outputs agree with those of `reference`; else log the reason and return `None`."""
    reason = refusal(cache, facts.layers, facts.query_heads)
    if reason is not None:
        _log.info("flashinfer_not_used", reason=reason)
        return None
    assert facts.query_heads is not None
    try:
        attention = FlashInferAttention(library, cache, facts.layers, facts.query_heads, facts.context_length)
        backend = FlashInferBackend(attention, FlashInferLayout(cache, attention))
        difference = _difference(cache, facts, reference, backend)
    except Exception as error:  # kernels are compiled when first used, which may raise anything
        _log.warning("flashinfer_not_used", reason=f"its trial failed: {type(error).__name__}: {error}")
        return None
    if difference > _TOLERANCE:
        _log.warning("flashinfer_not_used", reason="its trial gave something else", difference=difference)
        return None
    return backend


@torch.inference_mode()
def _difference(cache: PagedKvCache, facts: ModelFacts, reference: TorchBackend, tried: FlashInferBackend) -> float:
    """Return the largest relative distance of the outputs, over one layer of each kind; zeroes the blocks it used."""
    rows = _trial_rows(cache)
    tokens = sum(row.num_tokens for row, _ in rows)
    used = 1 + max(block for row, _ in rows for block in row.block_ids)
    query_heads, kv_heads, dim = facts.query_heads or 0, cache.kv_heads, cache.geometry.key_dim
    generator = torch.Generator(cache.device).manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=cache.device).to(cache.dtype)

    worst = 0.0
    for layer in {facts.layers[index]: index for index in cache.part.layers}.values():
        held = [part[:, :used] for part in (cache.layer_keys(layer), cache.layer_values(layer))]
        for part in held:
            part.copy_(random(*part.shape))
        new = [random(1, heads, tokens, dim) for heads in (query_heads, kv_heads, kv_heads)]
        wanted, got = (_attended(backend, layer, rows, new) for backend in (reference, tried))
        worst = max(worst, float((got - wanted).norm() / wanted.norm()))
        for part in held:
            part.zero_()
    return worst


def _trial_rows(cache: PagedKvCache) -> list[SequenceRow]:
    """Return a decode row and a prefill row with cached context, as far as the cache has blocks for them."""
    size = cache.block_size
    rows: list[SequenceRow] = []
    free = iter(range(cache.num_blocks))
    for first, count in ((_TRIAL_DECODE, 1), (_TRIAL_PROMPT // 2, _TRIAL_PROMPT)):
        blocks = tuple(block for block, _ in zip(free, range(-(-(first + count) // size)), strict=False))
        if len(blocks) * size >= first + count:
            rows.append((BatchRow("trial", first, count, blocks), EngineSequence.of_tokens([0] * (first + count))))
    if not rows:
        raise ValueError("the KV cache is too small to try it")
    return rows


def _attended(
    backend: TorchBackend | FlashInferBackend, layer: int, rows: Rows[SequenceRow], parts: Rows[torch.Tensor]
) -> torch.Tensor:
    flat = backend.layout.lay_out(rows, last_only=False)
    query, key, value = parts
    attention: Any = backend.attention
    attention.plan = flat.plan
    try:
        output: torch.Tensor = attention.attend(AttentionCall(SimpleNamespace(layer_idx=layer), query, key, value))
    finally:
        attention.plan = None
    return output.float()
