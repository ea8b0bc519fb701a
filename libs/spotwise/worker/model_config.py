"""Configures the loading of a worker's model."""

from __future__ import annotations

from spotwise.engine.model.kv_size import AutoKvSize
from spotwise.engine.model.loading import EngineConfig
from spotwise.worker.machine import free_memory_bytes
from spotwise.worker.settings import WorkerSettings


def engine_config(settings: WorkerSettings) -> EngineConfig:
    """Return how a worker's process loads its model."""
    return EngineConfig(
        model_dir=settings.model_dir,
        dtype=settings.dtype,
        device=settings.device,
        kv_cache_bytes=AutoKvSize(settings.max_num_seqs, settings.local_workers, free_memory_bytes)
        if settings.kv_cache_bytes == "auto"
        else settings.kv_cache_bytes,
        block_size=settings.kv_block_size,
        threads=settings.threads,
        decode_graphs=settings.decode_graphs,
        shared_weights=settings.shared_weights,
        storage_bytes_per_s=settings.storage_bytes_per_s,
        adapters=settings.adapter_folders,
    )
