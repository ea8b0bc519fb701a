"""What a report of the fleet says about workers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.lives.survival import PiecewiseHazard
from spotwise.core.messages.fleet import FleetReported, InstanceState, Market
from spotwise.core.messages.members import Member, MemberState
from spotwise.core.scheduler.lives import REPORT_COUNTS_S, Lives
from spotwise.core.scheduler.pools import Pools
from spotwise.core.scheduler.views import WorkerLife
from tests.unit.core.builders import worker_member
from tests.unit.core.scheduler.fleets import constant, device, fleet, instance

NOW = 1000.0


class LivesBench:
    """Lives and pools, at a time."""

    def __init__(self, *worker_ids: str) -> None:
        self.pools = Pools()
        self.lives = Lives(self.pools)
        self.now = NOW
        for worker_id in worker_ids:
            self.join(worker_id)

    def join(self, worker_id: str) -> None:
        self.pools.join(worker_member(worker_id))
        self.lives.worker_joined(worker_id, self.now)

    def report(self, report: FleetReported) -> None:
        self.lives.reported(report, self.now)

    def per_s(self, worker_id: str) -> float | None:
        """The worker's ends over the next second; `None` where nothing is known."""
        life = self.pools[worker_id].life
        return None if life is None else round(life.hazard.expected_ends(life.age_s, 1.0), 9)


@pytest.fixture
def bench() -> LivesBench:
    """Worker `i`."""
    return LivesBench("i")


class TestInstances:
    """Which instances a worker depends on."""

    @pytest.mark.parametrize("worker_id", ["i-0ab", "i-0ab-0", "i-0ab-gpu-3"])
    def test_a_worker_has_the_hazard_of_the_instance_that_it_is_named_after(self, worker_id: str) -> None:
        bench = LivesBench(worker_id)
        bench.report(fleet(instance("i-0ab"), hazards={"a": 0.01}))
        assert bench.per_s(worker_id) == 0.01

    def test_of_instances_with_like_names_the_longest_counts(self) -> None:
        """`i-1` is an instance of its own, and no suffix of `i`."""
        bench = LivesBench("i-1", "i-2", "i-10", "j-1")
        bench.report(fleet(instance("i", "a"), instance("i-1", "b"), hazards={"a": 0.01, "b": 0.02}))
        assert [bench.per_s(id_) for id_ in ("i-1", "i-2", "i-10", "j-1")] == [0.02, 0.01, 0.01, None]

    def test_an_instance_on_demand_or_unknown_or_gone_or_of_unlearned_lives_has_no_hazard(self) -> None:
        """As all workers before the first report."""
        bench = LivesBench("stays", "gone", "unlearned", "immortal", "elsewhere")
        assert bench.per_s("stays") is None
        bench.report(
            fleet(
                instance("stays", market=Market.ON_DEMAND),
                instance("gone", state=InstanceState.GONE),
                instance("unlearned", "b"),
                instance("immortal", "c"),
                hazards={"a": 0.01, "c": 0.0},
            )
        )
        assert {view.id: view.life for view in bench.pools} == dict.fromkeys(
            ("stays", "gone", "unlearned", "immortal", "elsewhere")
        )

    def test_lives_of_the_zone_count_before_those_of_the_type(self) -> None:
        bench = LivesBench("i", "j")
        bench.report(fleet(instance("i", zone="z1"), instance("j", zone="z2"), hazards={"a": 0.01, "a/z1": 0.02}))
        assert (bench.per_s("i"), bench.per_s("j")) == (0.02, 0.01)

    def test_the_hazard_is_that_of_the_instances_age(self, bench: LivesBench) -> None:
        """It changes with the age, and with the instance of the same name that replaces it."""
        by_age = {"a": PiecewiseHazard((0.0, 600.0), (0.01, 0.001))}
        bench.report(fleet(instance("i", launched_s=NOW - 10), hazards=by_age))
        assert bench.per_s("i") == 0.01
        bench.now += 700
        bench.report(fleet(instance("i", launched_s=NOW - 10), hazards=by_age, at_s=bench.now))
        assert bench.per_s("i") == 0.001
        bench.report(fleet(instance("i", launched_s=bench.now), hazards=by_age, at_s=bench.now + 1))
        assert bench.per_s("i") == 0.01

    def test_an_instance_launched_in_the_future_is_new(self, bench: LivesBench) -> None:
        """The provider's clock may be ahead."""
        bench.report(fleet(instance("i", launched_s=NOW + 5), hazards={"a": 0.01}))
        assert bench.per_s("i") == 0.01


