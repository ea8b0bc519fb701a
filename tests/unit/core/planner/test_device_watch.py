"""Which devices have to leave, and by when."""

from __future__ import annotations

from spotwise.core.membership.membership import Membership
from spotwise.core.messages.members import Member, MemberKind
from spotwise.core.planner.device_watch import DeviceWatch
from tests.unit.core.builders import plain_member


def device(incarnation: int = 1) -> Member:
    return plain_member("d", MemberKind.DEVICE, incarnation=incarnation)


def test_a_notice_keeps_its_earliest_deadline() -> None:
    watch = DeviceWatch(Membership(2.0))
    for deadline_s in (200.0, 100.0, 300.0):
        watch.noticed(device(), deadline_s)
    assert watch.deadline_s("d") == 100.0


def test_the_next_incarnation_has_a_deadline_of_its_own() -> None:
    """Though its notice comes before its first heartbeat."""
    watch = DeviceWatch(Membership(2.0))
    watch.noticed(device(), 100.0)
    watch.noticed(device(incarnation=2), 300.0)
    assert watch.deadline_s("d") == 300.0
    watch.reported(device(incarnation=3))
    assert watch.deadline_s("d") is None
