"""Tests of fleet changes: the notices, losses and newcomers of one change, and the news that waits."""

from __future__ import annotations

import heapq
from collections import Counter

import pytest
from hypothesis import event as seen
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spotwise.core.migration.fleet import events as e
from spotwise.core.migration.fleet.changes import FleetChanges, FleetLimits

#: A fleet in which no change waits for others.
AT_ONCE = FleetLimits(gather_s=0.0)


def begun(commands: list[e.FleetCommand]) -> e.BeginChange | None:
    return next((command for command in commands if isinstance(command, e.BeginChange)), None)


def without_wakeups(commands: list[e.FleetCommand]) -> list[e.FleetCommand]:
    """The commands, without orders of wake-ups."""
    return [command for command in commands if not isinstance(command, e.WakeAt)]


@pytest.fixture
def fleet() -> FleetChanges:
    return FleetChanges(AT_ONCE)


class TestOneAtATime:
    """News during a change waits for its end."""

    def test_a_notice_begins_a_change_with_its_absolute_deadline(self, fleet: FleetChanges) -> None:
        assert fleet.handle(e.InstanceNoticed("a", 130.0), 100.0) == [
            e.BeginChange(1, (e.Leaving("a", 130.0),)),
            e.WakeAt(130.0),
        ]

    def test_the_next_begins_when_one_has_ended(self, fleet: FleetChanges) -> None:
        """The next change has all the notices since the last one began, by deadline."""
        fleet.handle(e.InstanceNoticed("a", 130.0), 100.0)
        assert without_wakeups(fleet.handle(e.InstanceNoticed("b", 220.0), 101.0)) == []
        assert without_wakeups(fleet.handle(e.InstanceNoticed("c", 210.0), 102.0)) == []
        assert without_wakeups(fleet.handle(e.ChangeEnded(1, True), 110.0)) == [
            e.BeginChange(2, (e.Leaving("c", 210.0), e.Leaving("b", 220.0)))
        ]

    def test_a_change_that_another_machine_carries_out_has_a_number_of_its_own(self, fleet: FleetChanges) -> None:
        """The fleet is settled where nothing is under way and no instance leaves."""
        assert (fleet.is_settled, fleet.next_change, fleet.number_change()) == (True, 1, 1)
        assert begun(fleet.handle(e.InstanceNoticed("a", 130.0), 100.0)) == e.BeginChange(2, (e.Leaving("a", 130.0),))
        assert not fleet.is_settled
        fleet.handle(e.ChangeEnded(2, True), 110.0)
        assert fleet.is_settled

    def test_the_end_of_another_change_is_no_end(self) -> None:
        """Only the end of the current change counts, not late news of an earlier one."""
        fleet = FleetChanges(AT_ONCE, first_change=7)
        fleet.handle(e.InstanceNoticed("a", 130.0), 100.0)
        fleet.handle(e.InstanceNoticed("b", 230.0), 100.0)
        assert fleet.handle(e.ChangeEnded(6, True), 101.0) == []
        assert fleet.under_way is not None and fleet.under_way.change == 7

    def test_a_changed_load_begins_no_change(self) -> None:
        """After a while in which others may come, and once."""
        fleet = FleetChanges(FleetLimits(gather_s=2.0))
        assert fleet.handle(e.LoadChanged(), 100.0) == [e.WakeAt(102.0)]
        assert fleet.handle(e.LoadChanged(), 101.0) == []
        assert fleet.handle(e.FleetTick(), 102.0) == [e.BeginChange(1)]
        assert fleet.handle(e.ChangeEnded(1, True), 103.0) == []

    def test_a_change_that_failed_is_made_again_after_a_while(self) -> None:
        """A failed change is repeated after `retry_s`, since its cause may remain."""
        fleet = FleetChanges(FleetLimits(gather_s=0.0, retry_s=2.0))
        fleet.handle(e.InstanceNoticed("a", 130.0), 100.0)
        assert fleet.handle(e.ChangeEnded(1, False), 105.0) == [e.WakeAt(107.0)]
        assert without_wakeups(fleet.handle(e.FleetTick(), 107.0)) == [e.BeginChange(2, (e.Leaving("a", 130.0),))]

    def test_a_change_for_the_load_that_failed_is_made_again_too(self) -> None:
        fleet = FleetChanges(FleetLimits(gather_s=0.0, retry_s=2.0))
        fleet.handle(e.LoadChanged(), 100.0)
        fleet.handle(e.ChangeEnded(1, False), 105.0)
        assert begun(fleet.handle(e.FleetTick(), 107.0)) == e.BeginChange(2)


