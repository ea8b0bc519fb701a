"""Which KV of a prompt has been written, and which of it may leave next.

Law: a hand-off is a grid of cells, one for each layer and block. A cell is cut into a chunk after it was written, and never a
second time. A chunk is a rectangle: the same blocks of layers that follow one another, earlier layers first. It has about
`chunk_bytes` at most; where the next layer of the same blocks is still being computed it waits for that one until it has
`least_bytes`, because a message that is too small costs more than it carries.

Source: layer-wise transfer, Splitwise section 4.3; blocks that earlier parts of a prompt filled leave while later parts are
computed.

Invariants: whatever is written in which order, the chunks never overlap, never hold what was not written, and hold everything
once all is written; a chunk larger than `chunk_bytes` is a single cell.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvChunk:
    """A rectangle of cells.

    Attributes:
        first_layer: its first layer.
        num_layers: how many it has.
        first_block: its first block, counted from the prompt's first.
        num_blocks: how many it has.
    """

    first_layer: int
    num_layers: int
    first_block: int
    num_blocks: int

    @property
    def cells(self) -> int:
        """How many cells it has."""
        return self.num_layers * self.num_blocks


class KvStream:
    """The cells of one hand-off.

    Args:
        num_layers: of the model.
        num_blocks: of the prompt.
        cell_bytes: of one block in one layer.
        chunk_bytes: of a chunk at most, unless one cell is larger.
        least_bytes: for which a chunk waits while it may still grow; 0 waits for nothing.
    """

    def __init__(
        self, num_layers: int, num_blocks: int, cell_bytes: int, chunk_bytes: int, least_bytes: int = 0
    ) -> None:
        if min(num_layers, num_blocks, cell_bytes, chunk_bytes) < 1:
            raise ValueError("a hand-off has layers, blocks and bytes")
        self._num_blocks = num_blocks
        self._cell_bytes = cell_bytes
        self._chunk_bytes = chunk_bytes
        self._least_bytes = least_bytes
        self._written = [0] * num_layers
        self._cut = [0] * num_layers

    @property
    def is_written(self) -> bool:
        """Whether every cell is."""
        return min(self._written) == self._num_blocks

    @property
    def has_chunk(self) -> bool:
        """Whether something may leave now."""
        return self._next() is not None

    def wrote(self, layers: int, blocks: int) -> None:
        """Note that the first `blocks` blocks are written in the first `layers` layers, as may have been said before.

        Raises:
            ValueError: there are fewer.
        """
        if not (0 <= layers <= len(self._written) and 0 <= blocks <= self._num_blocks):
            raise ValueError(f"{layers} layers of {blocks} blocks, of {len(self._written)} and {self._num_blocks}")
        for layer in range(layers):
            self._written[layer] = max(self._written[layer], blocks)

    def next_chunk(self) -> KvChunk | None:
        """Cut the next chunk; `None` where nothing may leave now."""
        chunk = self._next()
        if chunk is not None:
            for layer in range(chunk.first_layer, chunk.first_layer + chunk.num_layers):
                self._cut[layer] += chunk.num_blocks
        return chunk

    def _next(self) -> KvChunk | None:
        layer = 0
        while layer < len(self._written):
            start, end = self._cut[layer], self._written[layer]
            after = self._end_of_group(layer)
            if start < end:
                blocks = min(end - start, max(1, self._chunk_bytes // self._cell_bytes))
                most = max(1, self._chunk_bytes // (blocks * self._cell_bytes))
                chunk = KvChunk(layer, min(after - layer, most), start, blocks)
                is_small = chunk.cells * self._cell_bytes < self._least_bytes
                if not (is_small and chunk.num_layers < most and self._grows(after, start, end)):
                    return chunk
            layer = after
        return None

    def _end_of_group(self, layer: int) -> int:
        """Return the first layer behind `layer` that does not lack the same blocks."""
        lacks = self._cut[layer], self._written[layer]
        after = layer + 1
        while after < len(self._written) and (self._cut[after], self._written[after]) == lacks:
            after += 1
        return after

    def _grows(self, layer: int, start: int, end: int) -> bool:
        """Tell whether a layer is yet to bring the blocks that a chunk up to it has."""
        return layer < len(self._written) and self._cut[layer] == start and self._written[layer] < end
