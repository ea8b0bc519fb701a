"""Groups on devices that gathers cannot read are refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spotwise.engine import group_place
from spotwise.engine.engine import Engine
from spotwise.engine.group_place import GroupPlace
from spotwise.engine.loading import EngineConfig
from spotwise.engine.part_sizes import PartSizes
from spotwise.engine.shard import Shard
from spotwise.engine.weight_store import WeightStore


def test_a_group_on_a_gpu_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the leader, and by each process."""
    monkeypatch.setattr(group_place, "resolve", lambda _: (torch.device("cuda:0"), torch.bfloat16))
    config = EngineConfig(tmp_path, "bfloat16", "cuda", kv_cache_bytes=1 << 20)
    with pytest.raises(ValueError, match=r"cuda:0; set SPOTWISE_DEVICE=cpu"):
        PartSizes.of(WeightStore(config), 1, 2)
    with pytest.raises(ValueError, match=r"cuda:0; set SPOTWISE_DEVICE=cpu"):
        Engine.load_part(WeightStore(config), GroupPlace(Shard(0, 2, 0), 1))
