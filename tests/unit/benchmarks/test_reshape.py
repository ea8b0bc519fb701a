"""The walk of `spotwise bench reshape` through pairs of shapes."""

from __future__ import annotations

import itertools

import pytest

from spotwise.benchmarks.reshape import all_pairs, parse_walk
from spotwise.cli.errors import OptionError


@pytest.mark.parametrize("count", [2, 3, 6])
def test_a_walk_takes_every_ordered_pair_once(count: int) -> None:
    """And ends where it began, so that the mesh needs no change beside those that are measured."""
    shapes = [(number, 1) for number in range(1, count + 1)]
    walk = all_pairs(shapes)
    assert sorted(itertools.pairwise(walk)) == sorted(itertools.permutations(shapes, 2))
    assert walk[0] == walk[-1]


def test_pairs_are_read_in_their_order() -> None:
    assert parse_walk("1x1>2x1, 2x1>1x3") == [(1, 1), (2, 1), (1, 3)]
    assert len(parse_walk("all")) == 31


@pytest.mark.parametrize("text", ["", "1x1", "1x1>1x1", "1x1>2", "1x1>2x1,1x1>2x1", "1x0>1x1"])
def test_other_pairs_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--pairs"):
        parse_walk(text)
