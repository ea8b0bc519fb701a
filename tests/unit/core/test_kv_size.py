"""The default size of a KV cache: a share of what is free, divided by workers, capped by what can be used."""

from __future__ import annotations

import pytest

from spotwise.core.kv.size import CPU_SHARE, CUDA_SHARE, auto_kv_bytes, usable_kv_bytes

GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "share", "workers", "workspace", "most", "expected"),
    [
        (20 * GIB, CPU_SHARE, 1, 0, 1 << 50, 5 * GIB),
        (20 * GIB, CPU_SHARE, 2, 0, 1 << 50, 5 * GIB // 2),
        (20 * GIB, CPU_SHARE, 2, 0, GIB, GIB),
        (60 * GIB, CUDA_SHARE, 1, GIB, 1 << 50, 53 * GIB),
        (GIB, CUDA_SHARE, 1, GIB, 1 << 50, 0),
        (0, CPU_SHARE, 1, 0, 1 << 50, 0),
    ],
    ids=["alone", "two share", "what the model can use", "a GPU", "no room beside the workspace", "nothing free"],
)
def test_a_cache_takes_its_share(
    free: int, share: float, workers: int, workspace: int, most: int, expected: int
) -> None:
    assert auto_kv_bytes(free, share, workers, workspace, most) == expected


def test_workers_that_start_together_do_not_take_the_same_memory() -> None:
    """Each measures what is free while none of the others has taken any: together they have the share."""
    for workers in range(1, 9):
        together = workers * auto_kv_bytes(24 * GIB, CPU_SHARE, workers, 0, 1 << 50)
        assert together <= CPU_SHARE * 24 * GIB < together + workers


def test_what_can_be_used_is_whole_blocks_of_whole_contexts() -> None:
    assert usable_kv_bytes(context_length=100, max_num_seqs=3, block_size=16, token_bytes=10) == 3 * 112 * 10
