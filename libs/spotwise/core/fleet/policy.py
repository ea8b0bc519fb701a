"""The configuration of a fleet: its budget, its latency, its safety, and how quickly it changes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spotwise.core.parallel.policy import Phases


@dataclass(frozen=True, slots=True)
class FleetPolicy:
    """How the fleet is chosen.

    Attributes:
        window_s: over which the load is measured; `decide_s`: seconds between two decisions.
        budget_per_h: dollars an hour that no order exceeds; `None` for no limit.
        on_demand_floor: on-demand instances that serve, at least; `spare_instances`: held beside those that serve.
        latency_target_s: seconds of a request that are fast enough, 0 for as fast as can be; `None`: `latency_factor` times a
            request without load (`fleet_search`). `latency_slack`: share above the least latency that is fast enough as well.
        headroom: the measured rate is multiplied with it.
        hold_s: for so long a better choice must be better before it replaces one that serves, and so long a surplus lasts
            before it is given back; shorter than the window, its noise would pass for a change.
        gain: share by which price or latency is better.
        late_factor: an instance that starts for longer than this many times its type's `start_s` is late.
        release_notice_s: from a release's first mention to its deadline.
        phases: allows prompts on pipelines of their own.
    """

    window_s: float = 30.0
    decide_s: float = 1.0
    budget_per_h: float | None = None
    on_demand_floor: int = 0
    spare_instances: int = 1
    latency_target_s: float | None = None
    #: A request may wait for as long as it is computed. On one pipeline that is never idle it waits for half as long, until the
    #: running batch ends (`parallel.queueing`), however many more that batch could hold: 1.5 would buy a second one for that.
    latency_factor: float = 2.0
    latency_slack: float = 0.25
    headroom: float = 1.2
    hold_s: float = 30.0
    gain: float = 0.1
    late_factor: float = 3.0
    release_notice_s: float = 120.0
    phases: Phases = Phases.TOGETHER

    def __post_init__(self) -> None:
        if self.window_s <= 0 or self.headroom <= 0:
            raise ValueError("`window_s` and `headroom` must be above 0")
        least_0 = {
            "decide_s": self.decide_s,
            "budget_per_h": self.budget_per_h or 0.0,
            "on_demand_floor": self.on_demand_floor,
            "spare_instances": self.spare_instances,
            "latency_target_s": self.latency_target_s or 0.0,
            "latency_slack": self.latency_slack,
            "hold_s": self.hold_s,
            "release_notice_s": self.release_notice_s,
        }
        for name, value in least_0.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"`{name}` is {value}; it must be at least 0 and finite")
        if not 0 <= self.gain < 1:
            raise ValueError(f"`gain` is {self.gain}; it is a share from 0 up to, but not, 1")
        if not 1 <= self.latency_factor < math.inf:
            raise ValueError(
                f"`latency_factor` is {self.latency_factor}; no request is faster than without load: at least 1, and finite"
            )
        if self.late_factor < 1:
            raise ValueError(
                f"`late_factor` is {self.late_factor}; an instance is not late before its `start_s`: at least 1"
            )