class TestMerging:
    """Several notices at once are one change."""

    def test_notices_that_come_together_merge(self) -> None:
        fleet = FleetChanges(FleetLimits(gather_s=0.5))
        assert fleet.handle(e.InstanceNoticed("b", 130.0), 100.0) == [e.WakeAt(100.5)]
        assert fleet.handle(e.InstanceNoticed("a", 130.0), 100.25) == []
        assert without_wakeups(fleet.handle(e.FleetTick(), 100.5)) == [
            e.BeginChange(1, (e.Leaving("b", 130.0), e.Leaving("a", 130.0)))
        ]

    def test_a_short_notice_waits_a_tenth_of_it(self) -> None:
        fleet = FleetChanges(FleetLimits(gather_s=0.5))
        assert fleet.handle(e.InstanceNoticed("a", 102.0), 100.0) == [e.WakeAt(100.2)]

    def test_losses_without_notice_merge_too(self) -> None:
        """The KV of each is dropped at once, and there is one change for both."""
        fleet = FleetChanges(FleetLimits(gather_s=0.5))
        assert without_wakeups(fleet.handle(e.InstanceLost("a"), 100.0)) == [e.DropKv("a")]
        assert without_wakeups(fleet.handle(e.InstanceLost("b"), 100.25)) == [e.DropKv("b")]
        assert fleet.handle(e.FleetTick(), 100.5) == [
            e.BeginChange(1, (e.Leaving("a", 100.0, lost=True), e.Leaving("b", 100.25, lost=True)))
        ]

    def test_repeated_news_changes_nothing(self, fleet: FleetChanges) -> None:
        """A bus may deliver again, also what is long over."""
        first = e.InstanceNoticed("a", 130.0)
        fleet.handle(first, 100.0)
        assert fleet.handle(first, 101.0) == []
        assert without_wakeups(fleet.handle(e.ChangeEnded(1, True), 110.0)) == []
        assert fleet.handle(first, 111.0) == []
        assert fleet.handle(e.InstanceLost("a"), 130.0) == []
        assert fleet.handle(e.InstanceLost("a"), 131.0) == []
        assert fleet.handle(e.InstanceAcquired("a", 10.0), 132.0) == []


class TestNewcomers:
    """An acquisition waits for an earlier interruption."""

    def test_it_is_delayed_until_the_interruption_is_settled(self, fleet: FleetChanges) -> None:
        fleet.handle(e.InstanceNoticed("a", 130.0), 100.0)
        assert without_wakeups(fleet.handle(e.InstanceAcquired("new", 105.0), 101.0)) == []
        assert without_wakeups(fleet.handle(e.ChangeEnded(1, True), 110.0)) == [
            e.BeginChange(2, (), (e.Joining("new", 105.0),))
        ]

    def test_it_waits_even_where_the_interruption_has_not_begun(self) -> None:
        """A newcomer waits for the noticed change, which came first, though that has not begun."""
        fleet = FleetChanges(FleetLimits(gather_s=1.0))
        fleet.handle(e.InstanceNoticed("a", 130.0), 100.0)
        fleet.handle(e.InstanceAcquired("new", 100.0), 100.5)
        assert begun(fleet.handle(e.FleetTick(), 101.0)) == e.BeginChange(1, (e.Leaving("a", 130.0),))

    def test_one_that_was_ours_before_takes_part_if_it_is_ready_by_then(self) -> None:
        """An instance acquired before the notice joins the change if it is ready by the deadline, in the place of
        a leaving one.
        """
        for ready_s, joining in ((125.0, (e.Joining("new", 125.0),)), (140.0, ())):
            fleet = FleetChanges(FleetLimits(gather_s=1.0))
            fleet.handle(e.InstanceAcquired("new", ready_s), 99.5)
            fleet.handle(e.InstanceNoticed("a", 130.0), 100.0)
            assert begun(fleet.handle(e.FleetTick(), 101.0)) == e.BeginChange(1, (e.Leaving("a", 130.0),), joining)

    def test_a_newcomer_that_goes_before_it_had_a_place_is_forgotten(self) -> None:
        for gone in (e.InstanceNoticed("new", 130.0), e.InstanceLost("new")):
            fleet = FleetChanges(FleetLimits(gather_s=1.0))
            fleet.handle(e.InstanceAcquired("new", 110.0), 100.0)
            fleet.handle(gone, 100.5)
            assert begun(fleet.handle(e.FleetTick(), 101.0)) is None
            assert fleet.unsettled == ()

    def test_a_newcomer_that_is_lost_while_it_joins_stops_the_change(self, fleet: FleetChanges) -> None:
        fleet.handle(e.InstanceAcquired("new", 110.0), 100.0)
        assert without_wakeups(fleet.handle(e.InstanceLost("new"), 105.0)) == [e.DropKv("new"), e.AbandonChange(1)]
        assert without_wakeups(fleet.handle(e.ChangeEnded(1, False), 106.0)) == [
            e.BeginChange(2, (e.Leaving("new", 105.0, lost=True),))
        ]


