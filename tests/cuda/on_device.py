"""Engines and caches on a GPU."""

from __future__ import annotations

from pathlib import Path

import torch

from spotwise.engine.engine import Engine
from spotwise.engine.kv.cache import KvGeometry, PagedKvCache
from spotwise.engine.model.loading import EngineConfig

GEOMETRY = KvGeometry(num_layers=6, kv_heads=4, key_dim=64, value_dim=64)
BLOCKS = 200


def load(
    folder: Path,
    device: torch.device,
    dtype: str = "float32",
    *,
    decode_graphs: bool = True,
    adapters: tuple[tuple[str, Path], ...] = (),
) -> Engine:
    """Load on a GPU, with products in full precision, so that tokens can be compared."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    config = EngineConfig(folder, dtype, str(device), 64 << 20, decode_graphs=decode_graphs, adapters=adapters)
    return Engine.load(config)


def filled(device: torch.device, seed: int) -> PagedKvCache:
    """A cache of random numbers."""
    cache = PagedKvCache(GEOMETRY, BLOCKS, 16, torch.bfloat16, device, scratch=True)
    generator = torch.Generator().manual_seed(seed)
    cache.keys.copy_(torch.randn(cache.keys.shape, generator=generator))
    cache.values.copy_(torch.randn(cache.values.shape, generator=generator))
    torch.cuda.synchronize(device)
    return cache
