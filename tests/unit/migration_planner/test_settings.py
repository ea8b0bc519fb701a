"""The planner's settings about the market: a fleet file is read, and refused, at the start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from spotwise.core.costs.cost_profile import BUILT_IN
from spotwise.files.cost_profile import profile_as_dict
from spotwise.migration_planner.settings import PlannerSettings

FLEET = """provider = "local"
[local]
limit = 3
[[types]]
name = "small"
devices = 2
memory = "2GiB"
start_s = 12
spot = {price_per_h = 0.4, most = 3}
"""
PROFILED = FLEET + 'profile = "profile.json"\n'


def settings(folder: Path, text: str, **given: object) -> PlannerSettings:
    file = folder / "fleet.toml"
    file.write_text(text)
    return PlannerSettings(fleet_file=file, **given)  # type: ignore[arg-type]


def test_the_types_of_a_fleet_file_have_their_profiles(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(json.dumps(profile_as_dict(BUILT_IN)))
    (small,) = settings(tmp_path, PROFILED).fleet_types
    assert (small.name, small.devices, small.memory_bytes, small.start_s) == ("small", 2, 2 * 1024**3, 12.0)
    assert small.profile == BUILT_IN


def test_a_type_without_a_profile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"types.small.profile is missing.* make one with spotwise profile"):
        settings(tmp_path, FLEET)


@pytest.mark.parametrize("profile", ["{}", "no json"])
def test_a_profile_that_is_none_is_refused(tmp_path: Path, profile: str) -> None:
    (tmp_path / "profile.json").write_text(profile)
    with pytest.raises(ValidationError, match=r"types.small.profile: .*profile.json is no cost profile"):
        settings(tmp_path, PROFILED)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="cannot be read"):
        PlannerSettings(fleet_file=tmp_path / "missing.toml")


def test_without_a_file_nothing_can_be_bought() -> None:
    assert PlannerSettings().fleet_types == ()


def test_the_policy_is_the_settings(tmp_path: Path) -> None:
    policy = PlannerSettings(
        budget_per_h=2.0,
        on_demand_floor=1,
        spare_instances=0,
        latency_target_s=3.0,
        load_headroom=1.5,
        hold_s=4.0,
        release_notice_s=60.0,
    ).fleet_policy
    assert (policy.budget_per_h, policy.on_demand_floor, policy.spare_instances) == (2.0, 1, 0)
    assert (policy.latency_target_s, policy.headroom, policy.hold_s) == (3.0, 1.5, 4.0)
    assert policy.release_notice_s == 60.0


def test_a_target_of_no_seconds_is_not_an_unset_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PlannerSettings().fleet_policy.latency_target_s is None
    monkeypatch.setenv("SPOTWISE_LATENCY_TARGET_S", "0")
    assert PlannerSettings().fleet_policy.latency_target_s == 0.0
