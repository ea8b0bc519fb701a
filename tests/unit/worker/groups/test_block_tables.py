"""Steps name only what is new in block tables, and a device has the same tables."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.worker.groups.group_engine import BlockTables

NAMES = st.sampled_from(["a", "b", "d"])
TABLES = st.lists(st.integers(0, 9), max_size=5).map(tuple)


@given(st.lists(st.tuples(NAMES, TABLES, st.booleans()), max_size=30))
def test_the_changes_give_the_tables(events: list[tuple[str, tuple[int, ...], bool]]) -> None:
    """Whatever tables follow one another: grown, replaced, shrunk, forgotten."""
    tables = BlockTables()
    followed: dict[str, tuple[int, ...]] = {}
    for name, table, is_dropped in events:
        if is_dropped:
            tables.drop(name)
            followed.pop(name, None)
            continue
        (row,) = tables.rows(Batch((BatchRow(name, 0, 1, table),)))
        followed[name] = followed.get(name, ())[: row.kept_blocks] + row.new_block_ids
        assert followed[name] == table


def test_a_decode_names_no_block_twice() -> None:
    """A table that grew by one is one number."""
    tables = BlockTables()
    tables.rows(Batch((BatchRow("a", 0, 32, (7, 3)),)))
    (same,) = tables.rows(Batch((BatchRow("a", 33, 1, (7, 3, 5)),)))
    assert (same.kept_blocks, same.new_block_ids) == (2, (5,))
    (again,) = tables.rows(Batch((BatchRow("a", 34, 1, (7, 3, 5)),)))
    assert (again.kept_blocks, again.new_block_ids) == (3, ())