class TestEarlyDeaths:
    """An instance that goes before its deadline costs its KV, never a request."""

    def test_one_that_is_leaving_costs_its_kv_and_the_change_continues(self, fleet: FleetChanges) -> None:
        """A leaving instance that is lost costs its KV once, however often the loss is reported, and the change continues."""
        fleet.handle(e.InstanceNoticed("a", 130.0), 100.0)
        assert without_wakeups(fleet.handle(e.InstanceLost("a"), 110.0)) == [e.DropKv("a")]
        assert without_wakeups(fleet.handle(e.InstanceLost("a"), 111.0)) == []
        assert fleet.under_way is not None
        assert without_wakeups(fleet.handle(e.ChangeEnded(1, True), 112.0)) == []
        assert fleet.unsettled == ()

    def test_one_that_was_to_stay_stops_the_change(self, fleet: FleetChanges) -> None:
        """The new configuration counts on it. What the change was for is decided again, with the loss."""
        fleet.handle(e.InstanceNoticed("a", 130.0), 100.0)
        assert without_wakeups(fleet.handle(e.InstanceLost("b"), 105.0)) == [e.DropKv("b"), e.AbandonChange(1)]
        assert without_wakeups(fleet.handle(e.ChangeEnded(1, False), 106.0)) == [
            e.BeginChange(2, (e.Leaving("b", 105.0, lost=True), e.Leaving("a", 130.0)))
        ]

    def test_an_abandoned_change_that_ended_all_the_same_has_settled_what_it_was_for(self, fleet: FleetChanges) -> None:
        fleet.handle(e.InstanceNoticed("a", 130.0), 100.0)
        fleet.handle(e.InstanceLost("b"), 105.0)
        assert begun(fleet.handle(e.ChangeEnded(1, True), 106.0)) == e.BeginChange(
            2, (e.Leaving("b", 105.0, lost=True),)
        )

    def test_a_deadline_that_comes_is_a_loss(self, fleet: FleetChanges) -> None:
        """At the deadline an instance counts as lost, without a report."""
        fleet.handle(e.InstanceNoticed("a", 130.0), 100.0)
        assert without_wakeups(fleet.handle(e.FleetTick(), 129.9)) == []
        assert without_wakeups(fleet.handle(e.FleetTick(), 130.0)) == [e.DropKv("a")]
        assert without_wakeups(fleet.handle(e.InstanceLost("a"), 130.5)) == []

    def test_a_notice_of_no_time_is_a_loss(self, fleet: FleetChanges) -> None:
        assert without_wakeups(fleet.handle(e.InstanceNoticed("a", 100.0), 100.0)) == [
            e.DropKv("a"),
            e.BeginChange(1, (e.Leaving("a", 100.0, lost=True),)),
        ]

    def test_one_whose_interruption_is_settled_costs_nothing(self, fleet: FleetChanges) -> None:
        fleet.handle(e.InstanceNoticed("a", 130.0), 100.0)
        fleet.handle(e.ChangeEnded(1, True), 110.0)
        assert fleet.handle(e.InstanceLost("a"), 120.0) == []


