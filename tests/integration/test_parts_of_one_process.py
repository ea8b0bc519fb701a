"""A process that is in two groups computes both parts at the same time, from weights that it holds once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spotwise.core.weights.inventory import Panels
from spotwise.engine.native.shard import Shard
from spotwise.engine.parts.group_place import GroupPlace
from spotwise.engine.parts.weight_store import WeightStore
from tests.integration.member_processes import GroupProcesses, MemberOnThread, group
from tests.integration.test_groups import alone, assert_same, config, requests, wide_model

ROUNDS = 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_groups_of_the_same_processes_compute_side_by_side(dtype: str, tmp_path: Path) -> None:
    """Of two stores, as of two processes, one is shard 0 of a 1x2 group and stage 1 of a 2x1 group, the other the reverse."""
    settings = config(wide_model("qwen3", tmp_path), dtype)
    expected = alone(settings, requests())
    stores = [WeightStore(settings) for _ in range(2)]
    for store in stores:
        assert store.structure.kernels is not None
    shards = [MemberOnThread(store) for store in stores]
    stages = [MemberOnThread(store) for store in reversed(stores)]
    together = threading.Barrier(2)

    def compute(members: GroupProcesses) -> None:
        for _ in range(ROUNDS):
            together.wait()
            members.logits.clear()
            assert_same(members, requests(), expected)

    try:
        with (
            group(shards, settings, 1, 2) as wide,
            group(stages, settings, 2, 1) as deep,
            ThreadPoolExecutor(2) as pool,
        ):
            for store, places in (
                (stores[0], (GroupPlace(Shard(0, 2, 0), 1), GroupPlace(Shard(0, 1, 1), 2))),
                (stores[1], (GroupPlace(Shard(1, 2, 0), 1), GroupPlace(Shard(0, 1, 0), 2))),
            ):
                parts = [store.needed(place.share_of(store.structure.sketch)) for place in places]
                assert store.held_bytes == panel_bytes(store, *parts) < sum(panel_bytes(store, part) for part in parts)
            for _ in pool.map(compute, (wide, deep)):
                pass
    finally:
        for member in (*shards, *stages):
            member.stop()


def panel_bytes(store: WeightStore, *needed: Panels) -> int:
    """Bytes of the union of panels."""
    union = {(name, panel) for panels in needed for name, ranges in panels.items() for each in ranges for panel in each}
    return sum(store.structure.forms[name].panel_bytes for name, _ in union)
