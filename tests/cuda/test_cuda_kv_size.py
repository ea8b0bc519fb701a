"""A KV cache whose size is measured on a GPU: a share of what is free there, and no more than can be used."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from spotwise.core.kv.size import CUDA_SHARE
from spotwise.engine.engine import Engine
from spotwise.engine.model.kv_size import AutoKvSize
from spotwise.engine.model.loading import EngineConfig
from tests.unit.engine.tiny_models import llama_config, save_model

pytestmark = pytest.mark.cuda
#: At most, with the logits of all sequences, the model, and what the driver rounds up.
WORKSPACE_BYTES = 2 << 30


def load(folder: Path, device: torch.device, max_num_seqs: int, workers: int = 1) -> Engine:
    """Load with a measured size; what is free of the host's memory counts nothing."""
    auto = AutoKvSize(max_num_seqs, workers, lambda: 0)
    return Engine.load(EngineConfig(folder, "bfloat16", str(device), auto, decode_graphs=False))


def test_it_is_no_larger_than_the_model_can_use(tmp_path: Path, device: torch.device) -> None:
    """512 tokens of context, 16 a block, whatever the card has."""
    folder = save_model(llama_config(), tmp_path / "llama")
    assert load(folder, device, max_num_seqs=4).num_blocks == 4 * 512 // 16


@pytest.mark.parametrize("workers", [1, 2])
def test_it_is_a_share_of_what_is_free_and_leaves_a_workspace(
    tmp_path: Path, device: torch.device, workers: int
) -> None:
    """A model that could use any memory gets nine tenths of what is free, divided by the workers, less a workspace of each."""
    folder = save_model(llama_config(max_position_embeddings=1 << 20), tmp_path / "llama")
    gc.collect()
    torch.cuda.empty_cache()
    free_bytes, _ = torch.cuda.mem_get_info(device)
    engine = load(folder, device, max_num_seqs=1 << 12, workers=workers)
    left_bytes, _ = torch.cuda.mem_get_info(device)
    share_bytes = free_bytes * CUDA_SHARE / workers
    cache_bytes = engine.num_blocks * engine.block_size * engine.kv_bytes_per_token
    assert share_bytes - WORKSPACE_BYTES < cache_bytes < share_bytes
    assert left_bytes > free_bytes - share_bytes
