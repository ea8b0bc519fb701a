"""What a keeper does with instances and purchases that are left over: of devices, planners and keepers that are gone."""

from __future__ import annotations

from spotwise.core.fleet.keeper import events as k
from spotwise.core.fleet.keeper.role import SILENT_S
from spotwise.core.messages.mesh import Tick
from spotwise.core.spot.commands import PublishNotice
from tests.unit.core.fleet.keeping import Keeping, device, listed, of, purchase


def test_an_instance_whose_devices_are_gone_is_given_back() -> None:
    """Silence counts while other members are heard; a device that comes back in time ends it."""
    keeping = Keeping()
    keeping.lists(listed("i0"), listed("i1"))
    keeping.feed(device("i0"))
    keeping.feed(device("i1"))

    def pass_time(seconds: int, *heard: str) -> list[str]:
        back = []
        for _ in range(seconds):
            for each in heard:
                keeping.feed(device(each))
            back += [id_ for each in of(keeping.feed(Tick(), 1.0), k.GiveBack) for id_ in each.instance_ids]
        return back

    assert pass_time(200) == []
    assert pass_time(int(SILENT_S) - 10, "other") == []
    assert pass_time(1, "i1") == []
    assert pass_time(40, "other") == ["i0"]
    assert keeping.report().instances[0].why_leaving == "its devices are gone"


def test_an_instance_that_has_to_leave_is_written_before_its_devices_know() -> None:
    keeping = Keeping()
    keeping.lists(listed("i0"))
    keeping.feed(device("i0"))
    commands = keeping.release("i0")
    kept, notice = of(commands, k.KeepFleet)[0], of(commands, PublishNotice)[0]
    assert commands.index(kept) < commands.index(notice)
    assert kept.kept.instances[0].leave is not None


def test_a_purchase_of_a_planner_that_is_gone_is_over_for_the_next_one() -> None:
    """The next planner, or a keeper that took over, does not wait for instances that are asked for no more."""
    keeping = Keeping()
    keeping.lists()
    keeping.order(purchase())
    keeping.feed(k.PurchaseAnswered("t1", kind=k.RefusalKind.UNAVAILABLE, problem="throttled"))
    later = Keeping(keeping.kept(), keeping.now + 1.0, incarnation=2)
    later.lists()
    later.order(term=2)
    assert not later.report().purchases[0].is_answered
    later.feed(Tick(), 10.0)
    assert later.report().purchases[0].is_answered
