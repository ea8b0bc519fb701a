"""In bfloat16, too, a sequence's logits are the same bit for bit, whatever runs beside it and however it is cut.

This is what makes seeds exact, and lets a request that lost its worker resume with the same tokens.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from spotwise.core.requests.sampling import SamplingParams
from spotwise.engine.engine import Engine
from spotwise.engine.native.library import Kernels
from tests.unit.engine.tiny_models import VOCAB_SIZE, llama_config, load_engine, record, save_model
from tests.unit.engine.watched_engine import Logits, Watch

NEW_TOKENS = 10
# Within a block, across blocks, longer than a tile of queries, longer than two chunks of keys.
LENGTHS = (3, 16, 40, 130, 530, 17)
SHAPES: dict[str, dict[str, Any]] = {
    "three layers": {},
    "heads of 64": {"hidden_size": 576, "intermediate_size": 176, "num_attention_heads": 9, "num_key_value_heads": 3},
}
NO_TOKENS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SEEDED = SamplingParams(temperature=0.8, seed=11)


@pytest.fixture(scope="module", params=list(SHAPES.values()), ids=list(SHAPES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = llama_config(max_position_embeddings=1024, **request.param)
    return save_model(config, tmp_path_factory.mktemp("invariance") / "llama")


@pytest.fixture
def engine(folder: Path, best_kernels: Kernels) -> Engine:
    return load_engine(folder, "bfloat16")


def prompts() -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in LENGTHS]


def submit(watch: Watch, index: int, outputs: tuple[int, ...] = ()) -> None:
    watch.add(record(str(index), prompts()[index], SEEDED, outputs, max_new_tokens=NEW_TOKENS))


def come_one_by_one(watch: Watch) -> None:
    for index in range(len(LENGTHS)):
        submit(watch, index)
        watch.step()
    watch.finish()


def run_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> tuple[Logits, list[tuple[int, ...]]]:
    logits: Logits = {}
    outputs = []
    for index in range(len(LENGTHS)):
        with monkeypatch.context() as patched:
            watch = Watch(engine, patched)
            submit(watch, index)
            outputs.append(tuple(watch.finish()[f"{index}@1"]))
            logits |= watch.logits
            engine.drop_sequence(f"{index}@1")
    assert len(set(outputs)) == len(outputs)
    assert sum(len(set(output)) for output in outputs) > 3 * NEW_TOKENS, "the model repeats itself: it proves little"
    return logits, outputs


def assert_same(actual: Logits, expected: Logits) -> None:
    different = [key for key, logits in actual.items() if not torch.equal(logits, expected[key])]
    assert actual and different == []


@pytest.mark.parametrize("chunk_tokens", [1 << 30, 29, 256])
def test_neighbours_and_chunks_change_no_bit(
    engine: Engine, chunk_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences that arrive one by one: prefills, chunks and decodes share iterations, and each has its logits."""
    expected, _ = run_alone(engine, monkeypatch)
    watch = Watch(engine, monkeypatch, chunk_tokens)
    come_one_by_one(watch)
    assert watch.largest_mix[0] >= 1
    assert watch.logits.keys() == expected.keys()
    assert_same(watch.logits, expected)


@pytest.mark.parametrize("committed", [1, 4, NEW_TOKENS - 1])
def test_a_resumed_request_continues_with_the_same_tokens(
    engine: Engine, folder: Path, committed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompt and output so far are prefilled on another engine, and the next logits equal those of decoding."""
    expected, outputs = run_alone(engine, monkeypatch)
    watch = Watch(load_engine(folder, "bfloat16"), monkeypatch)
    for index, output in enumerate(outputs):
        submit(watch, index, output[:committed])
    resumed = watch.finish()
    assert [tuple(resumed[f"{index}@1"]) for index in range(len(LENGTHS))] == [output[committed:] for output in outputs]
    assert_same(watch.logits, expected)


def test_threads_change_no_bit(engine: Engine, best_kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = run_alone(engine, monkeypatch)
    for threads in (2, 3):
        best_kernels.set_threads(threads)
        try:
            logits, _ = run_alone(engine, monkeypatch)
        finally:
            best_kernels.set_threads(1)
        assert_same(logits, expected)


UNFUSED = {
    "gpt2": {"n_positions": 1024, "n_embd": 96, "n_layer": 2, "n_head": 6, "initializer_range": 0.5},
    "gemma2": {
        "hidden_size": 96,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "initializer_range": 0.5,
        "sliding_window": 12,
        "attn_logit_softcapping": 3.0,
        "tie_word_embeddings": False,
    },
}


@pytest.mark.parametrize("model_type", UNFUSED)
def test_layers_that_are_not_fused_keep_their_bits(
    model_type: str, best_kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products and attention run in the kernels, and torch computes the rest token by token."""
    config = AutoConfig.for_model(model_type, vocab_size=VOCAB_SIZE, **NO_TOKENS, **UNFUSED[model_type])
    engine = load_engine(save_model(config, tmp_path), "bfloat16")
    assert engine.is_native and engine.fused_layers == 0
    expected, _ = run_alone(engine, monkeypatch)
    watch = Watch(engine, monkeypatch, chunk_tokens=29)
    come_one_by_one(watch)
    assert_same(watch.logits, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_last_layer_may_compute_last_tokens_only(
    folder: Path, best_kernels: Kernels, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logits that are read, and keys and values, are those of the whole layer; in bfloat16 and float32 alike."""
    usual, whole = load_engine(folder, dtype), load_engine(folder, dtype)
    assert usual.fused_layers == 3
    lay_out = whole._layout.lay_out
    monkeypatch.setattr(whole._layout, "lay_out", lambda rows, *, last_only: lay_out(rows, last_only=False))
    seen = []
    for engine in (usual, whole):
        watch = Watch(engine, monkeypatch, chunk_tokens=100)
        come_one_by_one(watch)
        seen.append((watch.logits, engine.kv.keys, engine.kv.values))
    assert seen[0][0].keys() == seen[1][0].keys()
    assert_same(seen[0][0], seen[1][0])
    assert torch.equal(seen[0][1], seen[1][1]) and torch.equal(seen[0][2], seen[1][2])
