"""A process's place in a group: what it computes of a layer, and how it gets the rest.

Heads are cut evenly, since every shard has as many; all other columns at whole panels (`core.parallel.model_partition`). The
place outlives the groups that it is part of: each group joins with an exchange of its own.
"""

from __future__ import annotations

import ctypes

import torch

from spotwise.core.parallel.model_partition import column_bounds
from spotwise.engine.native.exchange import Exchange, GroupBrokenError
from spotwise.engine.native.library import Gathering, Kernels, StageFields


class Shard:
    """Shard `index` of the `count` shards of stage `stage`; used by one thread."""

    def __init__(self, index: int = 0, count: int = 1, stage: int = 0) -> None:
        self.index, self.count, self.stage = index, count, stage
        self._exchange: Exchange | None = None
        self._fields = StageFields(None, stage * count, count)
        self._kept: list[object] = []

    @property
    def is_whole(self) -> bool:
        """Whether this is the only shard of its stage."""
        return self.count == 1

    def join(self, exchange: Exchange) -> None:
        """Be part of a group whose members are numbered by stage, then shard; leaves the group before."""
        self._exchange = exchange
        self._fields.exchange = exchange.handle

    def leave(self) -> None:
        """Be part of no group: gathers and messages fail. Idempotent."""
        self._exchange = None
        self._fields.exchange = None

    def head_bounds(self, size: int) -> tuple[int, ...]:
        """Return where each shard's part begins, and last `size`, of heads or of columns by head."""
        return tuple(size * index // self.count for index in range(self.count + 1))

    def column_bounds(self, width: int) -> tuple[int, ...]:
        """Return where each shard's columns of any other matrix begin, and last `width`."""
        return column_bounds(width, self.count)

    def heads(self, size: int) -> slice:
        """Return this shard's part of heads, or of columns by head."""
        return self._own(self.head_bounds(size))

    def columns(self, width: int) -> slice:
        """Return this shard's columns of any other matrix."""
        return self._own(self.column_bounds(width))

    def gather(self, matrix: torch.Tensor, bounds: tuple[int, ...], root: int | None = None) -> None:
        """Complete a contiguous matrix `[..., width]` in place, at shard `root` or at all; raises `GroupBrokenError`."""
        if not self.is_whole:
            self._joined().gather(self._fields, matrix, bounds, root)

    def send(self, stage: int, data: torch.Tensor) -> None:
        """Send a contiguous tensor to this shard of another stage; raises `GroupBrokenError`."""
        self._joined().send(stage * self.count + self.index, data)

    def receive(self, stage: int, into: torch.Tensor) -> None:
        """Receive a contiguous tensor from this shard of another stage; raises `GroupBrokenError`."""
        self._joined().receive(stage * self.count + self.index, into)

    def layer_gathering(
        self, kernels: Kernels, attended: int, hidden: int, inner: int, dtype: torch.dtype
    ) -> int | None:
        """Return the address of the native layer's `Gathering`, for matrices of these widths; `None`: one shard."""
        if self.is_whole:
            return None
        cuts = (self.head_bounds(attended), self.column_bounds(hidden), self.column_bounds(inner))
        arrays = [(ctypes.c_int64 * len(cut))(*(bound * dtype.itemsize for bound in cut)) for cut in cuts]
        gather = ctypes.cast(kernels.exchange_gather, ctypes.c_void_p).value
        fields = Gathering(gather, ctypes.addressof(self._fields), *map(ctypes.addressof, arrays))
        self._kept += [fields, *arrays]
        return ctypes.addressof(fields)

    def error(self) -> GroupBrokenError:
        """Return the error of a call that a broken group ended."""
        return GroupBrokenError("this process is in no group") if self._exchange is None else self._exchange.error()

    def _joined(self) -> Exchange:
        if self._exchange is None:
            raise self.error()
        return self._exchange

    def _own(self, bounds: tuple[int, ...]) -> slice:
        return slice(bounds[self.index], bounds[self.index + 1])


#: The only shard of a layer that is not cut.
WHOLE = Shard()
