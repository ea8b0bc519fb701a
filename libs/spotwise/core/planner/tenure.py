"""One term of a planner: the changes of the fleet that it carries out.

Law: what is ordered is in the store before; a plan is written again only where it says something else.
An abandoned change ends at once, and the next one continues with its evacuations, since what workers do needs no planner.
"""

from __future__ import annotations

from spotwise.core.membership.membership import Membership
from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import MemberState
from spotwise.core.migration.fleet import events as f
from spotwise.core.migration.fleet.changes import FleetChanges, FleetLimits
from spotwise.core.planner import commands as c
from spotwise.core.planner.change_cost import ChangeCost
from spotwise.core.planner.device_watch import DeviceWatch
from spotwise.core.planner.evacuation import Evacuation, evacuation
from spotwise.core.planner.fleet_planning import FleetPlanning
from spotwise.core.planner.plan import Plan, PlannedLeave
from spotwise.core.planner.policy import PlannerPolicy
from spotwise.core.planner.relief import Relief
from spotwise.core.planner.reshaping import Reshaping
from spotwise.core.planner.targets import Targets

#: A deployment is written again after so long, in case that the store has lost its data.
STORE_AGAIN_S = 60.0


def name_of(member: m.Member) -> str:
    """Return a worker's name among the instances of `FleetChanges`: a restarted worker is another one."""
    return f"{member.id}/{member.incarnation}"


