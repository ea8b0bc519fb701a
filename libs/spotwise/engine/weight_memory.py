"""Where weights lie that were packed or are used as they are; here, in this process's own memory.

Law: a weight is the same wherever it lies. `shared_weights.py` has memory that processes share.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import TracebackType
from typing import Self

import torch

Fill = Callable[[torch.Tensor], object]


class WeightMemory:
    """Memory of this process alone."""

    def place(self, name: str, elements: int, dtype: torch.dtype, fill: Fill) -> torch.Tensor:
        """Return `[elements]`, not to be written; `fill` computes them where they are not there yet."""
        tensor = torch.empty(elements, dtype=dtype)
        fill(tensor)
        return tensor

    def share(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a weight that is used as it is, from where it is best kept."""
        return tensor

    def drop(self, prefix: str) -> None:
        """Take back the last weights placed, whose names begin so: nobody uses them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the placing of weights: in the end they are all there, or none are."""


#: Keeps nothing of its own, so that one serves all.
PRIVATE = WeightMemory()


def give_back_freed_memory() -> None:
    """Let the system have what was freed: the C library keeps the room of the weights that were given up, for the next ones."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # it is glibc
        trim(0)
