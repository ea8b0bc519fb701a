"""`--parallel` says how many workers there are, and of how many processes."""

from __future__ import annotations

import pytest

from spotwise.cli.errors import OptionError
from spotwise.cli.launch.options import GroupShape, WorkerPools
from spotwise.cli.launch.worker_options import parse_parallel


def pools(prompt: int = 0, token: int = 0, mixed: int = 0, **shapes: GroupShape) -> WorkerPools:
    return WorkerPools.model_validate(
        {"prompt_workers": prompt, "token_workers": token, "mixed_workers": mixed, **shapes}
    )


def shape(stages: int, shards: int) -> GroupShape:
    return GroupShape(stages=stages, shards=shards)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,2,3", pools(mixed=1, mixed_shape=shape(2, 3))),
        ("1,1,3+1,2,1", pools(prompt=1, token=1, prompt_shape=shape(1, 3), token_shape=shape(2, 1))),
        ("2+4,1,3", pools(prompt=2, token=4, prompt_shape=shape(1, 3), token_shape=shape(1, 3))),
        (" 1, 2, 1 ", pools(mixed=1, mixed_shape=shape(2, 1))),
    ],
)
def test_pools_have_shapes(text: str, expected: WorkerPools) -> None:
    assert parse_parallel(text) == expected


@pytest.mark.parametrize("text", ["", "2", "1,2", "0,1,1", "1,1,3,8", "1,1,3+1", "a,b,c", "1,1,3+1,2,1+1,1,1"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    """A batch size too: each worker has its own setting."""
    with pytest.raises(OptionError, match=r"--parallel: .*for instance 1,2,3"):
        parse_parallel(text)
