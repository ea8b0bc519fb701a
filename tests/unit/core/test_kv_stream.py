"""Tests of the KV stream: the order in which a prompt's KV cells are sent."""

from __future__ import annotations

import pytest

from spotwise.core.kv.stream import KvChunk, KvStream


def chunks(stream: KvStream) -> list[tuple[int, int, int, int]]:
    """All that may leave now, as (first layer, layers, first block, blocks)."""
    found = []
    while (chunk := stream.next_chunk()) is not None:
        found.append((chunk.first_layer, chunk.num_layers, chunk.first_block, chunk.num_blocks))
    return found


def test_nothing_leaves_before_it_is_written() -> None:
    stream = KvStream(4, 3, cell_bytes=10, chunk_bytes=1000)
    assert not stream.has_chunk
    assert stream.next_chunk() is None
    assert not stream.is_written


def test_a_block_is_written_when_its_last_layer_is() -> None:
    """Blocks of which some layers are computed do not count."""
    stream = KvStream(4, 3, cell_bytes=10, chunk_bytes=1000)
    stream.wrote(3, 3)
    assert stream.written_blocks == 0
    stream.wrote(4, 2)
    assert stream.written_blocks == 2


def test_a_prompt_that_is_written_leaves_in_as_few_chunks_as_fit() -> None:
    """Groups of layers of all blocks; 60 bytes are two layers of three blocks."""
    stream = KvStream(5, 3, cell_bytes=10, chunk_bytes=60)
    stream.wrote(5, 3)
    assert stream.is_written
    assert chunks(stream) == [(0, 2, 0, 3), (2, 2, 0, 3), (4, 1, 0, 3)]
    assert not stream.has_chunk


def test_a_layer_too_large_for_a_chunk_leaves_in_several() -> None:
    """Ranges of its blocks; a cell larger than a chunk goes alone."""
    stream = KvStream(2, 5, cell_bytes=10, chunk_bytes=20)
    stream.wrote(2, 5)
    assert chunks(stream) == [(layer, 1, *part) for layer in (0, 1) for part in ((0, 2), (2, 2), (4, 1))]
    huge = KvStream(1, 2, cell_bytes=10, chunk_bytes=1)
    huge.wrote(1, 2)
    assert chunks(huge) == [(0, 1, 0, 1), (0, 1, 1, 1)]


def test_layers_leave_as_they_are_written() -> None:
    """Each layer leaves once, however often it is reported."""
    stream = KvStream(3, 2, cell_bytes=10, chunk_bytes=1000)
    stream.wrote(1, 2)
    assert chunks(stream) == [(0, 1, 0, 2)]
    stream.wrote(1, 2)
    assert chunks(stream) == []
    stream.wrote(3, 2)
    assert chunks(stream) == [(1, 2, 0, 2)]


def test_a_small_chunk_waits_for_the_next_layer_of_its_blocks() -> None:
    """Until it is large enough, or no further layer has those blocks to bring."""
    stream = KvStream(5, 2, cell_bytes=10, chunk_bytes=1000, least_bytes=40)
    stream.wrote(1, 2)
    assert chunks(stream) == []
    stream.wrote(2, 2)
    assert chunks(stream) == [(0, 2, 0, 2)]
    stream.wrote(4, 2)
    assert chunks(stream) == [(2, 2, 0, 2)]
    stream.wrote(5, 2)
    assert chunks(stream) == [(4, 1, 0, 2)]


def test_a_chunk_that_can_hold_no_further_layer_does_not_wait() -> None:
    stream = KvStream(4, 2, cell_bytes=10, chunk_bytes=20, least_bytes=1000)
    stream.wrote(1, 2)
    assert chunks(stream) == [(0, 1, 0, 2)]


def test_blocks_of_an_earlier_part_leave_while_a_later_one_is_computed() -> None:
    """The first part's remaining blocks are not held up by the second part's first layers."""
    stream = KvStream(3, 4, cell_bytes=10, chunk_bytes=1000, least_bytes=50)
    stream.wrote(3, 2)
    stream.wrote(1, 4)
    assert chunks(stream) == [(1, 2, 0, 2), (0, 1, 0, 4)]
    stream.wrote(3, 4)
    assert chunks(stream) == [(1, 2, 2, 2)]
    assert stream.is_written


def test_less_than_was_reported_before_changes_nothing() -> None:
    stream = KvStream(2, 3, cell_bytes=10, chunk_bytes=1000)
    stream.wrote(2, 3)
    stream.wrote(2, 1)
    assert stream.is_written


@pytest.mark.parametrize(("layers", "blocks"), [(4, 1), (1, 3), (-1, 1), (1, -1)])
def test_what_does_not_exist_is_not_written(layers: int, blocks: int) -> None:
    with pytest.raises(ValueError, match="of 3 and 2"):
        KvStream(3, 2, 10, 100).wrote(layers, blocks)


def test_a_hand_off_has_layers_blocks_and_bytes() -> None:
    """None of these can be 0."""
    for sizes in ((0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0)):
        with pytest.raises(ValueError, match="a hand-off has"):
            KvStream(*sizes)


def test_a_chunk_counts_its_cells() -> None:
    assert KvChunk(1, 3, 2, 4).cells == 12


def test_a_stream_grows_at_its_end() -> None:
    """What was cut stays so; the new blocks leave once they are written."""
    stream = KvStream(2, 2, 10, 1000)
    stream.wrote(2, 1)
    assert stream.next_chunk() == KvChunk(0, 2, 0, 1)
    stream.grow(3)
    assert not stream.is_written
    stream.wrote(2, 3)
    assert stream.next_chunk() == KvChunk(0, 2, 1, 2)
    assert stream.is_written
    with pytest.raises(ValueError, match="2 blocks, of 3"):
        stream.grow(2)
