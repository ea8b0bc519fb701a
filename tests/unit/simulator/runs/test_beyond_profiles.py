"""Where a run goes beyond what its machines' profiles measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.costs.cost_model import BatchShape
from spotwise.core.costs.cost_profile import MeasuredRange
from spotwise.core.messages.members import Pool
from spotwise.simulator.loads.workload import ClusterWorkload
from spotwise.simulator.runs.clusters import DGX_A100
from spotwise.simulator.runs.experiment import simulate
from spotwise.simulator.runs.machine_changes import MachineChange, MachineChangeKind
from spotwise.simulator.runs.metrics import TimeBeyondProfiles
from spotwise.simulator.runs.own_machines import OwnMachine
from tests.unit.simulator.runs.own_clusters import FAST, SLOW, scenario

SMALL, LARGE = MeasuredRange(100, 50.0, 1, 100.0), MeasuredRange(1000, 500.0, 8, 1000.0)


def measured(kind: OwnMachine, how_far: MeasuredRange | None) -> OwnMachine:
    return replace(kind, profile=replace(kind.profile, measured=how_far))


def test_each_kind_has_shares_of_its_own_time() -> None:
    """Summed over its machines; what all have in common is weighted by their times. Others count for nothing."""
    small, large = measured(FAST, SMALL), measured(SLOW, LARGE)
    time = TimeBeyondProfiles({"m0": small, "m1": small, "m2": large, "m3": FAST, "m4": DGX_A100})
    prompt = BatchShape(200, 200 * 40.0, 0, 0)
    time.count("m0", prompt, 3.0)
    time.count("m1", BatchShape(0, 0.0, 1, 50), 1.0)
    time.count("m2", prompt, 10.0)
    time.count("m2", BatchShape(0, 0.0, 9, 9), 6.0)
    for unmarked in ("m3", "m4"):
        time.count(unmarked, prompt, 1000.0)
    found = time.in_all()
    assert found is not None
    assert found.share == pytest.approx((3.0 + 6.0) / 20.0)
    assert [(each.kind, each.beyond.measured) for each in found.kinds] == [("fast", SMALL), ("slow", LARGE)]
    assert [each.beyond.shares for each in found.kinds] == [{"prompt_tokens": 0.75}, {"decodes": 0.375}]


def test_without_ranges_nothing_is_known() -> None:
    assert TimeBeyondProfiles({"m0": FAST, "m1": DGX_A100}).in_all() is None
    nothing_ran = TimeBeyondProfiles({"m0": measured(FAST, SMALL)}).in_all()
    assert nothing_ran is not None
    assert nothing_ran.share == 0.0


def test_machines_that_join_count_for_their_kind() -> None:
    """A kind of prompt and of token machines is one; so is one of machines that come later."""
    small, large = measured(FAST, SMALL), measured(SLOW, LARGE)
    own = scenario((small, 1, Pool.PROMPT), (small, 1, Pool.TOKEN), (large, 1, Pool.TOKEN))
    join = MachineChange(1.0, MachineChangeKind.JOIN, 2, "slow")
    for changes in ((), (join,)):
        run = simulate(replace(own, changes=changes).case(ClusterWorkload("code"), 4.0, 5.0))
        assert run.beyond_profile is not None
        assert [each.kind for each in run.beyond_profile.kinds] == ["fast", "slow"]
        assert run.beyond_profile.kinds[0].beyond.share > 0.3
        shares = [each.beyond.share for each in run.beyond_profile.kinds]
        assert min(shares) <= run.beyond_profile.share <= max(shares)
