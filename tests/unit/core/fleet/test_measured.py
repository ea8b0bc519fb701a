"""A profiled model on several types of instances."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.costs.cost_model import LinkCost
from spotwise.core.costs.cost_profile import BUILT_IN, at_speed
from spotwise.core.fleet.types import USUAL_NETWORK_BYTES_PER_S, FleetType, MeasuredType, measured_model
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.scaled_cost import ScaledCost
from tests.unit.core.fleet.fake_cloud import SHAPE, fleet_type

SLOW = replace(BUILT_IN, iteration=at_speed(BUILT_IN.iteration, 0.5), kv_tokens=20_000)


def measured(name: str, **options: int) -> MeasuredType:
    return MeasuredType(
        name, SLOW if name == "slow" else BUILT_IN, options.get("devices", 1), 10e9, 5e9, options.get("memory")
    )


def test_types_have_their_own_seconds_and_memory_and_one_batch() -> None:
    """The batch fits the smaller KV cache: fourteen of these requests."""
    model = measured_model([measured("fast", devices=2, memory=80 * 2**30), measured("slow")], SHAPE, 1140, 209)
    fast, slow = model.types
    config = ParallelConfig(1, 1, 1, 8)
    assert model.max_batch == 8
    assert (fast.devices, fast.device_memory_bytes) == (2, 80 * 2**30)
    assert slow.device_memory_bytes == SHAPE.weight_bytes + 20_000 * 327_680
    assert slow.cost.step_s(config) == pytest.approx(2 * fast.cost.step_s(config))
    assert model.memory.allows(config, slow) and not model.memory.allows(config, fast)
    assert fast.spot_price_per_h is None and fast.on_demand_price_per_h is None


def test_memory_is_of_the_widest_cache() -> None:
    """One engine may cache in half of another's bytes."""
    half = replace(measured("half"), profile=replace(BUILT_IN, kv_bytes_per_token=BUILT_IN.kv_bytes_per_token // 2))
    model = measured_model([half, measured("fast")], SHAPE, 1140, 209, max_batch=3)
    assert model.shape.kv_token_bytes == BUILT_IN.kv_bytes_per_token
    assert model.max_batch == 3


def test_a_profile_of_another_model_and_no_type_are_refused() -> None:
    with pytest.raises(ValueError, match="give the model that was profiled"):
        measured_model([measured("fast")], replace(SHAPE, layers=8), 100, 10)
    with pytest.raises(ValueError, match="at least one type"):
        measured_model([], SHAPE, 100, 10)


def test_shards_of_single_devices_exchange_over_the_network() -> None:
    assert BUILT_IN.link is not None
    single, double = fleet_type("single").measured, fleet_type("double", 2).measured
    assert single.local_bytes_per_s == single.network_bytes_per_s == BUILT_IN.link.bytes_per_s
    assert double.local_bytes_per_s < double.network_bytes_per_s
    alone = replace(fleet_type("alone"), profile=replace(BUILT_IN, link=None))
    assert alone.measured.network_bytes_per_s == USUAL_NETWORK_BYTES_PER_S
    assert replace(alone, network_bytes_per_s=1e9).measured.network_bytes_per_s == 1e9
    cost = measured_model([replace(alone, network_bytes_per_s=1e9).measured], SHAPE, 100, 10).types[0].cost
    assert isinstance(cost, ScaledCost) and cost.stage_link == LinkCost(0.0005, 1e9)


@pytest.mark.parametrize(
    "changes", [{"devices": 0}, {"memory_bytes": 0}, {"start_s": -1.0}, {"network_bytes_per_s": 0.0}]
)
def test_a_type_that_is_none_is_refused(changes: dict[str, float]) -> None:
    usual: dict[str, object] = {"name": "a", "devices": 1, "memory_bytes": None, "start_s": 1.0, "profile": BUILT_IN}
    with pytest.raises(ValueError, match="a "):
        FleetType(**{**usual, **changes})  # type: ignore[arg-type]