class TestNestedNotices:
    """A second notice during a change."""

    def test_one_with_time_enough_waits(self) -> None:
        fleet = FleetChanges(FleetLimits(gather_s=0.0, reserve_s=5.0))
        fleet.handle(e.InstanceNoticed("a", 130.0), 100.0)
        fleet.handle(e.ChangeExpected(1, 120.0), 101.0)
        assert without_wakeups(fleet.handle(e.InstanceNoticed("b", 125.0), 102.0)) == []

    def test_one_without_abandons_the_change_and_both_are_decided_together(self) -> None:
        """Waiting for the end would cost its KV."""
        fleet = FleetChanges(FleetLimits(gather_s=0.0, reserve_s=5.0))
        fleet.handle(e.InstanceNoticed("a", 130.0), 100.0)
        fleet.handle(e.ChangeExpected(1, 120.0), 101.0)
        assert without_wakeups(fleet.handle(e.InstanceNoticed("b", 124.0), 102.0)) == [e.AbandonChange(1)]
        assert without_wakeups(fleet.handle(e.InstanceNoticed("c", 123.0), 102.5)) == []
        assert begun(fleet.handle(e.ChangeEnded(1, False), 103.0)) == e.BeginChange(
            2, (e.Leaving("c", 123.0), e.Leaving("b", 124.0), e.Leaving("a", 130.0))
        )

    def test_it_is_abandoned_as_soon_as_it_is_known_to_last_too_long(self, fleet: FleetChanges) -> None:
        """The plan may come after the notice, and a deadline may move."""
        fleet.handle(e.InstanceNoticed("a", 130.0), 100.0)
        fleet.handle(e.InstanceNoticed("b", 115.0), 100.5)
        assert without_wakeups(fleet.handle(e.ChangeExpected(1, 120.0), 101.0)) == [e.AbandonChange(1)]
        fleet = FleetChanges(AT_ONCE)
        fleet.handle(e.InstanceNoticed("a", 130.0), 100.0)
        fleet.handle(e.InstanceNoticed("b", 125.0), 100.5)
        assert without_wakeups(fleet.handle(e.ChangeExpected(1, 120.0), 101.0)) == []
        assert without_wakeups(fleet.handle(e.InstanceNoticed("b", 119.0), 102.0)) == [e.AbandonChange(1)]

    def test_another_deadline_of_a_leaving_instance_is_reported_to_the_change(self, fleet: FleetChanges) -> None:
        """Another deadline of a leaving instance is passed to the change, which arranges its requests again."""
        fleet.handle(e.InstanceNoticed("a", 130.0), 100.0)
        assert fleet.handle(e.InstanceNoticed("a", 115.0), 101.0) == [
            e.MoveDeadline(1, "a", 115.0),
            e.WakeAt(115.0),
        ]


class TestWithdrawal:
    """A notice that is taken back."""

    def test_before_the_change_there_is_none(self) -> None:
        fleet = FleetChanges(FleetLimits(gather_s=1.0))
        fleet.handle(e.InstanceNoticed("a", 130.0), 100.0)
        fleet.handle(e.NoticeWithdrawn("a"), 100.5)
        assert begun(fleet.handle(e.FleetTick(), 101.0)) is None

    @pytest.mark.parametrize("during", [True, False])
    def test_during_or_after_the_change_it_is_a_newcomer(self, during: bool, fleet: FleetChanges) -> None:
        """An instance withdrawn during or after the change is a newcomer, for its place has been taken away."""
        fleet.handle(e.InstanceNoticed("a", 130.0), 100.0)
        if during:
            fleet.handle(e.NoticeWithdrawn("a"), 105.0)
            commands = fleet.handle(e.ChangeEnded(1, True), 110.0)
        else:
            fleet.handle(e.ChangeEnded(1, True), 110.0)
            commands = fleet.handle(e.NoticeWithdrawn("a"), 105.0)
        assert begun(commands) == e.BeginChange(2, (), (e.Joining("a", 105.0),))

    def test_withdrawn_and_given_again_during_the_change_it_is_what_it_was(self, fleet: FleetChanges) -> None:
        fleet.handle(e.InstanceNoticed("a", 130.0), 100.0)
        fleet.handle(e.NoticeWithdrawn("a"), 105.0)
        assert without_wakeups(fleet.handle(e.InstanceNoticed("a", 140.0), 106.0)) == [e.MoveDeadline(1, "a", 140.0)]
        fleet.handle(e.ChangeEnded(1, False), 107.0)
        assert begun(fleet.handle(e.FleetTick(), 108.0)) == e.BeginChange(2, (e.Leaving("a", 140.0),))

    def test_withdrawn_and_lost_during_the_change_it_costs_its_kv(self, fleet: FleetChanges) -> None:
        fleet.handle(e.InstanceNoticed("a", 130.0), 100.0)
        fleet.handle(e.NoticeWithdrawn("a"), 105.0)
        assert without_wakeups(fleet.handle(e.InstanceLost("a"), 106.0)) == [e.DropKv("a")]
        assert without_wakeups(fleet.handle(e.ChangeEnded(1, True), 110.0)) == []

    def test_of_one_that_is_gone_it_means_nothing(self, fleet: FleetChanges) -> None:
        """A withdrawn notice of a lost instance does not bring it back."""
        fleet.handle(e.InstanceLost("a"), 100.0)
        fleet.handle(e.NoticeWithdrawn("a"), 101.0)
        fleet.handle(e.ChangeEnded(1, True), 110.0)
        assert fleet.handle(e.NoticeWithdrawn("a"), 111.0) == []


