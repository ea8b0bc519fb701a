"""A member's part: devices that gathers cannot read are refused before anything is loaded, and so is what memory lacks."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from spotwise.engine.engine import Engine
from spotwise.engine.model.errors import ModelError
from spotwise.engine.model.kv_size import AutoKvSize
from spotwise.engine.model.loading import EngineConfig
from spotwise.engine.native.shard import Shard
from spotwise.engine.parts import group_place
from spotwise.engine.parts.group_place import GroupPlace
from spotwise.engine.parts.part_sizes import PartSizes
from spotwise.engine.parts.weight_store import WeightStore
from spotwise.worker import engine_thread
from spotwise.worker.engine_thread import EngineThread


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
        await EngineThread.load_part(store, GroupPlace(Shard(), 1), 4, 0, 0)


async def test_memory_that_cannot_be_had_for_swapped_kv_is_one_sentence(
    llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = WeightStore(EngineConfig(llama_folder, "float32", "cpu", 1 << 30, threads=1))
    monkeypatch.setattr(engine_thread, "HostSwap", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(ModelError, match=r"not enough memory for 8 blocks of swapped KV.*: lower"):
        await EngineThread.load_part(store, GroupPlace(Shard(), 1), 4, 8, 0)
