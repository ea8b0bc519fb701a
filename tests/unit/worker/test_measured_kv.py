"""`SPOTWISE_KV_CACHE_BYTES=auto`: what the engine measures its cache by."""

from __future__ import annotations

from pathlib import Path

from spotwise.engine.model.kv_size import AutoKvSize
from spotwise.worker.engine_thread import engine_config
from spotwise.worker.machine import free_memory_bytes
from spotwise.worker.settings import WorkerSettings


def test_a_cache_without_a_size_is_measured_by_sequences_workers_and_free_memory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    settings = WorkerSettings(service_id="w", model_dir=tmp_path, max_num_seqs=7, local_workers=3)
    assert engine_config(settings).kv_cache_bytes == AutoKvSize(7, 3, free_memory_bytes)
