"""Memory for weights, private to this process; `shared_weights.py` has memory that processes share."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

import torch

Fill = Callable[[torch.Tensor], object]


class WeightMemory:
    """Memory for weights that is private to this process; the base of memory that processes share."""

    def place(self, name: str, elements: int, dtype: torch.dtype, fill: Fill) -> torch.Tensor:
        """Return `[elements]`, read-only; `fill` computes them unless the memory holds them already."""
        tensor = torch.empty(elements, dtype=dtype)
        fill(tensor)
        return tensor

    def share(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return an unpacked weight, from shared memory if possible."""
        return tensor

    def drop(self, prefix: str) -> None:
        """Release the weights placed last whose names begin with `prefix`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Complete the memory, or discard it after an error."""


#: The one instance of private memory, which has no state.
PRIVATE = WeightMemory()