class TestGroups:
    """Workers that are led groups of devices."""

    def test_the_hazards_of_a_groups_instances_add(self) -> None:
        """Each instance counts once, with however many devices."""
        bench = LivesBench("leader")
        bench.report(fleet(*map(instance, ("i", "j", "k")), hazards={"a": 0.01}))
        assert bench.per_s("leader") is None
        for id_ in ("i-0", "i-1", "j", "k-0"):
            bench.lives.device_reported(device(id_, "leader", is_placed=id_ != "k-0"), NOW)
        assert bench.per_s("leader") == 0.02

    def test_the_leaders_own_instance_counts(self) -> None:
        """Its end ends the group, too."""
        bench = LivesBench("i-0")
        bench.lives.device_reported(device("j-0", "i-0"), NOW)
        bench.report(fleet(instance("i"), instance("j"), hazards={"a": 0.01}))
        assert bench.per_s("i-0") == 0.02

    def test_a_device_that_leaves_the_group_or_the_mesh_counts_no_more(self) -> None:
        """By a heartbeat without a place, with another leader, or by its loss."""
        bench = LivesBench("one", "two")
        bench.report(fleet(*map(instance, ("i", "j", "k")), hazards={"a": 0.01}))
        for id_ in ("i", "j", "k"):
            bench.lives.device_reported(device(id_, "one"), NOW)
        bench.lives.device_reported(device("i", "one", is_placed=False), NOW)
        bench.lives.device_reported(device("j", "two"), NOW)
        assert (bench.per_s("one"), bench.per_s("two")) == (0.01, 0.01)
        bench.lives.device_lost("k", NOW)
        bench.lives.device_lost("j", NOW)
        bench.lives.device_lost("j", NOW)
        assert (bench.per_s("one"), bench.per_s("two")) == (None, None)

    def test_devices_may_come_before_their_leader_and_outlive_it(self) -> None:
        bench = LivesBench()
        bench.report(fleet(instance("i"), hazards={"a": 0.01}))
        bench.lives.device_reported(device("i", "leader"), NOW)
        bench.join("leader")
        assert bench.per_s("leader") == 0.01
        bench.pools.lose("leader")
        bench.lives.device_reported(device("i", "leader"), NOW)
        bench.join("leader")
        assert bench.per_s("leader") == 0.01


class TestReports:
    """Which reports count."""

    def test_a_late_or_repeated_report_changes_nothing(self, bench: LivesBench) -> None:
        bench.report(fleet(instance("i"), hazards={"a": 0.01}, at_s=NOW, incarnation=2))
        bench.report(fleet(instance("i"), hazards={"a": 0.5}, at_s=NOW - 1, incarnation=2))
        bench.report(fleet(instance("i"), hazards={"a": 0.5}, at_s=NOW, incarnation=2))
        bench.report(fleet(instance("i"), hazards={"a": 0.5}, at_s=NOW + 1, incarnation=1))
        assert bench.per_s("i") == 0.01
        bench.report(fleet(instance("i"), hazards={"a": 0.02}, at_s=NOW - 1, incarnation=3))
        assert bench.per_s("i") == 0.02

    def test_another_watcher_counts_once_the_last_report_does_not(self, bench: LivesBench) -> None:
        """Two watchers with a provider do not alternate."""
        bench.report(fleet(instance("i"), hazards={"a": 0.01}))
        bench.now += REPORT_COUNTS_S - 1
        bench.report(fleet(instance("i"), hazards={"a": 0.5}, watcher="other", at_s=bench.now))
        assert bench.per_s("i") == 0.01
        bench.now += 1
        bench.report(fleet(instance("i"), hazards={"a": 0.5}, watcher="other", at_s=bench.now))
        assert bench.per_s("i") == 0.5

    def test_after_a_while_without_reports_nothing_is_known(self, bench: LivesBench) -> None:
        bench.report(fleet(instance("i"), instance("j"), hazards={"a": 0.01}))
        bench.lives.expire(NOW + REPORT_COUNTS_S - 0.1)
        assert bench.per_s("i") == 0.01
        bench.lives.expire(NOW + REPORT_COUNTS_S)
        bench.join("j")
        assert (bench.per_s("i"), bench.per_s("j")) == (None, None)

    def test_a_report_that_was_long_on_its_way_is_ignored(self, bench: LivesBench) -> None:
        bench.report(fleet(instance("i"), hazards={"a": 0.01}, at_s=NOW - REPORT_COUNTS_S))
        assert bench.per_s("i") is None

    def test_a_watchers_clock_that_was_ahead_stops_reports_for_a_while_only(self, bench: LivesBench) -> None:
        """Set back, its reports count again once the last does not."""
        bench.report(fleet(instance("i"), hazards={"a": 0.01}, at_s=NOW + 3600))
        bench.now += REPORT_COUNTS_S
        bench.report(fleet(instance("i"), hazards={"a": 0.02}, at_s=bench.now))
        assert bench.per_s("i") == 0.02


class TestClasses:
    """The classes of life."""

    @pytest.mark.parametrize(
        ("per_s", "life_class"), [(1e-12, -26), (2**-10, -9), (1.99 * 2**-10, -9), (2**-9, -8), (0.7, 0), (90.0, 0)]
    )
    def test_rates_of_a_class_differ_by_less_than_two(self, per_s: float, life_class: int) -> None:
        assert WorkerLife.of(constant(per_s), 0.0).life_class == life_class

    def test_ends_that_come_late_are_the_rarest(self) -> None:
        """They are not a life that stays: a long answer may meet them."""
        assert WorkerLife.of(PiecewiseHazard((0.0, 3600.0), (0.0, 1.0)), 0.0).life_class == -26

    def test_a_worker_that_takes_no_requests_is_ranked_with_its_life_once_it_does(self) -> None:
        bench = LivesBench()
        bench.pools.join(replace(worker_member("i"), state=MemberState.STARTING))
        bench.report(fleet(instance("i"), hazards={"a": 0.01}))
        assert bench.pools.group_of("i") is None
        member: Member = worker_member("i")
        bench.pools.reported(member, "s", NOW)
        assert bench.per_s("i") == 0.01