NAMES = st.sampled_from("abcdeuv")
NEWS = st.one_of(
    st.builds(e.InstanceNoticed, NAMES, st.floats(0, 60)),  # a deadline from then on
    st.builds(e.InstanceNoticed, NAMES, st.floats(0, 60)),
    st.builds(e.InstanceLost, NAMES),
    st.builds(e.InstanceAcquired, st.sampled_from("uvwxy"), st.floats(0, 30)),
    st.builds(e.NoticeWithdrawn, NAMES),
    st.just(e.LoadChanged()),
)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.floats(0, 100), NEWS), max_size=25),
    st.lists(st.tuples(st.floats(0.1, 25), st.sampled_from([True, True, True, False])), min_size=1, max_size=8),
    st.sampled_from([0.0, 0.2, 3.0]),
)
@example(  # acquired again after a loss, an instance whose notice was withdrawn before it
    [
        (1.0, e.InstanceLost("a")),
        (0.0, e.InstanceNoticed("v", 1.0)),
        (1.0, e.InstanceAcquired("v", 0.0)),
        (0.0, e.NoticeWithdrawn("v")),
    ],
    [(1.0, True)],
    0.0,
)
def test_whatever_comes_everything_is_settled_once(
    news: list[tuple[float, e.FleetChangeEvent]], changes: list[tuple[float, bool]], gather_s: float
) -> None:
    """Every notice, loss and newcomer is settled once, for any news, durations of changes and failures."""
    fleet = FleetChanges(FleetLimits(gather_s, reserve_s=1.0))
    due: list[tuple[float, int, e.FleetChangeEvent]] = []
    for at_s, event in news:
        if isinstance(event, e.InstanceNoticed):
            event = e.InstanceNoticed(event.instance, at_s + event.deadline_s)
        heapq.heappush(due, (at_s, len(due), event))
    under_way: int | None = None
    dropped: Counter[str] = Counter()
    interrupted_at: dict[str, int] = {}
    acquired_at: dict[str, int] = {}
    pushed, handled, now_s = len(due), 0, 0.0
    while due:
        now_s, _, event = heapq.heappop(due)
        handled += 1
        assert handled < 2_000, "there is no end to it"
        before = {each.instance for each in fleet.unsettled}
        change = fleet.under_way
        if isinstance(event, e.ChangeEnded) and change is not None and change.change == event.change:
            under_way = None
        commands = fleet.handle(event, now_s)
        for name in {each.instance for each in fleet.unsettled} - before:
            interrupted_at[name] = handled
        if isinstance(event, e.InstanceAcquired | e.NoticeWithdrawn):  # either makes it one that may join
            acquired_at.setdefault(event.instance, handled)
        for command in commands:
            match command:
                case e.BeginChange():
                    assert under_way is None, "two changes at a time"
                    under_way = command.change
                    leaving = {each.instance for each in command.leaving}
                    assert leaving == {each.instance for each in fleet.unsettled}
                    assert list(command.leaving) == sorted(command.leaving, key=lambda each: each.deadline_s)
                    for joining in command.joining:
                        assert joining.instance not in leaving
                        if leaving and joining.instance in acquired_at:
                            assert all(interrupted_at[name] > acquired_at[joining.instance] for name in leaving)
                    seconds, done = changes[command.change % len(changes)]
                    done = done or command.change > 8
                    pushed += 1
                    heapq.heappush(due, (now_s + seconds, pushed, e.ChangeEnded(command.change, done)))
                    pushed += 1
                    heapq.heappush(due, (now_s, pushed, e.ChangeExpected(command.change, now_s + seconds)))
                case e.AbandonChange():
                    assert under_way == command.change
                case e.WakeAt():
                    assert command.at_s > now_s
                    pushed += 1
                    heapq.heappush(due, (command.at_s, pushed, e.FleetTick()))
                case e.DropKv():
                    dropped[command.instance] += 1
                    assert {each.instance: each.lost for each in fleet.unsettled}[command.instance]
                case e.MoveDeadline():
                    assert under_way == command.change
    assert under_way is None
    assert fleet.under_way is None
    assert fleet.unsettled == (), "an interruption was forgotten"
    assert all(times == 1 for times in dropped.values())
    seen(f"{min(5, len(dropped))} dropped")
