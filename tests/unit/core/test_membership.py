"""Tests of membership: members of the mesh by their heartbeats."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.membership.membership import FORGOTTEN_AFTER_S, MemberJoined, MemberLost, Membership
from spotwise.core.messages.members import Member, MemberKind, MemberState, Pool
from tests.unit.core.builders import plain_member, worker_member

GATEWAY = plain_member("g", MemberKind.GATEWAY)
TIMEOUT_S = 2.0


@pytest.fixture
def members() -> Membership:
    return Membership(TIMEOUT_S)


def test_the_first_heartbeat_joins_and_later_ones_renew(members: Membership) -> None:
    """A member joins once; its newest report replaces the one before."""
    busier = replace(GATEWAY, state=MemberState.DRAINING)
    assert members.observe(GATEWAY, 0.0) == [MemberJoined(GATEWAY)]
    assert members.observe(busier, 1.0) == []
    assert members.get("g") is busier


def test_silence_longer_than_the_timeout_loses_a_member_once(members: Membership) -> None:
    members.observe(GATEWAY, 0.0)
    assert members.expire(2.0) == []
    assert members.expire(2.1) == [MemberLost(GATEWAY, "silent for 2 s")]
    assert members.get("g") is None
    assert members.expire(9.0) == []


def test_a_silent_member_that_reports_again_joins_again(members: Membership) -> None:
    """Silence is no proof of death."""
    members.observe(GATEWAY, 0.0)
    members.expire(3.0)
    assert members.observe(GATEWAY, 4.0) == [MemberJoined(GATEWAY)]


def test_a_restart_is_a_loss_and_a_joining(members: Membership) -> None:
    """A restart loses what the first incarnation held, even if its absence went unnoticed."""
    reborn = replace(GATEWAY, incarnation=2)
    members.observe(GATEWAY, 0.0)
    assert members.observe(reborn, 0.5) == [MemberLost(GATEWAY, "restarted"), MemberJoined(reborn)]


def test_a_late_heartbeat_of_an_earlier_incarnation_changes_nothing(members: Membership) -> None:
    """The late heartbeat neither replaces the newer report nor counts as a sign of life."""
    reborn = replace(GATEWAY, incarnation=2)
    members.observe(reborn, 0.0)
    assert members.observe(GATEWAY, 1.9) == []
    assert members.get("g") is reborn
    assert members.expire(2.1) == [MemberLost(reborn, "silent for 2 s")]
    assert members.observe(GATEWAY, 2.2) == []
    assert members.get("g") is None


def test_a_member_that_reports_its_departure_is_lost_at_once(members: Membership) -> None:
    """A goodbye takes effect without a time-out; one of an unknown member changes nothing."""
    gone = replace(GATEWAY, state=MemberState.LEFT)
    assert members.observe(gone, 0.0) == []
    members.observe(GATEWAY, 0.1)
    assert members.observe(gone, 0.2) == [MemberLost(GATEWAY, "left", is_expected=True)]
    assert members.expire(9.0) == []


def test_a_good_bye_of_a_new_incarnation_ends_the_old_one_too(members: Membership) -> None:
    """A process that started and left between two heartbeats still replaced its predecessor."""
    members.observe(GATEWAY, 0.0)
    gone = replace(GATEWAY, incarnation=2, state=MemberState.LEFT)
    assert members.observe(gone, 0.1) == [MemberLost(GATEWAY, "restarted")]
    assert members.all() == []


def test_lost_lately_covers_one_timeout_and_ends_with_a_return(members: Membership) -> None:
    """News of a member lost long ago, present again or never seen is not taken for stale."""
    assert not members.lost_lately("g", 0.0)
    members.observe(GATEWAY, 0.0)
    members.expire(3.0)
    assert members.lost_lately("g", 5.0)
    assert not members.lost_lately("g", 5.1)
    members.observe(GATEWAY, 5.0)
    assert not members.lost_lately("g", 5.0)


def test_members_are_listed_in_order_of_id(members: Membership) -> None:
    """Whatever order they came in; `workers` leaves everyone else out."""
    came: list[Member] = [worker_member("t2"), GATEWAY, worker_member("p1", Pool.PROMPT), worker_member("t1")]
    for member in came:
        members.observe(member, 0.0)
    assert [member.id for member in members.all()] == ["g", "p1", "t1", "t2"]
    assert [member.id for member in members.workers()] == ["p1", "t1", "t2"]
    assert [member.id for member in members.all(MemberKind.GATEWAY)] == ["g"]


def test_several_silent_members_are_lost_in_order_of_id(members: Membership) -> None:
    """Losses of one moment are in order of id, so that every observer acts on them alike."""
    for worker_id in ("b", "a", "c"):
        members.observe(worker_member(worker_id), 0.0)
    assert [loss.member.id for loss in members.expire(5.0) if isinstance(loss, MemberLost)] == ["a", "b", "c"]


def test_members_that_are_gone_for_long_are_forgotten(members: Membership) -> None:
    """However many ids there were, silent members and ones of which only a goodbye came are forgotten after a while."""
    members.observe(GATEWAY, 0.0)
    for number in range(100):
        members.observe(worker_member(f"w{number}"), 0.0)
        members.observe(replace(worker_member(f"v{number}"), state=MemberState.LEFT), 0.0)
    members.expire(3.0)
    members.observe(GATEWAY, FORGOTTEN_AFTER_S)
    members.expire(FORGOTTEN_AFTER_S)
    assert members.remembered == 201
    members.observe(GATEWAY, FORGOTTEN_AFTER_S + 5.0)
    members.expire(FORGOTTEN_AFTER_S + 5.0)
    assert members.remembered == 1
    assert members.get("g") is GATEWAY


def test_one_whose_process_ended_without_a_word_is_lost_at_once(members: Membership) -> None:
    """Another member's report ends it at once; for an ended incarnation it changes nothing, and a new heartbeat joins anew."""
    members.observe(GATEWAY, 0.0)
    ended = replace(GATEWAY, state=MemberState.LOST)
    assert members.observe(ended, 0.1) == [MemberLost(GATEWAY, "ended without notice")]
    assert members.observe(ended, 0.2) == []
    restarted = replace(GATEWAY, incarnation=GATEWAY.incarnation + 1)
    members.observe(restarted, 0.3)
    assert members.observe(ended, 0.4) == []
    assert members.get("g") is restarted


def test_time_away_is_no_silence() -> None:
    """The listener could receive nothing while away; afterwards silence counts as before."""
    members = Membership(TIMEOUT_S, {MemberKind.CLUSTER_SCHEDULER: 10.0})
    scheduler = plain_member("s", MemberKind.CLUSTER_SCHEDULER)
    members.observe(GATEWAY, 0.0)
    members.observe(scheduler, 0.0)
    members.was_away(60.0)
    assert members.expire(61.9) == []
    assert members.expire(62.1) == [MemberLost(GATEWAY, "silent for 2 s")]
    assert members.expire(70.1) == [MemberLost(scheduler, "silent for 10 s")]


def test_a_heartbeat_after_time_away_counts_from_when_it_came(members: Membership) -> None:
    """Time away before a heartbeat gives its member no longer time-out after it."""
    members.was_away(60.0)
    members.observe(GATEWAY, 61.0)
    assert members.expire(63.0) == []
    assert members.expire(63.1) == [MemberLost(GATEWAY, "silent for 2 s")]
