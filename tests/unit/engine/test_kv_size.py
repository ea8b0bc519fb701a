"""A cache that is measured when the model is loaded, and memory that cannot be had."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path

import pytest
import torch
import transformers

from spotwise.engine.engine import Engine
from spotwise.engine.model.compatibility import ModelFacts
from spotwise.engine.model.errors import ModelError
from spotwise.engine.model.kv_size import AutoKvSize, named_memory_errors
from spotwise.engine.model.loading import EngineConfig
from tests.unit.engine.tiny_models import llama_config, save_model


def load(folder: Path, free_bytes: int, max_num_seqs: int = 4, workers: int = 1) -> Engine:
    auto = AutoKvSize(max_num_seqs, workers, lambda: free_bytes)
    return Engine.load(EngineConfig(folder, "float32", "cpu", auto, threads=1))


def test_it_is_no_larger_than_the_model_can_use(llama_folder: Path) -> None:
    """512 tokens of context, 16 a block: so many blocks for each sequence of an iteration, however much is free."""
    assert load(llama_folder, 1 << 44).num_blocks == 4 * 512 // 16
    assert load(llama_folder, 1 << 44, max_num_seqs=1).num_blocks == 512 // 16


def test_a_window_needs_no_less(tmp_path: Path) -> None:
    """KV outside a sliding window is kept: blocks for 512 tokens of context where attention sees 48."""
    windowed = transformers.MistralConfig(**llama_config().to_diff_dict() | {"sliding_window": 48})
    engine = load(save_model(windowed, tmp_path), 1 << 44)
    assert engine.num_blocks == 4 * 512 // 16


def test_it_is_no_larger_than_a_share_of_what_is_free(llama_folder: Path) -> None:
    block_bytes = load(llama_folder, 1 << 44).kv_bytes_per_token * 16
    assert load(llama_folder, 80 * block_bytes).num_blocks == 20
    assert load(llama_folder, 80 * block_bytes, workers=2).num_blocks == 10


def test_a_gpu_keeps_a_workspace_free(llama_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine tenths of what the driver says is free, by worker, less 1.5 GiB and the logits; the host's memory counts nothing."""
    engine = load(llama_folder, 1 << 44)
    facts = ModelFacts(engine.kv.geometry, (), torch.float32, 1 << 40, None, 1 << 18, None, 0.0)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80 << 30, 81 << 30))
    for workers in (1, 2):
        measured = AutoKvSize(128, workers, lambda: 0).measured(facts, torch.device("cuda", 0), 16)
        assert measured == int((80 << 30) * 0.9) // workers - (1536 << 20) - 2 * 128 * (1 << 18) * 4
    small = dataclasses.replace(facts, context_length=512)
    most = 128 * 512 * engine.kv_bytes_per_token
    assert AutoKvSize(128, 1, lambda: 0).measured(small, torch.device("cuda", 0), 16) == most


def test_too_little_is_refused_in_one_sentence(llama_folder: Path) -> None:
    with pytest.raises(
        ValueError, match=r"more memory has to be free, or SPOTWISE_KV_CACHE_BYTES \(--kv-cache\) larger"
    ):
        load(llama_folder, 100)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_memory_that_cannot_be_had_is_one_sentence(error: Exception) -> None:
    with (
        pytest.raises(ModelError, match=r"not enough memory for a cache: lower .*--kv-cache") as refusal,
        named_memory_errors("a cache"),
    ):
        raise error
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), OSError(errno.ENOENT, "no such file")], ids=str)
def test_other_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error.args[-1])), named_memory_errors("a cache"):
        raise error
