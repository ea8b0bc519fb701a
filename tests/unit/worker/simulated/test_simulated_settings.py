"""Settings of processes of simulated workers, and of simulated devices."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from spotwise.core.costs.cost_model import LinearIterationCost, LinkCost
from spotwise.core.costs.cost_profile import BUILT_IN, USUAL_HOST_LINK
from spotwise.core.messages.members import Pool
from spotwise.files.cost_profile import profile_as_dict
from spotwise.worker.simulated.groups.serve import SimulatedDeviceSettings
from spotwise.worker.simulated.settings import SimulatedWorkerSettings


def test_a_process_is_one_worker_by_default(model_dir: Path) -> None:
    assert SimulatedWorkerSettings(service_id="token-3", model_dir=model_dir).member_ids == ("token-3",)
    several = SimulatedWorkerSettings(service_id="group", members="a,b,a,c", model_dir=model_dir)
    assert several.member_ids == ("a", "b", "c")
    with pytest.raises(ValidationError):
        SimulatedWorkerSettings(members="a,,b", model_dir=model_dir)


def test_costs_are_the_files_or_the_built_in_ones(model_dir: Path) -> None:
    assert SimulatedWorkerSettings(model_dir=model_dir).costs() == BUILT_IN
    document = {**profile_as_dict(BUILT_IN), "name": "mine"}
    path = model_dir / "profile.json"
    path.write_text(json.dumps(document))
    assert SimulatedWorkerSettings(model_dir=model_dir, profile=path).costs().name == "mine"
    for text in ("", "{}", "[]"):
        path.write_text(text)
        with pytest.raises(ValidationError, match=r"profile\.json is no cost profile"):
            SimulatedWorkerSettings(model_dir=model_dir, profile=path)


def test_costs_may_be_written_by_hand(model_dir: Path) -> None:
    path = model_dir / "profile.toml"
    path.write_text(
        'format = "spotwise-cost-profile/1"\nname = "mine"\nkv_bytes_per_token = 1000\nkv_tokens = 5000\n'
        'link = { latency_s = 0.001, bytes_per_s = 1e9 }\n[iteration]\nkind = "linear"\nfixed_s = 0.01\n'
        "prompt_token_s = 1e-4\nprompt_context_s = 0\ndecode_s = 1e-3\ndecode_context_s = 0\n"
    )
    costs = SimulatedWorkerSettings(model_dir=model_dir, profile=path).costs()
    assert (costs.name, costs.kv_tokens, costs.iteration) == (
        "mine",
        5000,
        LinearIterationCost(0.01, 1e-4, 0.0, 1e-3, 0.0),
    )


@pytest.mark.parametrize("pool", [Pool.PROMPT, Pool.TOKEN, None, Pool.MIXED])
def test_a_profile_without_hand_offs_is_refused_where_there_are_some(model_dir: Path, pool: Pool | None) -> None:
    """Such a worker may get a hand-off at any time; a mixed one runs by a profile that a worker measured of itself."""
    path = model_dir / "profile.json"
    path.write_text(json.dumps(profile_as_dict(BUILT_IN) | {"link": None}))
    if pool not in (None, Pool.MIXED):
        with pytest.raises(ValidationError, match=r"has no hand-offs, .* mixed workers only, or record a mesh"):
            SimulatedWorkerSettings(model_dir=model_dir, profile=path, pool=pool)
        return
    settings = SimulatedWorkerSettings(model_dir=model_dir, profile=path, pool=pool)
    assert settings.link(settings.costs()).transfer_s(10**9) < 1e-6


def test_kv_memory_is_the_profiles_unless_bytes_are_set(model_dir: Path) -> None:
    """Counted in blocks; there is always one."""
    plain = SimulatedWorkerSettings(model_dir=model_dir)
    assert plain.num_blocks(BUILT_IN) == BUILT_IN.kv_tokens // 16
    requested = SimulatedWorkerSettings(model_dir=model_dir, kv_cache_bytes=BUILT_IN.kv_bytes_per_token * 64)
    assert requested.num_blocks(BUILT_IN) == 4
    assert SimulatedWorkerSettings(model_dir=model_dir, kv_cache_bytes=1).num_blocks(BUILT_IN) == 1


def test_at_another_speed_all_seconds_are_others(model_dir: Path) -> None:
    """The link's and the bound on a stall, as the iterations'."""
    fast = SimulatedWorkerSettings(model_dir=model_dir, speed=10.0, max_stall_ms=60.0)
    assert fast.link(BUILT_IN).transfer_s(10**9) == pytest.approx(BUILT_IN.link.transfer_s(10**9) / 10)
    assert fast.worker_policy().max_stall_s == pytest.approx(0.006)
    assert fast.worker_policy().preempt_after_s == pytest.approx(0.1)
    assert SimulatedWorkerSettings(model_dir=model_dir, max_stall_ms=0.0).worker_policy().max_stall_s is None
    with pytest.raises(ValidationError):
        SimulatedWorkerSettings(model_dir=model_dir, speed=0.0)


def test_queues_are_of_the_profile_at_its_speed(model_dir: Path) -> None:
    """A lone decode, and the time until starving, take a tenth at ten times the speed."""
    slow, fast = (
        SimulatedWorkerSettings(model_dir=model_dir, policy="mlfq", speed=speed).worker_policy().mlfq  # type: ignore[arg-type]
        for speed in (1.0, 10.0)
    )
    assert slow is not None and fast is not None
    assert fast.first_quantum_s == pytest.approx(slow.first_quantum_s / 10)
    assert fast.starve_limit_s == pytest.approx(slow.starve_limit_s / 10)
    reported: dict[str, Any] = {"policy": "mlfq", "speed": 10.0, "starve_limit_ms": 500}
    mlfq = SimulatedWorkerSettings(model_dir=model_dir, **reported).worker_policy().mlfq
    assert mlfq is not None
    assert mlfq.starve_limit_s == pytest.approx(0.05)


def test_the_hosts_memory_is_four_times_the_devices_unless_bytes_are_set(model_dir: Path) -> None:
    """None where nothing is swapped; moves take the profile's times, or the usual ones, at the speed."""
    plain = SimulatedWorkerSettings(model_dir=model_dir)
    assert plain.num_host_blocks(BUILT_IN) == 0
    swapping = SimulatedWorkerSettings(model_dir=model_dir, policy="mlfq", speed=2.0)  # type: ignore[arg-type]
    assert swapping.num_host_blocks(BUILT_IN) == 4 * (BUILT_IN.kv_tokens // 16)
    requested = swapping.model_copy(update={"kv_host_bytes": BUILT_IN.kv_bytes_per_token * 64})
    assert requested.num_host_blocks(BUILT_IN) == 4
    assert swapping.host_link(BUILT_IN).transfer_s(10**9) == pytest.approx(USUAL_HOST_LINK.transfer_s(10**9) / 2)
    measured = replace(BUILT_IN, host_link=LinkCost(0.0, 1e9))
    assert swapping.host_link(measured).transfer_s(10**9) == pytest.approx(0.5)


def test_each_device_of_a_group_has_its_leader_and_spare_ones_none(model_dir: Path) -> None:
    settings = SimulatedDeviceSettings(groups="a,b", spares="s", stages=2, model_dir=model_dir)
    leaders = {f"{leader}-device-{number}": leader for leader in "ab" for number in (0, 1)}
    assert settings.first_leaders == {**leaders, "s": ""}
    assert SimulatedDeviceSettings(model_dir=model_dir).first_leaders == {}
    with pytest.raises(ValidationError):
        SimulatedDeviceSettings(groups="a,,b", model_dir=model_dir)
