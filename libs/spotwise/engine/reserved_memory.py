"""Zeros that take address space, and memory page by page as they are written."""

from __future__ import annotations

import contextlib
import math
import mmap
import sys

import torch

# Of Linux; Python 3.11 does not name it. Elsewhere such mappings are not reserved anyway.
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0


def reserved_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return zeros on the CPU that may exceed its memory, as long as what is written does not.

    torch.zeros writes every page; an anonymous mapping is zero, also where it is only read. With huge pages a write would
    commit 2 MiB, and in a KV cache the first block of each head of each layer lies apart.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    pages = mmap.mmap(-1, max(1, math.prod(shape) * dtype.itemsize), flags=flags)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype, count=math.prod(shape)).view(shape)
