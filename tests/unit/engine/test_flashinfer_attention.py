"""Our use of FlashInfer, with a library in its place that keeps to its documentation; the real one runs in tests/cuda."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Gemma2Config, MistralConfig

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.engine.engine import Engine
from spotwise.engine.forward import flashinfer_attention
from spotwise.engine.forward.cuda_attention import FlashInferBackend, choose_attention, torch_attention, try_flashinfer
from spotwise.engine.forward.flashinfer_attention import refusal
from spotwise.engine.kv.cache import KvGeometry, PagedKvCache
from spotwise.engine.model.attention_interface import LayerAttention
from spotwise.engine.model.compatibility import ModelFacts
from spotwise.engine.model.loading import EngineConfig, load_model
from tests.unit.engine import fake_flashinfer
from tests.unit.engine.tape_capture import TapeCapture
from tests.unit.engine.test_decode_graphs import finished
from tests.unit.engine.tiny_models import llama_config, record, save_model

CPU = torch.device("cpu")
BLOCK_SIZE = 8  # a CPU's cache is then in plain order, as a GPU's always is
LENGTHS = [3, 120, 30, 75, 10]
SHAPE = {
    name: getattr(llama_config(), name)
    for name in (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id",
        "initializer_range",
    )
}  # fmt: skip
CONFIGS = {
    "plain": llama_config(),
    "windows": MistralConfig(**SHAPE, sliding_window=12),
    "windows, soft caps, scaling": Gemma2Config(
        **SHAPE,
        head_dim=16,
        sliding_window=12,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        query_pre_attn_scalar=4,
        attn_logit_softcapping=3.0,
        tie_word_embeddings=False,
    ),
}


@pytest.fixture(autouse=True)
def small_heads_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the stand-in compute small heads in float32, which FlashInfer does not."""
    monkeypatch.setattr(flashinfer_attention, "_HEAD_DIMS", (16,))
    monkeypatch.setattr(flashinfer_attention, "_DTYPES", (torch.float32,))
    monkeypatch.setattr(flashinfer_attention, "_WORKSPACE_BYTES", 1 << 10)


@pytest.fixture(scope="module", params=CONFIGS)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ModelFacts]:
    folder: Path = save_model(CONFIGS[request.param], tmp_path_factory.mktemp("flashinfer") / "model")
    return load_model(EngineConfig(folder, "float32", "cpu", threads=1))


def cache_of(facts: ModelFacts, *, scratch: bool = False) -> PagedKvCache:
    return PagedKvCache(facts.geometry, 300, BLOCK_SIZE, torch.float32, CPU, scratch=scratch)


def tried(library: Any, cache: PagedKvCache, facts: ModelFacts) -> FlashInferBackend | None:
    return try_flashinfer(library, cache, facts, torch_attention(cache, facts))


@pytest.mark.parametrize("chunk_tokens", [1 << 30, 13])
@pytest.mark.parametrize("recorded", [False, True])
def test_tokens_are_those_of_torch(loaded: tuple[Any, ModelFacts], recorded: bool, chunk_tokens: int) -> None:
    """Prefills, chunks and decodes in one call a layer; decodes computed, or replayed from a bucket with padding."""
    model, facts = loaded
    expected = finished(Engine(model, facts, cache_of(facts)), LENGTHS, chunk_tokens=chunk_tokens)
    cache = cache_of(facts, scratch=recorded)
    backend = tried(fake_flashinfer, cache, facts)
    assert backend is not None
    capture = TapeCapture() if recorded else None
    engine = Engine(model, facts, cache, backend=backend, capture=capture)
    assert engine.attention_name == "FlashInfer attention"
    assert finished(engine, LENGTHS, chunk_tokens=chunk_tokens) == expected
    if capture is not None:
        assert engine.graphs is not None and not engine.graphs.off and capture.replays > 10
        assert "BatchDecodeWithPagedKVCacheWrapper" in fake_flashinfer.made


def test_layers_that_attend_alike_share_their_plans(loaded: tuple[Any, ModelFacts]) -> None:
    """One wrapper for each kind of layer, not for each layer."""
    _, facts = loaded
    fake_flashinfer.made.clear()
    assert tried(fake_flashinfer, cache_of(facts), facts) is not None
    assert len(fake_flashinfer.made) == len(set(facts.layers)) < len(facts.layers)


