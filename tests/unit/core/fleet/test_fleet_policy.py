"""Which policies a fleet may have."""

from __future__ import annotations

import math

import pytest

from spotwise.core.fleet.policy import FleetPolicy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window_s", 0.0),
        ("headroom", 0.0),
        ("decide_s", -1.0),
        ("budget_per_h", -1.0),
        ("budget_per_h", math.inf),
        ("on_demand_floor", -1),
        ("spare_instances", -1),
        ("latency_target_s", -1.0),
        ("latency_factor", 0.9),
        ("latency_factor", math.inf),
        ("latency_slack", -0.1),
        ("hold_s", math.nan),
        ("gain", 1.0),
        ("late_factor", 0.5),
        ("release_notice_s", -1.0),
    ],
)
def test_a_policy_out_of_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        FleetPolicy(**{name: value})  # type: ignore[arg-type]
