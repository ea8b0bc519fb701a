"""Zeros that take address space, and memory page by page as they are written."""

from __future__ import annotations

import contextlib
import math
import mmap
import sys

import torch

# Of Linux; Python 3.11 does not name it. Elsewhere such mappings are not reserved anyway.
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0
# Of Linux; Python does not name it.
_MADV_POPULATE_WRITE = 23


class ReservedMemory:
    """Zeros on the CPU that may exceed its memory, as long as what is written and not given back does not.

    torch.zeros writes every page; an anonymous mapping is zero, also where it is only read. With huge pages a write would
    commit 2 MiB, and in a KV cache the first block of each head of each layer lies apart.

    Args:
        elements: numbers.
        dtype: format of the numbers.
        offset: bytes from the beginning of a page to the first number.

    Attributes:
        tensor: all numbers, `[elements]`; keeps the memory alive.
    """

    def __init__(self, elements: int, dtype: torch.dtype, offset: int = 0) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._pages = mmap.mmap(-1, max(1, offset + elements * dtype.itemsize), flags=flags)
        with contextlib.suppress(OSError):  # a kernel without huge pages
            self._pages.madvise(mmap.MADV_NOHUGEPAGE)
        self._offset = offset
        self.tensor = torch.frombuffer(self._pages, dtype=dtype, count=elements, offset=offset)

    def bytes(self, start: int, stop: int) -> memoryview:
        """Return bytes `start` to `stop` of the numbers, writable."""
        return memoryview(self._pages)[self._offset + start : self._offset + stop]

    def populate(self, start: int, stop: int) -> None:
        """Take the memory of these bytes at once, which costs less than page by page as they are written; what they hold stays.
        Without effect elsewhere than on Linux 5.14 and later.
        """
        if sys.platform != "linux":
            return
        first = (self._offset + start) // mmap.PAGESIZE * mmap.PAGESIZE
        with contextlib.suppress(OSError):
            self._pages.madvise(_MADV_POPULATE_WRITE, first, self._offset + stop - first)

    def give_back(self, start: int, stop: int) -> None:
        """Return the memory of all pages that lie within these bytes of the numbers; they are zero again."""
        end = len(self._pages)
        first = 0 if start == 0 else -(-(self._offset + start) // mmap.PAGESIZE) * mmap.PAGESIZE
        last = self._offset + stop
        if last < end:  # what follows the numbers in their last page is unused
            last -= last % mmap.PAGESIZE
        if first < last:
            self._pages.madvise(mmap.MADV_DONTNEED, first, last - first)


def reserved_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return zeros of this shape in memory of their own."""
    return ReservedMemory(math.prod(shape), dtype).tensor.view(shape)
