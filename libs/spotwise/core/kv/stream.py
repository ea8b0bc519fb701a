"""Tracks the written KV of a prompt and chooses the chunk to send next (layer-wise hand-off).

Law: a hand-off is a grid of cells, a layer and a block each; each cell is sent once, after it was written.
A chunk has the same blocks of consecutive layers, at most `chunk_bytes` unless it is a single cell.
A chunk below `least_bytes` waits for the next layer where that is still being computed.
Source: layer-wise transfer, Splitwise, section 4.3; here blocks of earlier prompt chunks leave while later ones are computed.
"""

from __future__ import annotations

from spotwise.core.values import value


@value
class KvChunk:
    """A rectangle of cells; blocks are counted from the prompt's first."""

    first_layer: int
    num_layers: int
    first_block: int
    num_blocks: int

    @property
    def cells(self) -> int:
        """Layers times blocks."""
        return self.num_layers * self.num_blocks


class KvStream:
    """The cells of one hand-off, each of `cell_bytes`: one block in one layer; a `least_bytes` of 0 never waits."""

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
        """Whether every cell is written."""
        return self.written_blocks == self._num_blocks

    @property
    def written_blocks(self) -> int:
        """First blocks that are written in every layer."""
        return min(self._written)

    @property
    def has_chunk(self) -> bool:
        """Whether a chunk can be sent now."""
        return self._next() is not None

    def grow(self, num_blocks: int) -> None:
        """Add blocks at the end, none of them written; raises `ValueError` for fewer blocks than there are."""
        if num_blocks < self._num_blocks:
            raise ValueError(f"{num_blocks} blocks, of {self._num_blocks}")
        self._num_blocks = num_blocks

    def wrote(self, layers: int, blocks: int) -> None:
        """Note the first `blocks` blocks of the first `layers` layers as written; `ValueError` beyond the grid."""
        if not (0 <= layers <= len(self._written) and 0 <= blocks <= self._num_blocks):
            raise ValueError(f"{layers} layers of {blocks} blocks, of {len(self._written)} and {self._num_blocks}")
        for layer in range(layers):
            self._written[layer] = max(self._written[layer], blocks)

    def next_chunk(self) -> KvChunk | None:
        """Cut the next chunk; `None` where none can be sent now."""
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
        lacks = self._cut[layer], self._written[layer]
        after = layer + 1
        while after < len(self._written) and (self._cut[after], self._written[after]) == lacks:
            after += 1
        return after

    def _grows(self, layer: int, start: int, end: int) -> bool:
        return layer < len(self._written) and self._cut[layer] == start and self._written[layer] < end
