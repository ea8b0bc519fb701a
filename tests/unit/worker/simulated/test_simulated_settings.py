"""Settings of a process of simulated workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from spotwise.core.cost_profile import BUILT_IN, profile_as_dict
from spotwise.worker.simulated.settings import SimulatedWorkerSettings


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A folder that passes for a model's."""
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_a_process_is_one_worker_unless_told_of_more(model_dir: Path) -> None:
    """Its own id is that one's; each id counts once."""
    assert SimulatedWorkerSettings(service_id="token-3", model_dir=model_dir).member_ids == ("token-3",)
    several = SimulatedWorkerSettings(service_id="group", members="a,b,a,c", model_dir=model_dir)
    assert several.member_ids == ("a", "b", "c")
    with pytest.raises(ValidationError):
        SimulatedWorkerSettings(members="a,,b", model_dir=model_dir)


def test_costs_are_the_files_or_the_built_in_ones(model_dir: Path) -> None:
    """What is no profile is refused by its name."""
    assert SimulatedWorkerSettings(model_dir=model_dir).costs() == BUILT_IN
    document = {**profile_as_dict(BUILT_IN), "name": "mine"}
    path = model_dir / "profile.json"
    path.write_text(json.dumps(document))
    assert SimulatedWorkerSettings(model_dir=model_dir, profile=path).costs().name == "mine"
    for text in ("", "{}", "[]"):
        path.write_text(text)
        with pytest.raises(ValidationError, match=r"profile\.json is no cost profile"):
            SimulatedWorkerSettings(model_dir=model_dir, profile=path)


def test_a_profile_without_hand_offs_is_refused(model_dir: Path) -> None:
    """A simulated worker may be asked for one at any time."""
    path = model_dir / "profile.json"
    path.write_text(json.dumps(profile_as_dict(BUILT_IN) | {"link": None}))
    with pytest.raises(ValidationError, match="says nothing of hand-offs; record a mesh with prompt workers"):
        SimulatedWorkerSettings(model_dir=model_dir, profile=path)


def test_kv_room_is_the_profiles_unless_bytes_were_asked_for(model_dir: Path) -> None:
    """Counted in blocks; there is always one."""
    plain = SimulatedWorkerSettings(model_dir=model_dir)
    assert plain.num_blocks(BUILT_IN) == BUILT_IN.kv_tokens // 16
    asked = SimulatedWorkerSettings(model_dir=model_dir, kv_cache_bytes=BUILT_IN.kv_bytes_per_token * 64)
    assert asked.num_blocks(BUILT_IN) == 4
    assert SimulatedWorkerSettings(model_dir=model_dir, kv_cache_bytes=1).num_blocks(BUILT_IN) == 1


def test_at_another_speed_all_seconds_are_others(model_dir: Path) -> None:
    """The link's and the bound on a stall, as the iterations'."""
    fast = SimulatedWorkerSettings(model_dir=model_dir, speed=10.0, max_stall_ms=60.0)
    assert fast.link(BUILT_IN).transfer_s(10**9) == pytest.approx(BUILT_IN.link.transfer_s(10**9) / 10)
    assert fast.policy().max_stall_s == pytest.approx(0.006)
    assert SimulatedWorkerSettings(model_dir=model_dir, max_stall_ms=0.0).policy().max_stall_s is None
    with pytest.raises(ValidationError):
        SimulatedWorkerSettings(model_dir=model_dir, speed=0.0)
