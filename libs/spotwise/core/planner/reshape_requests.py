"""An operator's order of a re-shape, from the survey of the devices to its answer.

Law: one order at a time, and one answer to each. An order is accepted once its plan is in the store; a dry run, once it is
planned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spotwise.core.membership.membership import Membership
from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import MemberKind, MemberState
from spotwise.core.messages.numerics import Crossing
from spotwise.core.planner import commands as c
from spotwise.core.planner.change_cost import ChangeCost
from spotwise.core.planner.device_survey import DeviceSurvey, of_other_classes
from spotwise.core.planner.device_watch import DeviceWatch
from spotwise.core.planner.group_choice import GroupChoice, choose_groups, written


@dataclass(slots=True)
class _Order:
    """An order, with the survey for it; `accepted` is the answer once its plan is in the store."""

    number: int
    order: m.ReshapeMesh
    survey: DeviceSurvey
    device_ids: frozenset[str] | None
    accepted: m.ReshapeReply | None = None


class ReshapeRequests:
    """The order that is being planned, if any."""

    def __init__(
        self,
        planner_id: str,
        membership: Membership,
        watch: DeviceWatch,
        cost: ChangeCost,
        survey_numbers: Callable[[], int],
        crossing: Crossing,
    ) -> None:
        self._planner_id = planner_id
        self._crossing = crossing
        self._membership = membership
        self._watch = watch
        self._survey_number = survey_numbers
        self._cost = cost
        self._order: _Order | None = None
        self._commands: list[c.PlannerCommand] = []

    @property
    def is_busy(self) -> bool:
        """Whether an order is being planned or stored."""
        return self._order is not None

    @property
    def awaits_store(self) -> bool:
        """Whether an order is planned, and not in the store yet."""
        return self._order is not None and self._order.accepted is not None

    def take(self, event: c.ReshapeRequested) -> None:
        """Survey all devices for an order."""
        devices = self._membership.all(MemberKind.DEVICE)
        asked = [each.id for each in devices if each.state in (MemberState.READY, MemberState.DRAINING)]
        survey = DeviceSurvey(self._planner_id, self._survey_number(), asked)
        self._order = _Order(event.number, event.order, survey, event.device_ids)

    def surveyed(self, report: m.DeviceSurveyed) -> None:
        """Take a device's answer."""
        if self._order is not None:
            self._order.survey.answered(report)

    def refuse(self, number: int, reason: str) -> None:
        """Answer that an order is not carried out."""
        self._commands.append(c.AnswerReshape(number, m.ReshapeReply(False, reason)))

    def refuse_pending(self, reason: str) -> None:
        """Refuse the order that is being planned, if any."""
        if self._order is not None:
            self.refuse(self._order.number, reason)
            self._order = None

    def planned(self, groups: Sequence[m.DeviceGroup], change: int, now: float) -> tuple[str, GroupChoice] | None:
        """Return the configuration and the groups of an order that can be carried out, once its devices have answered; `groups`
        are to serve now, `change` will be its number.
        """
        order = self._order
        if order is None or self.awaits_store:
            return None
        self._commands += order.survey.due(now)
        if not order.survey.is_over(now):
            return None
        config = order.order.config
        workers = [worker for worker in self._membership.workers() if worker.pool is not None]
        leaving = self._watch.leaving()
        if order.device_ids is not None:  # the others stay, without a position
            others = [each.device_id for each in order.survey.reports if each.device_id not in order.device_ids]
            leaving = {**dict.fromkeys(others, math.inf), **leaving}
        foreign = of_other_classes(
            order.survey.reports, self._watch.class_of, leaving, groups, config.devices, self._crossing
        )
        leaving = {**foreign, **leaving}
        choice = choose_groups(config, order.survey.reports, workers, change, self._cost, now, leaving, groups)
        silent = f"; no answer of {', '.join(order.survey.silent)}" if order.survey.silent else ""
        if isinstance(choice, str):
            of_class = f"; {', '.join(foreign)} compute in another numerics class, and a group forms within one"
            self.refuse_pending(choice + (of_class if foreign else "") + silent)
            return None
        detail = (
            f"{written(config)}: {_count(choice.new, 'is', 'are')} formed, {_count(choice.go_on, 'goes', 'go')} on, "
            f"{_count(choice.retiring, 'retires', 'retire')}{silent}"
        )
        dry_run = order.order.dry_run
        order.accepted = m.ReshapeReply(True, detail, 0 if dry_run else change, choice.prediction)
        if dry_run:
            self.stored()
            return None
        return written(config), choice

    def stored(self) -> None:
        """Answer that the order is carried out."""
        if self._order is not None and self._order.accepted is not None:
            self._commands.append(c.AnswerReshape(self._order.number, self._order.accepted))
            self._order = None

    def commands(self) -> list[c.PlannerCommand]:
        """Return the questions and answers that are due."""
        commands, self._commands = self._commands, []
        return commands


def _count(groups: tuple[m.DeviceGroup, ...], one: str, several: str) -> str:
    return f"{len(groups)} group {one}" if len(groups) == 1 else f"{len(groups)} groups {several}"
