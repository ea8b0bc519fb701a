"""Matching, flat and on two levels."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.core.migration.mapping.matching import Gains, bundle, fill_columns, match_groups, most_gained


def table(*rows: list[int]) -> Gains:
    return np.array(rows, dtype=np.int64)


@st.composite
def tables(draw: st.DrawFn, most_rows: int = 6) -> Gains:
    rows = draw(st.integers(1, most_rows))
    columns = draw(st.integers(1, rows))
    entry = st.integers(0, 3)  # few values, so that many matchings are as good as one another
    return np.array(draw(st.lists(st.lists(entry, min_size=columns, max_size=columns), min_size=rows, max_size=rows)))


def best_by_trying(gains: Gains) -> int:
    columns = range(gains.shape[1])
    return max(
        sum(int(gains[row, column]) for row, column in zip(rows, columns, strict=True))
        for rows in permutations(range(gains.shape[0]), len(columns))
    )


class TestFlat:
    """Rows for columns."""

    @settings(max_examples=60)
    @given(tables())
    def test_no_other_choice_gains_more(self, gains: Gains) -> None:
        """All are tried; no row is used twice."""
        rows = fill_columns(gains)
        assert len(set(rows)) == gains.shape[1]
        assert gains[rows, range(gains.shape[1])].sum() == best_by_trying(gains) == most_gained(gains)

    def test_of_equals_the_earlier_is_used(self) -> None:
        """Of equal rows the earlier is used and the later is idle, also after an exchange with a third."""
        assert sorted(fill_columns(table([0, 0], [0, 0], [0, 0], [0, 0]))) == [0, 1]
        assert fill_columns(table([5, 0], [0, 7], [5, 0], [0, 7])) == [0, 1]
        assert fill_columns(table([2, 0, 1], [0, 0, 3], [2, 0, 3], [3, 1, 0])) == [3, 0, 1]

    @settings(max_examples=60)
    @given(tables())
    def test_no_idle_row_is_as_good_as_a_later_one_that_is_used(self, gains: Gains) -> None:
        rows = fill_columns(gains)
        for idle in set(range(gains.shape[0])) - set(rows):
            assert all(gains[idle, column] != gains[row, column] for column, row in enumerate(rows) if row > idle)

    def test_too_few_rows_are_refused(self) -> None:
        with pytest.raises(ValueError, match="give fewer columns"):
            fill_columns(table([1, 2]))


@st.composite
def grouped(draw: st.DrawFn) -> tuple[Gains, list[list[int]], list[list[int]]]:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    used = draw(st.permutations(sizes))[: draw(st.integers(1, len(sizes)))]
    lengths = [draw(st.integers(1, size)) for size in used]
    devices, positions = sum(sizes), sum(lengths)
    entries = st.lists(st.integers(0, 4), min_size=positions, max_size=positions)
    gains = np.array(draw(st.lists(entries, min_size=devices, max_size=devices)), dtype=np.int64)
    columns = draw(st.permutations(range(positions)))
    instances = [list(range(sum(sizes[:index]), sum(sizes[: index + 1]))) for index in range(len(sizes))]
    groups = [columns[sum(lengths[:index]) : sum(lengths[: index + 1])] for index in range(len(lengths))]
    return gains, instances, groups


class TestTwoLevels:
    """Instances for groups, and devices for positions."""

    @settings(max_examples=60)
    @given(grouped())
    def test_no_other_choice_for_these_groups_gains_more(
        self, case: tuple[Gains, list[list[int]], list[list[int]]]
    ) -> None:
        gains, instances, groups = case
        best = max(
            sum(best_by_trying(gains[np.ix_(rows, columns)]) for rows, columns in zip(chosen, groups, strict=True))
            for chosen in permutations(instances, len(groups))
            if all(len(rows) >= len(columns) for rows, columns in zip(chosen, groups, strict=True))
        )
        gained, rows_of = match_groups(gains, instances, groups)
        assert gained == best == sum(int(gains[row, column]) for column, row in rows_of.items())
        assert sorted(rows_of) == sorted(column for columns in groups for column in columns)
        assert len(set(rows_of.values())) == len(rows_of)
        owner = {row: index for index, rows in enumerate(instances) for row in rows}
        used = [{owner[rows_of[column]] for column in columns} for columns in groups]
        assert all(len(owners) == 1 for owners in used)
        assert len(set.union(*used)) == len(groups)

    def test_a_group_goes_where_it_has_room(self) -> None:
        """A group is matched to an instance with enough devices, even if a smaller one gains more."""
        gains = table([9, 9], [0, 0], [0, 0])
        assert match_groups(gains, [[0], [1, 2]], [[0, 1]])[0] == 0

    @pytest.mark.parametrize("row", [0, 1])
    @pytest.mark.parametrize("column", [0, 1])
    def test_instances_that_differ_in_one_entry_are_distinguished(self, row: int, column: int) -> None:
        gains = table([1, 1], [1, 1], [1, 1], [1, 1])
        gains[2 + row, column] = 5
        gained, rows_of = match_groups(gains, [[0, 1], [2, 3]], [[0, 1]])
        assert gained == 6
        assert rows_of == {column: 2 + row, 1 - column: 3 - row}

    def test_no_instance_with_room_is_an_error(self) -> None:
        """Rather than a position without a device."""
        with pytest.raises(ValueError, match="infeasible"):
            match_groups(table([1, 1], [1, 1]), [[0], [1]], [[0, 1]])


class TestBundles:
    """The best assignment of bundles together."""

    def test_bundles_that_gain_on_the_same_instance_come_together(self) -> None:
        gains = table([4, 0, 0, 0], [0, 0, 4, 0], [0, 4, 0, 0], [0, 0, 0, 4])
        assert bundle(gains, [[0, 1], [2, 3]], [[0], [1], [2], [3]]) == ((0, 2), (1, 3))

    def test_there_must_be_room_for_whole_ones(self) -> None:
        """Three devices cannot hold two bundles of two."""
        assert bundle(np.ones((5, 4), dtype=np.int64), [[0, 1, 2], [3], [4]], [[0, 1], [2, 3]]) is None
