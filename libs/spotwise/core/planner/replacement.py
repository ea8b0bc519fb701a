"""Changes that the planner makes by itself, where devices have to leave, are gone, or have joined.

Law: a group is *short* where one of its devices is under notice, absent for `replace_after_s` (at once where its instance is
known to be gone), or in a later group too. A device under notice gets no position.
A short group is formed again in its shape, each staying device at its position, the others taken from those without a position,
then from other short groups, the last first. All are of one numerics class: that of the group where it has enough devices.
A group without enough devices stays in the deployment without a leader until devices join.

Where no group is left, a *stopgap* serves: one group of the shape that the market wants, else of as many devices as can be, so
that each gets the least of the model; it retires when groups of the deployment are whole again.

Source: SpotServe, sections 3.1 and 3.2: interruptions and acquisitions change the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from spotwise.core.membership.membership import Membership
from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import MemberKind, MemberState, Pool
from spotwise.core.messages.numerics import Crossing
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.planner.change_cost import ChangeCost
from spotwise.core.planner.device_survey import DeviceSurvey, of_other_classes
from spotwise.core.planner.device_watch import DeviceWatch
from spotwise.core.planner.group_choice import GroupChoice, choose_groups, running_requests, workers_of
from spotwise.core.planner.group_migration import GroupMigration, migration_of, same_shape_map
from spotwise.core.planner.plan import PlannedDeployment
from spotwise.core.planner.policy import PlannerPolicy

#: Events of devices come together: the first one waits so long for the others.
GATHER_S = 0.3
#: After a change that was not carried out the next one waits so long; twice as long each time that it is the same change, up
#: to `LONGEST_REST_S`.
REST_S = 5.0
LONGEST_REST_S = 60.0


@dataclass(frozen=True, slots=True)
class Refill:
    """Groups as they can be: those that `go_on`, short ones without enough devices among them, and `new` ones in the place of
    those that `retire`. `stopgap`: the devices for one, where nothing else serves.
    """

    go_on: tuple[m.DeviceGroup, ...]
    new: tuple[m.DeviceGroup, ...]
    retiring: tuple[m.DeviceGroup, ...]
    stopgap: tuple[str, ...] = ()

    @property
    def changes_something(self) -> bool:
        """Whether there is something to do."""
        return bool(self.new or self.retiring or self.stopgap)


def homes(groups: Iterable[m.DeviceGroup]) -> dict[str, str]:
    """Return the worker of each device; of several the last."""
    return {device_id: group.worker_id for group in groups for device_id in group.device_ids}


def refill(
    groups: Sequence[m.DeviceGroup],
    stopgap_ids: Collection[str],
    usable: Sequence[str],
    is_lost: Callable[[str], bool],
    serves: Callable[[str], bool],
    change: int,
    class_of: Callable[[str], str] = lambda device_id: "",
    crossing: Crossing = Crossing.COUNT,
) -> Refill:
    """Return what becomes of the groups of a deployment.

    Args:
        groups: groups of the deployment, later ones last.
        stopgap_ids: workers of them that are stopgaps.
        usable: the devices that may have positions.
        is_lost: tells whether a device has to leave, or is gone.
        serves: tells whether a worker takes requests.
        change: number of the re-shape.
        class_of: gives a device's numerics class; `crossing`: whether groups may be formed anew in another.
    """
    home = homes(groups)
    if all(group.worker_id in stopgap_ids for group in groups):
        stopgap_ids = ()  # all others were drained by an operator: it is what is to be
    stopgaps = tuple(group for group in groups if group.worker_id in stopgap_ids)
    lasting = [group for group in groups if group.worker_id not in stopgap_ids]
    short = [
        group
        for group in lasting
        if any(is_lost(each) or home[each] != group.worker_id for each in group.device_ids) or not group.is_whole
    ]
    whole = tuple(group for group in lasting if group not in short)
    done = stopgaps if any(serves(group.worker_id) for group in whole) else ()
    if not short:
        return Refill(whole if done else tuple(groups), (), done)
    free = [each for each in usable if home.get(each) is None or home[each] in stopgap_ids]
    own = {  # without what a later group has taken
        group.worker_id: [each for each in group.device_ids if each in usable and home[each] == group.worker_id]
        for group in short
    }
    filled: dict[str, m.DeviceGroup] = {}
    for number, group in enumerate(short):
        mine = own.pop(group.worker_id)
        others = [each for donor in reversed(short[number + 1 :]) for each in own[donor.worker_id]]
        ids = _of_one_class(group, mine, [*free, *others], class_of, crossing)
        if ids is None:
            own[group.worker_id] = mine
            continue
        for each in ids:
            if each in free:
                free.remove(each)
            for left in own.values():
                if each in left:
                    left.remove(each)
        worker_id = f"{group.pool.value}-c{change}-{lasting.index(group)}"
        free += [each for each in mine if each not in ids]
        filled[group.worker_id] = m.DeviceGroup(worker_id, group.pool, group.stages, group.shards, ids)
    go_on = tuple(group for group in lasting if group.worker_id not in filled)
    retiring = tuple(group for group in short if group.worker_id in filled)
    new = tuple(filled[group.worker_id] for group in retiring)
    if not (whole or new):
        alive = [group for group in stopgaps if not any(is_lost(each) for each in group.device_ids)]
        dead = tuple(group for group in stopgaps if group not in alive)
        return Refill((*go_on, *alive), (), dead, () if alive else tuple(usable))
    if not new and not done:
        return Refill(tuple(groups), (), ())
    return Refill(go_on, new, (*retiring, *stopgaps))


def _of_one_class(
    group: m.DeviceGroup,
    mine: Sequence[str],
    others: Sequence[str],
    class_of: Callable[[str], str],
    crossing: Crossing,
) -> tuple[str, ...] | None:
    """Return the devices of a short group by position: of its numerics class, else of the first other one that has enough,
    unless its own still has some and crossings are refused.
    """
    size = group.stages * group.shards
    present = dict.fromkeys(map(class_of, (*mine, *others)))
    own = next((known for each in (*mine, *group.device_ids) if (known := class_of(each))), "")
    classes = [own, *(each for each in present if each != own)]
    for numerics_class in classes[:1] if own in present and crossing is Crossing.REFUSE else classes:
        stay = [each for each in mine if class_of(each) == numerics_class]
        more = [each for each in others if class_of(each) == numerics_class]
        if len(stay) + len(more) >= size:
            taken = iter(more)
            at_position = [*group.device_ids, *[""] * size][:size]
            return tuple(each if each in stay else next(taken) for each in at_position)
    return None


def stopgap_config(devices: int, shards: int, model: ModelShape) -> ParallelConfig | None:
    """Return one group of most of so many devices, if it can be with `shards` shards, else with the fewest stages."""
    shapes = [
        (stages, degree)
        for degree in model.shard_degrees
        for stages in range(1, devices // degree + 1)
        if model.why_not(stages, degree) is None
    ]
    best = max(shapes, key=lambda each: (each[0] * each[1], each[1] == shards, -each[0]), default=None)
    return None if best is None else ParallelConfig(1, *best)


@dataclass(frozen=True, slots=True)
class Replacing:
    """A change to begin: its groups, those of them that are stopgaps, and why."""

    choice: GroupChoice
    stopgap_ids: tuple[str, ...]
    cause: str


class Replacement:
    """Finds the changes that are due; of one planner's term."""

    def __init__(
        self,
        planner_id: str,
        policy: PlannerPolicy,
        membership: Membership,
        watch: DeviceWatch,
        cost: ChangeCost,
        survey_numbers: Callable[[], int],
    ) -> None:
        self._planner_id = planner_id
        self._policy = policy
        self._membership = membership
        self._watch = watch
        self._cost = cost
        self._survey_number = survey_numbers
        self._gone_since_s: dict[str, float] = {}
        self._due: Refill | None = None
        self._due_since_s = 0.0
        self._rests_until_s = 0.0
        self._rest_s = REST_S
        self._tried: tuple[tuple[str, ...], ...] = ()
        self._survey: DeviceSurvey | None = None
        self._now = 0.0
        #: What the market wants to serve with: a stopgap has its shape where it can.
        self.wanted: ParallelConfig | None = None

    @property
    def is_due(self) -> bool:
        """Whether a change can be made, and waits to be planned."""
        return self._due is not None

    def look(self, deployment: PlannedDeployment | None, change: int, now: float) -> None:
        """See whether a change is due; `change` will be its number."""
        self._now = now
        groups = self.groups_of(deployment)
        absent = [each for each in homes(groups) if self._membership.get(each) is None]
        self._gone_since_s = {each: self._gone_since_s.get(each, now) for each in absent}
        due = self._refill(groups, deployment, self._watch.usable(), change)
        if not due.changes_something:
            self._due = self._survey = None
        elif self._due is None or _gist(due) != _gist(self._due):
            self._due, self._due_since_s, self._survey = due, now, None
            if _gist(due) != self._tried:
                self._tried, self._rest_s = _gist(due), REST_S
                self._rests_until_s = min(self._rests_until_s, now + REST_S)
        else:
            self._due = due

    def groups_of(self, deployment: PlannedDeployment | None) -> tuple[m.DeviceGroup, ...]:
        """The groups that are to be: the deployment's, or before the first one those that devices report."""
        return self._watch.sighted() if deployment is None else deployment.groups

    def is_lost(self, device_id: str) -> bool:
        """Tell whether a device has to leave, or is gone for long."""
        gone_since_s = self._gone_since_s.get(device_id)
        after_s = self._policy.replace_after_s if self._watch.comes_back(device_id) else 0.0
        is_gone = gone_since_s is not None and self._now - gone_since_s >= after_s
        return is_gone or self._watch.has_to_leave(device_id)

    def is_short(self, group: m.DeviceGroup, groups: Sequence[m.DeviceGroup]) -> bool:
        """Tell whether a group of a deployment cannot be as it is."""
        home = homes(groups)
        return any(self.is_lost(each) or home[each] != group.worker_id for each in group.device_ids)

    def surveyed(self, report: m.DeviceSurveyed) -> None:
        """Take a device's answer."""
        if self._survey is not None:
            self._survey.answered(report)

    def rest(self, now: float) -> None:
        """Wait a while: the last change came to nothing."""
        self._rests_until_s = now + self._rest_s
        self._rest_s = min(2 * self._rest_s, LONGEST_REST_S)
        self._survey = None

    def surveys(self, now: float) -> list[m.Send]:
        """Return the questions that are due, once events have been gathered."""
        if self._due is None or now - self._due_since_s < GATHER_S or now < self._rests_until_s:
            return []
        if self._survey is None:
            devices = [each.id for each in self._membership.all(MemberKind.DEVICE)]
            self._survey = DeviceSurvey(self._planner_id, self._survey_number(), devices)
        return self._survey.due(now)

    def planned(self, deployment: PlannedDeployment | None, change: int, now: float) -> Replacing | None:
        """Return the change that is due, once the devices have answered."""
        if self._survey is None or not self._survey.is_over(now):
            return None
        reports, groups = self._survey.reports, self.groups_of(deployment)
        self._survey = None
        held = set(homes(groups))
        model = next((each.model for each in reports if each.device_id in held), None)
        model = model or next((each.model for each in reports), None)
        known = {each.worker_id for each in groups} | (set() if deployment is None else deployment.retiring_ids)
        answering = {each.device_id for each in reports if each.model == model and self._is_free(each, known)}
        usable = tuple(each for each in self._watch.usable() if each in answering)
        present = {each.device_id for each in reports if each.model == model}
        cause = self._cause(groups)
        due = self._refill(groups, deployment, usable, change)
        if model is None or not due.changes_something:
            self.rest(now)
            return None
        if not due.stopgap:
            return Replacing(self._choice(due, model, present), (), cause)
        stopgap = self._stopgap(due.stopgap, groups, [each for each in reports if each.model == model], change)
        if stopgap is None:
            self.rest(now)
            return None
        due = Refill(due.go_on, (stopgap,), due.retiring)
        return Replacing(self._choice(due, model, present), (stopgap.worker_id,), cause)

    def _is_free(self, report: m.DeviceSurveyed, known: Collection[str]) -> bool:
        """Tell whether a device is in no group of a worker that the deployment does not know."""
        others = [each.worker_id for each in report.groups if each.worker_id not in known]
        return all(self._membership.get(each) is None for each in others)

    def _refill(
        self,
        groups: Sequence[m.DeviceGroup],
        deployment: PlannedDeployment | None,
        usable: Sequence[str],
        change: int,
    ) -> Refill:
        stopgap_ids = () if deployment is None else deployment.stopgap_ids
        classes = self._watch.class_of, self._policy.crossing
        return refill(groups, stopgap_ids, usable, self.is_lost, self._serves, change, *classes)

    def _serves(self, worker_id: str) -> bool:
        worker = self._membership.get(worker_id)
        return worker is not None and worker.state is MemberState.READY

    def _stopgap(
        self,
        usable: Sequence[str],
        groups: Sequence[m.DeviceGroup],
        reports: Sequence[m.DeviceSurveyed],
        change: int,
    ) -> m.DeviceGroup | None:
        """Return the group of most devices, which keep as much of their weights as can be."""
        largest = max(groups, key=lambda each: len(each.device_ids))
        wanted, model = self.wanted, reports[0].model
        leaving = {each.device_id: self._watch.deadline_s(each.device_id) or self._now for each in reports}
        leaving = {device_id: deadline_s for device_id, deadline_s in leaving.items() if device_id not in usable}
        leaving |= of_other_classes(reports, self._watch.class_of, leaving, groups, 1, self._policy.crossing)
        devices = sum(each not in leaving for each in usable)
        config = stopgap_config(devices, largest.shards, model)
        if wanted is not None and wanted.pipeline_devices <= devices:
            config = ParallelConfig(1, wanted.pipeline, wanted.tensor)
        if config is None:
            return None
        workers = workers_of(groups, self._membership.workers())
        choice = choose_groups(config, reports, workers, change, self._cost, self._now, leaving)
        return None if isinstance(choice, str) else next(iter(choice.new), None)

    def _choice(self, due: Refill, model: ModelShape, device_ids: Collection[str]) -> GroupChoice:
        migration = self._migration(due, model, device_ids)
        leaving = workers_of(due.retiring, self._membership.workers())
        prediction = m.PredictedReshape(
            (*due.go_on, *due.new),
            tuple(group.worker_id for group in due.new),
            tuple(group.worker_id for group in due.retiring),
            migration.kept_bytes,
            migration.moved_bytes,
            self._cost.forming_s(due.new, migration.seconds),
            self._cost.pause_s(due.retiring, (*due.go_on, *due.new), sum(map(running_requests, leaving))),
            migration.storage_bytes,
        )
        return GroupChoice(due.go_on, due.new, due.retiring, prediction, migration)

    def _migration(self, due: Refill, model: ModelShape, device_ids: Collection[str]) -> GroupMigration:
        """Return what moves; where there is no plan, as if each device got all of its part from storage."""
        after = [*(group for group in due.go_on if not self.is_short(group, due.go_on)), *due.new]
        leaving = {each: self._watch.deadline_s(each) for each in device_ids}
        noticed = {each: deadline_s for each, deadline_s in leaving.items() if deadline_s is not None}
        device_map = same_shape_map((*due.go_on, *due.retiring), after, device_ids, noticed) if due.new else None
        if device_map is not None:
            return migration_of(device_map, model, self._cost, self._now)
        part_bytes = max((model.weight_bytes // len(each.device_ids) for each in due.new), default=0)
        return GroupMigration(0, part_bytes, part_bytes, part_bytes / self._cost.links.storage_bytes_per_s)

    def _cause(self, groups: Sequence[m.DeviceGroup]) -> str:
        lost = [each for each in homes(groups) if self.is_lost(each)]
        leave = [each for each in lost if self._watch.has_to_leave(each)]
        gone = [each for each in lost if each not in leave]
        said = [f"{', '.join(each)} {verb}" for each, verb in ((leave, "to leave"), (gone, "gone")) if each]
        return "; ".join(said) or "devices have joined"


def described(groups: Sequence[m.DeviceGroup]) -> str:
    """Return the shapes of groups as an operator writes them: D,P,M, phases split by a plus sign."""
    shapes: dict[tuple[bool, int, int], int] = {}
    for group in groups:
        key = (group.pool is not Pool.PROMPT, group.stages, group.shards)
        shapes[key] = shapes.get(key, 0) + 1
    return "+".join(f"{count},{stages},{shards}" for (_, stages, shards), count in sorted(shapes.items()))


def _gist(due: Refill) -> tuple[tuple[str, ...], ...]:
    """What a change consists of, whatever its number."""
    return (due.stopgap, *(group.device_ids for group in due.new), tuple(group.worker_id for group in due.retiring))
