"""CUDA devices and host KV caches for other packages: counts devices, makes one current, and makes a cache."""

from __future__ import annotations

import sys

import torch

from spotwise.engine.kv.cache import KvGeometry, PagedKvCache


def cuda_devices() -> int:
    """Return the number of CUDA devices that torch sees."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def make_current(device: torch.device) -> None:
    """Make a CUDA device and its context current in the calling thread."""
    torch.cuda.set_device(device)
    torch.cuda.synchronize(device)  # a thread's first CUDA call makes the context current


def host_kv_cache(geometry: KvGeometry, num_blocks: int, block_size: int) -> PagedKvCache:
    """Return a bfloat16 KV cache in host memory."""
    return PagedKvCache(geometry, num_blocks, block_size, torch.bfloat16, torch.device("cpu"))


if __name__ == "__main__":
    sys.stdout.write(f"{cuda_devices()}\n")
