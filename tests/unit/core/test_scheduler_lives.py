"""The scheduler with reports of the fleet: from the report to the placement."""

from __future__ import annotations

from itertools import count

import pytest

from spotwise.core.messages import mesh as m
from spotwise.core.scheduler.answer_times import ENOUGH
from spotwise.core.scheduler.lives import REPORT_COUNTS_S
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.role import SchedulerLimits
from tests.unit.core.builders import ledger, worker_member
from tests.unit.core.scheduler.fleets import device, fleet, instance
from tests.unit.core.scheduler_bench import PROMPT, SchedulerBench, reserved, submission

#: Sooner chosen by their queues; a token of the queue costs 0.5 ms.
SPOT, STAYS = worker_member("spot", blocks=1000), worker_member("stays", owed=50, blocks=1000)
_NUMBERS = count()
PATIENT = SchedulerLimits(member_timeout_s=1e9)


def bench(policy: PoolPolicy | None = None) -> SchedulerBench:
    return SchedulerBench(PROMPT, SPOT, STAYS, limits=PATIENT, policy=policy)


def report(mesh: SchedulerBench, per_s: float = 1 / 60, *ids: str) -> m.FleetReported:
    return fleet(*map(instance, ids or ("spot",)), hazards={"a": per_s}, at_s=mesh.now)


def chosen(mesh: SchedulerBench, *, new: int = 1000) -> str:
    """Submit a request that is closed at once, and return its token worker."""
    choice_id = f"r{next(_NUMBERS)}"
    ((_, worker_id),) = mesh.placements(submission(choice_id, new=new))
    mesh.feed(m.CloseRequest(choice_id, 1, finished=False))
    for worker in (SPOT, STAYS):  # what was ordered is cancelled
        mesh.feed(worker_member(worker.id, blocks=1000, owed=50 * (worker is STAYS), seen=(("s", 10**6),)))
    return worker_id


def test_a_report_makes_long_answers_go_to_the_machine_that_stays() -> None:
    mesh = bench()
    assert chosen(mesh) == "spot"
    assert mesh.feed(report(mesh)) == []
    assert chosen(mesh) == "stays"
    assert chosen(mesh, new=1) == "spot"


def test_the_ledger_has_what_life_decided() -> None:
    """A fact more, where the queue would have decided otherwise."""
    mesh = bench()
    mesh.feed(report(mesh))
    for number, new, by_life in ((1, 1000, 1), (3, 10, None)):
        ((choice_id, worker_id),) = mesh.placements(submission(f"r{number}", new=new))
        commands = mesh.feed(reserved(choice_id, 1, worker_id, number=number))
        assert ledger(commands, "assigned")[0].get("by_life") == by_life


def test_without_reports_for_a_while_queues_decide_again() -> None:
    mesh = bench()
    mesh.feed(report(mesh))
    mesh.feed(m.Tick(), after_s=REPORT_COUNTS_S - 1)
    assert chosen(mesh) == "stays"
    mesh.feed(m.Tick(), after_s=1)
    assert chosen(mesh) == "spot"


def test_an_interruption_that_costs_nothing_switches_it_off() -> None:
    mesh = bench(PoolPolicy(interruption_s=0.0))
    mesh.feed(report(mesh))
    assert chosen(mesh) == "spot"
    assert mesh.role.pools["spot"].life is None


def test_a_group_has_the_lives_of_its_devices() -> None:
    mesh = bench()
    mesh.feed(report(mesh, 1 / 60, "i", "j"))
    assert chosen(mesh) == "spot"
    mesh.feed(device("i-0", "spot"))
    assert chosen(mesh) == "stays"
    mesh.feed(device("i-0", "spot", is_placed=False))
    assert chosen(mesh) == "spot"


@pytest.mark.parametrize("back", [True, False])
def test_a_lost_device_or_worker_leaves_nothing_behind(back: bool) -> None:
    """Its next incarnation begins anew; a late heartbeat of the former changes nothing."""
    mesh = SchedulerBench(PROMPT, SPOT, STAYS, limits=SchedulerLimits(member_timeout_s=2.0))
    mesh.feed(report(mesh, 1 / 60, "i"))
    mesh.feed(device("i-0", "spot", incarnation=2))
    assert mesh.role.pools["spot"].life is not None
    mesh.feed(m.Tick(), after_s=3)
    mesh.feed(SPOT)
    assert mesh.role.pools["spot"].life is None
    if back:
        mesh.feed(device("i-0", "spot", incarnation=3))
    mesh.feed(device("i-0", "spot", is_placed=False, incarnation=2))
    assert (mesh.role.pools["spot"].life is not None) is back


def test_a_worker_that_restarts_keeps_the_life_of_its_machine() -> None:
    """The new incarnation is on the same instance."""
    mesh = bench()
    mesh.feed(report(mesh))
    mesh.feed(worker_member("spot", blocks=1000, incarnation=2))
    assert mesh.role.pools["spot"].life is not None


def test_answers_that_end_soon_need_no_machine_that_stays() -> None:
    """Requests that allow 1,000 tokens, and have ended after a tenth of a second, go by the queue."""
    mesh = bench()
    mesh.feed(report(mesh))
    for number in range(1, ENOUGH + 1):
        ((choice_id, worker_id),) = mesh.placements(submission(f"e{number}", new=1000))
        mesh.feed(reserved(choice_id, 1, worker_id, number=2 * number - 1))
        mesh.feed(m.CloseRequest(choice_id, 1, finished=True), after_s=0.1)
    for worker in (SPOT, STAYS):
        mesh.feed(worker_member(worker.id, blocks=1000, owed=50 * (worker is STAYS), seen=(("s", 10**6),)))
    assert chosen(mesh) == "spot"
