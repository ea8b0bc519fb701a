"""Evacuates the requests of one worker that leaves.

Law: the worker is surveyed every `survey_s` until it holds nothing, and each survey is arranged again
(`interruption.arrange`): a lost message, a refusal or a longer output costs one interval. Requests on their way are left alone.
A request finishes where that is possible by the deadline, else it decodes here until its copy has to start. A target is chosen
then. Without one, or without time for its copy, it is given back at the last moment at which it can be; where computing again
is sooner, at once. Prompts that are still computed, and KV that cannot be read now, are waited for until then.
Where the worker leaves for a re-shape (`at_once`), no request waits that could move.

Source: just-in-time arrangement, SpotServe, section 4.1; by request instead of by batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from spotwise.core.costs.cost_model import LinkCost
from spotwise.core.messages import mesh as m
from spotwise.core.migration.deployment import RunningRequest
from spotwise.core.migration.interruption.arrangement import (
    Arrangement,
    DecodePace,
    Disposition,
    Notice,
    RemoteHolder,
    rearrange,
)
from spotwise.core.planner.change_cost import ChangeCost
from spotwise.core.planner.plan import PlannedLeave, PlannedRequest
from spotwise.core.planner.policy import PlannerPolicy
from spotwise.core.planner.targets import Targets
from spotwise.core.requests.record import sequence_id

#: An order whose effect no survey shows after so long was lost.
ORDER_LOST_S = 1.0
#: A target that refused a request is not tried again for so long.
REFUSED_FOR_S = 2.0
#: Seconds of another attempt beside its queue and its prompt: gateway, scheduler, reservation, hand-off.
ATTEMPT_S = 0.1
#: Copies are arranged to end so much earlier than they have to, at most the margin: orders take their time, too.
SPARE_S = 0.5
#: Seconds of an iteration, until the worker has run one.
_FIRST_STEP_S = 0.05


@dataclass(slots=True)
class _Order:
    target_id: str | None  #: `None`: given back
    sent_s: float


@dataclass(slots=True)
class Evacuation:
    """One worker under notice. Everything but the notice itself is learned again from the next survey."""

    worker_id: str
    incarnation: int
    deadline_s: float
    margin_s: float
    at_once: bool = False  #: nothing waits for the deadline that could move now
    is_empty: bool = False
    most_requests: int = 0  #: that it held in any survey
    _survey: int = 0
    _surveyed_s: float = 0.0
    _sequences: dict[str, m.SurveyedSequence] = field(default_factory=dict)
    _arranged: dict[str, Arrangement] = field(default_factory=dict)
    _squeezed: set[str] = field(default_factory=set)  # worth a move, and without time on the link
    _is_late: bool = False  # copies begin at once
    _targets: dict[str, str] = field(default_factory=dict)
    _ordered: dict[str, _Order] = field(default_factory=dict)
    _refused: dict[tuple[str, str], float] = field(default_factory=dict)

    def take_up(self, planned: PlannedLeave) -> None:
        """Continue with what an earlier planner arranged."""
        self._arranged = {each.arrangement.choice_id: each.arrangement for each in planned.requests}

    @property
    def latest_s(self) -> float:
        """When the last request must have left."""
        return self.deadline_s - self.margin_s

    def next_survey(self, now: float, survey_s: float) -> int | None:
        """Return the number of the survey that is due, if one is."""
        if self._survey and now - self._surveyed_s < survey_s:
            return None
        self._survey += 1
        self._surveyed_s = now
        return self._survey

    def surveyed(self, report: m.WorkerSurveyed, targets: Targets, cost: ChangeCost, now: float) -> None:
        """Arrange the requests in their present state."""
        if report.number != self._survey:
            return  # a late answer
        self._sequences = {sequence_id(each.choice_id, each.epoch): each for each in report.sequences}
        self.is_empty = not self._sequences
        self.most_requests = max(self.most_requests, len(self._sequences))
        self._see_orders(now)
        self._refused = {pair: until_s for pair, until_s in self._refused.items() if until_s > now}
        requests = [
            RunningRequest(key, each.tokens, remaining=each.remaining)
            for key, each in self._sequences.items()
            if each.tokens and (key not in self._ordered or key in self._arranged)
        ]
        notice = self._notice(report.step_s or _FIRST_STEP_S, targets, cost)
        worth_a_move = {each.id for each in requests if notice.saved_s(each) > 0}
        on_their_way = [each for key, each in self._arranged.items() if key in self._ordered]
        for spare_s in (min(SPARE_S, self.margin_s), 0.0):
            tried = replace(notice, margin_s=self.margin_s + spare_s)
            arranged = rearrange(now, tried, on_their_way, requests)
            self._squeezed = {
                each.choice_id
                for each in arranged
                if each.disposition is Disposition.RECOMPUTE and each.choice_id in worth_a_move
            }
            self._is_late = not spare_s
            if not self._squeezed:
                break
        self._arranged = {each.choice_id: each for each in arranged}
        for key in [key for key in self._targets if key not in self._arranged]:
            del self._targets[key]

    def _see_orders(self, now: float) -> None:
        """Replace what was ordered by what the survey shows of it."""
        for key, sequence in self._sequences.items():
            if sequence.target_id:
                self._ordered[key] = _Order(sequence.target_id, now)
        for key, order in list(self._ordered.items()):
            if key not in self._sequences or now - order.sent_s > ORDER_LOST_S:
                self._forget(key)

    def _forget(self, key: str) -> None:
        """Arrange a request anew."""
        for known in (self._ordered, self._arranged, self._targets):
            known.pop(key, None)

    def _notice(self, step_s: float, targets: Targets, cost: ChangeCost) -> Notice:
        prompt_token_s = targets.prompt_token_s()
        return Notice(
            self.deadline_s,
            DecodePace(0.0, step_s),  # a copy waits for no iteration's end
            LinkCost(cost.latency_s, 1.0 / cost.token_s),
            kv_token_bytes=1,
            remote=RemoteHolder(
                lambda tokens: tokens * prompt_token_s,
                targets.queued_prompt_tokens() * prompt_token_s + ATTEMPT_S,
                cost.latency_s,
            ),
            margin_s=self.margin_s,
            pre_copies=True,
            at_once=self.at_once,
        )

    def choose_targets(self, targets: Targets, leaving: frozenset[str], until_s: float, now: float) -> None:
        """Choose a target for each request whose copy starts by `until_s`."""
        for key, arrangement in self._arranged.items():
            start_s = arrangement.copy_start_s
            sequence, target_id = self._sequences.get(key), self._targets.get(key)
            if key in self._ordered or sequence is None or start_s is None:
                continue
            if start_s > until_s and not self._is_late:
                continue
            if target_id is not None and target_id not in leaving and targets.stays(target_id):
                continue
            without = {each for (of, each) in self._refused if of == key} | leaving
            found = targets.find(self.worker_id, sequence, without)
            if found is None:
                self._targets.pop(key, None)
            else:
                self._targets[key] = found
                targets.assign(found, sequence, now)

    def planned(self) -> PlannedLeave:
        """Return what is to happen, for the store."""
        requests = tuple(PlannedRequest(each, self._targets.get(key, "")) for key, each in self._arranged.items())
        return PlannedLeave(self.worker_id, self.incarnation, self.deadline_s, requests)

    def due(self, stored: PlannedLeave, planner_id: str, term: int, now: float) -> list[m.Send]:
        """Return the orders that are due, of those that the stored plan has."""
        known = {each.arrangement.choice_id: each for each in stored.requests}
        orders = []
        for key, sequence in self._sequences.items():
            if key in self._ordered:
                continue
            arrangement, target_id = self._arranged.get(key), self._targets.get(key)
            if arrangement is not None and arrangement.copy_start_s is not None and target_id is not None:
                plan = known.get(key)
                if plan is None or plan.target_id != target_id:
                    continue
                if arrangement.copy_start_s > now and not self._is_late:
                    continue
                message: m.Message = m.MoveRequest(sequence.choice_id, sequence.epoch, planner_id, target_id, term)
            elif reason := self._why_given_back(key, arrangement, now):
                message = m.GiveBackRequest(sequence.choice_id, sequence.epoch, reason, term)
            else:
                continue
            self._ordered[key] = _Order(target_id, now)
            orders.append(m.Send(self.worker_id, message))
        return orders

    def _why_given_back(self, key: str, arrangement: Arrangement | None, now: float) -> str | None:
        """Return why a request is given back now; `None` where it is not."""
        if arrangement is None or key in self._squeezed:
            return "its KV could not be moved by the deadline" if now >= self.latest_s else None
        if arrangement.disposition is Disposition.RECOMPUTE:
            return "computing it again is sooner than a move" if now >= arrangement.stop_s else None
        if arrangement.disposition is Disposition.MOVE and now >= self.latest_s:
            return "no worker had free blocks for it"
        return None

    def ended(self, report: m.MoveEnded, now: float) -> None:
        """Learn how a move ended: what was refused or failed is arranged anew."""
        key = sequence_id(report.choice_id, report.epoch)
        order = self._ordered.get(key)
        if order is None or order.target_id != report.target_id:
            return
        if report.outcome in (m.MoveOutcome.REFUSED, m.MoveOutcome.FAILED):
            self._refused[key, report.target_id] = now + REFUSED_FOR_S
            self._forget(key)
            self._surveyed_s = -1.0  # at once
        else:
            self._sequences.pop(key, None)
            self._forget(key)


def evacuation(worker: m.Member, deadline_s: float, policy: PlannerPolicy, now: float) -> Evacuation:
    """Return the evacuation of a worker that was noticed now."""
    margin_s = min(policy.margin_s, max(deadline_s - now, 0.0) / 4)
    return Evacuation(worker.id, worker.incarnation, deadline_s, margin_s)
