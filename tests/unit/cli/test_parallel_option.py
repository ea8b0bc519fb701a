"""`--parallel` says how many workers there are, and of how many processes."""

from __future__ import annotations

import pytest

from spotwise.cli.errors import OptionError
from spotwise.cli.launch.worker_options import PoolShapes, parse_parallel
from spotwise.core.parallel.config import ParallelConfig


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("1,2,3", PoolShapes(mixed=ParallelConfig(1, 2, 3))),
        ("1,1,3+1,2,1", PoolShapes(prompt=ParallelConfig(1, 1, 3), token=ParallelConfig(1, 2, 1))),
        ("2+4,1,3", PoolShapes(prompt=ParallelConfig(2, 1, 3), token=ParallelConfig(4, 1, 3))),
        (" 1, 2, 1 ", PoolShapes(mixed=ParallelConfig(1, 2, 1))),
    ],
)
def test_pools_have_shapes(text: str, shapes: PoolShapes) -> None:
    """Both phases together, apart with a shape each, apart with one shape."""
    assert parse_parallel(text) == shapes


@pytest.mark.parametrize("text", ["", "2", "1,2", "0,1,1", "1,1,3,8", "1,1,3+1", "a,b,c", "1,1,3+1,2,1+1,1,1"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    """A batch size too: each worker has its own setting."""
    with pytest.raises(OptionError, match=r"--parallel: .*for instance 1,2,3"):
        parse_parallel(text)
