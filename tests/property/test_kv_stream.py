"""Whatever is written in which order, each cell leaves once, and none before it was written."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.kv.stream import KvStream

Cell = tuple[int, int]


@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(1, 40),
    st.integers(0, 40),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 3)), max_size=30),
)
def test_each_cell_leaves_once_after_it_was_written(
    layers: int, blocks: int, chunk_bytes: int, least_bytes: int, steps: list[tuple[int, int, int]]
) -> None:
    """Progress may be reported in any order, late or twice, with chunks taken in between.

    At the end each cell has left once.
    """
    stream = KvStream(layers, blocks, 5, chunk_bytes, least_bytes)
    written: set[Cell] = set()
    left: Counter[Cell] = Counter()

    def take(most: int) -> None:
        for _ in range(most):
            has_chunk = stream.has_chunk
            chunk = stream.next_chunk()
            assert has_chunk == (chunk is not None)
            if chunk is None:
                return
            assert chunk.cells * 5 <= max(chunk_bytes, 5)
            cells = {
                (chunk.first_layer + layer, chunk.first_block + block)
                for layer in range(chunk.num_layers)
                for block in range(chunk.num_blocks)
            }
            assert cells <= written
            left.update(cells)

    for step_layers, step_blocks, taken in steps:
        upto = min(step_layers, layers), min(step_blocks, blocks)
        stream.wrote(*upto)
        written |= {(layer, block) for layer in range(upto[0]) for block in range(upto[1])}
        take(taken)
    stream.wrote(layers, blocks)
    written = {(layer, block) for layer in range(layers) for block in range(blocks)}
    assert stream.is_written
    take(layers * blocks + 1)
    assert left == Counter(written)
