"""A cache that is measured when the model is loaded, and memory that cannot be had."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import transformers

from spotwise.engine.engine import Engine
from spotwise.engine.model.compatibility import ModelFacts
from spotwise.engine.model.errors import ModelError
from spotwise.engine.model.kv_size import AutoKvSize, named_memory_errors
from spotwise.engine.model.loading import EngineConfig
from spotwise.engine.native.shard import Shard
from spotwise.engine.parts import group_place
from spotwise.engine.parts.group_place import GroupPlace
from spotwise.engine.parts.part_sizes import PartSizes
from spotwise.engine.parts.weight_store import WeightStore
from spotwise.worker import engine_thread
from spotwise.worker.compute_threads import ComputeThreads
from spotwise.worker.engine_thread import EngineThread
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


def test_a_group_on_a_gpu_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(group_place, "resolve", lambda _: (torch.device("cuda:0"), torch.bfloat16))
    config = EngineConfig(tmp_path, "bfloat16", "cuda", kv_cache_bytes=1 << 20)
    with pytest.raises(ValueError, match=r"cuda:0; set SPOTWISE_DEVICE=cpu"):
        PartSizes.of(WeightStore(config), 1, 2)
    with pytest.raises(ValueError, match=r"cuda:0; set SPOTWISE_DEVICE=cpu"):
        Engine.load_part(WeightStore(config), GroupPlace(Shard(0, 2, 0), 1))


def _load(folder: Path, free_bytes: int, num_blocks: int) -> Engine:
    auto = AutoKvSize(4, 2, lambda: free_bytes)
    store = WeightStore(EngineConfig(folder, "float32", "cpu", auto, threads=1))
    return Engine.load_part(store, GroupPlace(Shard(), 1), num_blocks)


def test_a_member_that_measures_a_little_less_takes_the_blocks_of_its_group(llama_folder: Path) -> None:
    """Another process has taken memory since; the share of what is free now would be 20 blocks of each worker."""
    block_bytes = _load(llama_folder, 1 << 44, 1).kv_bytes_per_token * 16
    assert _load(llama_folder, 160 * block_bytes, 24).num_blocks == 24


def test_a_member_refuses_blocks_for_which_no_memory_is_free(llama_folder: Path) -> None:
    block_bytes = _load(llama_folder, 1 << 44, 1).kv_bytes_per_token * 16
    with pytest.raises(ValueError, match=r"24 blocks of .* bytes are needed: more memory has to be free.*--kv-cache"):
        _load(llama_folder, 20 * block_bytes, 24)


async def test_memory_that_cannot_be_had_for_a_part_is_one_sentence(
    llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its KV cache here; weights fail in the same way."""
    store = WeightStore(EngineConfig(llama_folder, "float32", "cpu", 1 << 30, threads=1))
    monkeypatch.setattr(group_place, "PagedKvCache", Mock(side_effect=MemoryError))
    with pytest.raises(ModelError, match=r"not enough memory for a KV cache of .*: lower .*--kv-cache"):
        await EngineThread.load_part(store, GroupPlace(Shard(), 1), 4, 0, ComputeThreads())


async def test_memory_that_cannot_be_had_for_swapped_kv_is_one_sentence(
    llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = WeightStore(EngineConfig(llama_folder, "float32", "cpu", 1 << 30, threads=1))
    monkeypatch.setattr(engine_thread, "HostSwap", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(ModelError, match=r"not enough memory for 8 blocks of swapped KV.*: lower"):
        await EngineThread.load_part(store, GroupPlace(Shard(), 1), 4, 8, ComputeThreads())