def test_a_block_that_is_not_there_is_refused(loaded: tuple[Any, ModelFacts]) -> None:
    model, facts = loaded
    cache = cache_of(facts)
    engine = Engine(model, facts, cache, backend=tried(fake_flashinfer, cache, facts))
    engine.add_sequence(record("a", [1, 2, 3]))
    for block in (-1, 300):
        with pytest.raises(ValueError, match=r"outside 0\.\.299"):
            engine.run_iteration(Batch((BatchRow("a@1", 0, 3, (block,)),)))


def test_a_trial_leaves_the_cache_empty(loaded: tuple[Any, ModelFacts]) -> None:
    _, facts = loaded
    cache = cache_of(facts)
    assert tried(fake_flashinfer, cache, facts) is not None
    assert not cache.keys.any() and not cache.values.any()


def test_a_library_that_gives_something_else_is_not_used(
    loaded: tuple[Any, ModelFacts], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, facts = loaded
    run = fake_flashinfer.BatchPrefillWithPagedKVCacheWrapper.run
    monkeypatch.setattr(
        fake_flashinfer.BatchPrefillWithPagedKVCacheWrapper, "run", lambda self, q, pages: run(self, q, pages) * 1.05
    )
    assert tried(fake_flashinfer, cache_of(facts), facts) is None
    assert tried(SimpleNamespace(), cache_of(facts), facts) is None


GEOMETRY = KvGeometry(num_layers=2, kv_heads=2, key_dim=16, value_dim=16)
PLAIN = LayerAttention(scaling=0.25)


@pytest.mark.parametrize(
    ("geometry", "layers", "query_heads", "reason"),
    [
        (GEOMETRY, (PLAIN, replace(PLAIN, window=5, softcap=2.0)), 6, None),
        (replace(GEOMETRY, value_dim=8), (PLAIN,), 6, "16+8"),
        (replace(GEOMETRY, key_dim=24, value_dim=24), (PLAIN,), 6, "24+24"),
        (GEOMETRY, (PLAIN,), 5, "query heads"),
        (GEOMETRY, (PLAIN,), None, "query heads"),
        (GEOMETRY, (PLAIN, replace(PLAIN, alibi_slopes=(0.5,) * 6)), 6, "ALiBi"),
        (GEOMETRY, (PLAIN, replace(PLAIN, sinks=(0.5,) * 6)), 6, "sinks"),
        (GEOMETRY, tuple(LayerAttention(scaling=1 / n) for n in range(1, 6)), 6, "more than 4"),
    ],
)
def test_what_would_not_be_computed_is_named(
    geometry: KvGeometry, layers: tuple[LayerAttention, ...], query_heads: int | None, reason: str | None
) -> None:
    refused = refusal(PagedKvCache(geometry, 4, BLOCK_SIZE, torch.float32, CPU), layers, query_heads)
    if reason is None:
        assert refused is None
    else:
        assert refused is not None and reason in refused


def test_a_type_that_it_does_not_multiply_is_named() -> None:
    cache = PagedKvCache(GEOMETRY, 4, BLOCK_SIZE, torch.bfloat16, CPU)
    assert refusal(cache, (PLAIN,), 6) == "it does not compute in bfloat16"


def test_a_cache_beyond_its_counting_is_named() -> None:
    """Strides of 32 bits or more."""
    for num_blocks, reason in ((1 << 24, None), (1 << 25, "a cache in which one head's blocks")):
        cache = PagedKvCache(GEOMETRY, num_blocks, BLOCK_SIZE, torch.float32, torch.device("meta"))
        assert (refusal(cache, (PLAIN,), 6) or "").startswith(reason or "")
        assert (refusal(cache, (PLAIN,), 6) is None) is (reason is None)


def test_a_cpu_computes_with_torch(loaded: tuple[Any, ModelFacts], monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is not even looked for."""
    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail(name))
    _, facts = loaded
    assert choose_attention(cache_of(facts), facts).name == "torch attention"