class Tenure:
    """The state of a term; `last_plan` is an earlier term's."""

    def __init__(
        self,
        planner_id: str,
        term: int,
        policy: PlannerPolicy,
        membership: Membership,
        watch: DeviceWatch,
        targets: Targets,
        cost: ChangeCost,
        last_plan: Plan | None,
        fleet: FleetPlanning,
        now: float,
    ) -> None:
        self.term = term
        self.relief = Relief(planner_id, term, policy, targets, cost)
        self._planner_id = planner_id
        self._policy = policy
        self._membership = membership
        self._targets = targets
        self._cost = cost
        last_plan = last_plan or Plan(term, 0, 0)
        self._earlier = {f"{leave.worker_id}/{leave.incarnation}": leave for leave in last_plan.leaves}
        self._changes = FleetChanges(FleetLimits(reserve_s=policy.reserve_s), last_plan.change + 1)
        self.reshaping = Reshaping(
            planner_id, term, policy, membership, watch, cost, self._changes, last_plan.deployment, now
        )
        self._fleet = fleet
        fleet.begin(term)
        self._change: f.BeginChange | None = None
        self._evacuations: dict[str, Evacuation] = {}
        self._version = 0
        self._written: Plan | None = None
        self._stored: Plan | None = None
        self._awaits_store = False
        self._store_from_s = 0.0
        self._written_s = 0.0
        self._commands: list[c.PlannerCommand] = []

    def feed(self, event: f.FleetChangeEvent, now: float) -> None:
        """Let the fleet's changes know, and follow their commands."""
        match event:
            case f.InstanceNoticed(name, _):
                self.reshaping.interrupted(_worker_of(name), "has to leave", now, is_lost=False)
            case f.InstanceLost(name):
                self.reshaping.interrupted(_worker_of(name), "is gone", now, is_lost=True)
        for command in self._changes.handle(event, now):
            match command:
                case f.BeginChange():
                    self._begin(command, now)
                case f.AbandonChange(change):
                    self._end(change, now, done=False)
                case f.MoveDeadline(_, name, deadline_s):
                    self._leave_by(name, deadline_s, now)
                    self._expect_end(now)
                case f.DropKv(name):
                    self._evacuations.pop(name, None)

    def withdrawn(self, name: str, now: float) -> None:
        """Let a worker keep what it has: it stays."""
        self._evacuations.pop(name, None)
        self.feed(f.NoticeWithdrawn(name), now)

    def _begin(self, change: f.BeginChange, now: float) -> None:
        self._change = change
        for leaving in change.leaving:
            if leaving.lost:
                self._evacuations.pop(leaving.instance, None)
            else:
                self._leave_by(leaving.instance, leaving.deadline_s, now)
        self._report("began")
        self._expect_end(now)

    def _leave_by(self, name: str, deadline_s: float, now: float) -> None:
        """Evacuate a worker by this deadline; one whose notice had been withdrawn starts anew."""
        member = next((each for each in self._membership.workers() if name_of(each) == name), None)
        if member is None:
            self._evacuations.pop(name, None)
            return
        known = self._evacuations.get(name)
        if known is None:
            known = self._evacuations[name] = evacuation(member, deadline_s, self._policy, now)
            if name in self._earlier:
                known.take_up(self._earlier[name])
        known.deadline_s = deadline_s

    def _expect_end(self, now: float) -> None:
        """Let a notice that cannot wait for the last of the deadlines end the change."""
        if self._change is not None and self._evacuations:
            ends_s = max(each.deadline_s for each in self._evacuations.values())
            self.feed(f.ChangeExpected(self._change.change, ends_s), now)

    def _end(self, change: int, now: float, *, done: bool) -> None:
        self._report("ended" if done else "abandoned")
        self._change = None
        if done:
            self._evacuations.clear()
        self.feed(f.ChangeEnded(change, done), now)

    def _report(self, outcome: str) -> None:
        if self._change is not None:
            workers = tuple(_worker_of(each.instance) for each in self._change.leaving)
            self._commands.append(c.ReportChange(self._change.change, workers, outcome))

    @property
    def requests_that_move(self) -> int:
        """Requests of the workers that leave in the change under way, or left in it; 1 for one that relieves its worker."""
        return max(1, sum(each.most_requests for each in self._evacuations.values()))

    def surveyed(self, report: m.WorkerSurveyed, now: float) -> None:
        """Arrange what a leaving worker holds, or relieve one that stays."""
        for each in self._evacuations.values():
            if each.worker_id == report.worker_id:
                each.surveyed(report, self._targets, self._cost, now)
                return
        self._commands += self.relief.surveyed(report, self._leaving(), now)

    def move_ended(self, report: m.MoveEnded, now: float) -> None:
        """Let the evacuation or the relief of its source know."""
        self.relief.ended(report)
        self.reshaping.moved(report)
        for each in self._evacuations.values():
            if each.worker_id == report.worker_id:
                each.ended(report, now)

    def stored(self, answer: c.PlanStored, now: float) -> None:
        """Act on the plan from now on; one that was refused is written again after a while."""
        self._awaits_store = False
        if not answer.stored:
            self._store_from_s = now + self._policy.survey_s
            self.reshaping.not_stored()
        if self._written is not None and answer.stored and answer.version == self._written.version:
            self._stored = self._written

    def drive(self, now: float) -> list[c.PlannerCommand]:
        """Return the surveys, plans and orders that are due."""
        self.feed(f.FleetTick(), now)
        self._follow_fleet(now)
        self._commands += self.reshaping.advance(now)
        if self._change is not None:
            self._evacuate(now)
        self._store(now)
        if self._change is not None:
            self._order(now)
        self._commands += self.reshaping.orders(None if self._stored is None else self._stored.deployment, now)
        self._commands += self.relief.surveys(now)
        commands, self._commands = self._commands, []
        return commands

    def _follow_fleet(self, now: float) -> None:
        """Let the market have its say: what is bought, and to which configuration the mesh is re-shaped."""
        self._commands += self._fleet.advance(self.reshaping.groups, now)
        self.reshaping.prefer(self._fleet.wanted)
        if self.reshaping.takes_orders and (order := self._fleet.reshape(self.reshaping.groups, now)) is not None:
            self.reshaping.requested(order)

    def _evacuate(self, now: float) -> None:
        leaving = self._leaving()
        for each in self._first_deadline_first():
            each.at_once = each.at_once or each.worker_id in self.reshaping.retiring
            number = each.next_survey(now, self._policy.survey_s)
            if number is not None:
                self._commands.append(m.Send(each.worker_id, m.SurveyWorker(self._planner_id, number)))
            each.choose_targets(self._targets, leaving, now + self._policy.survey_s, now)

    def _first_deadline_first(self) -> list[Evacuation]:
        """Return the evacuations in the order in which they get room at targets, and their orders."""
        return sorted(self._evacuations.values(), key=lambda each: each.deadline_s)

    def _order(self, now: float) -> None:
        leaves = () if self._stored is None else self._stored.leaves
        stored = {leave.worker_id: leave for leave in reversed(leaves)}
        for each in self._first_deadline_first():
            if (leave := stored.get(each.worker_id)) is not None:
                orders = each.due(leave, self._planner_id, self.term, now)
                self._commands += orders
                self.reshaping.sent(orders)
        if self._change is not None and all(self._is_over(each) for each in self._evacuations.values()):
            self._end(self._change.change, now, done=True)

    def _is_over(self, evacuation: Evacuation) -> bool:
        """A worker that does not drain yet may still get requests."""
        member = self._membership.get(evacuation.worker_id)
        if member is None or member.incarnation != evacuation.incarnation:
            return True
        return evacuation.is_empty and member.state is MemberState.DRAINING

    def _leaving(self) -> frozenset[str]:
        """The workers under notice: also those whose change has not begun, which drain in a moment, and those that retire."""
        noticed = (_worker_of(each.instance) for each in self._changes.unsettled if not each.lost)
        return frozenset([*(each.worker_id for each in self._evacuations.values()), *noticed, *self.reshaping.retiring])

    def _store(self, now: float) -> None:
        """Write the plan where it says something else than the last one, or the store may have lost it."""
        deployment, written = self.reshaping.deployment, self._written
        if self._awaits_store or now < self._store_from_s:
            return
        says_nothing = self._change is None and deployment is None
        if says_nothing and (written is None or written.deployment is None):
            return
        leaves = tuple(each.planned() for each in self._evacuations.values())
        if written is not None and written is self._stored and written.deployment == deployment:
            is_fresh = deployment is None or now - self._written_s < STORE_AGAIN_S
            if is_fresh and _gist(written.leaves) == _gist(leaves):
                return
        self._version += 1
        self._written = Plan(self.term, self._changes.next_change - 1, self._version, leaves, deployment)
        self._written_s = now
        self._awaits_store = True
        self._commands.append(c.StorePlan(self._written))


def _worker_of(name: str) -> str:
    """Return the worker that `name_of` named."""
    return name.rpartition("/")[0]


def _gist(leaves: tuple[PlannedLeave, ...]) -> list[tuple[str, float, list[tuple[str, str, str]]]]:
    """What a plan decides, without the times that each survey shifts a little."""
    return [
        (
            leave.worker_id,
            leave.deadline_s,
            [(each.arrangement.choice_id, each.arrangement.disposition, each.target_id) for each in leave.requests],
        )
        for leave in leaves
    ]
