"""A `Capture` for CPUs: records operations with their tensors, and replays them on these very tensors.

As with a CUDA graph no Python of the model runs in a replay: a shape, an address or a number that was taken from a tensor's
values or from an iteration stays what it was when it was recorded, and the tokens come out wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        self._operations.append((func, args, kwargs or {}, output))
        return output

    def replay(self) -> None:
        """Run all operations again; their outputs go where they went."""
        for func, args, kwargs, output in self._operations:
            for old, new in zip(tree_leaves(output), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():  # no view, not in place
                    old.copy_(new)


class TapeCapture:
    """Records like `CudaCapture`.

    Attributes:
        replays: how often anything was replayed.
    """

    def __init__(self) -> None:
        self.replays = 0

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        """Warm up, record, and return what replays."""
        run()
        tape = _Tape()
        with tape:
            run()

        def replay() -> None:
            self.replays += 1
            tape.replay()

        return replay
