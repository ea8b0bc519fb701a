"""Output of `spotwise reshape`: the plan, and its progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table

from spotwise.cli.quantities import bytes_text, seconds_text
from spotwise.core.messages.members import Member, MemberState
from spotwise.core.messages.reshape import DeviceGroup, PredictedReshape
from spotwise.core.planner.plan import PlannedDeployment, ReshapeStage

_BAR_WIDTH = 40


def plan_table(config: str, prediction: PredictedReshape) -> Group:
    """The groups of a re-shape, and what it is expected to cost."""
    table = _table(f"re-shape to {config} (D,P,M)", "worker", "pool", "stages x shards", "devices", "")
    for group in prediction.groups:
        is_new = group.worker_id in prediction.new_ids
        table.add_row(*_cells(group), "[green]is formed" if is_new else "goes on as it is")
    for worker_id in prediction.retiring_ids:
        table.add_row(worker_id, "", "", "", "[yellow]retires; its devices stay")
    cost = Table.grid(padding=(0, 2))
    cost.add_row("weights that stay on their device", bytes_text(prediction.kept_bytes))
    cost.add_row("weights that devices have to get", bytes_text(prediction.moved_bytes))
    if prediction.storage_bytes:
        cost.add_row("of them from their model folder: no device has them", bytes_text(prediction.storage_bytes))
    cost.add_row("KV of the requests that move", bytes_text(prediction.kv_bytes))
    cost.add_row("expected until new groups have them", seconds_text(prediction.forming_s))
    cost.add_row("expected pause of each request that moves", seconds_text(prediction.pause_s))
    return Group(table, cost)


@dataclass(frozen=True, slots=True)
class ReshapeProgress:
    """How far a re-shape is, by its plan and the members' heartbeats.

    Attributes:
        members: workers, by id; those that have left are not there.
        seconds: since the order.
    """

    deployment: PlannedDeployment
    members: Mapping[str, Member]
    seconds: float

    @property
    def serving(self) -> int:
        """New groups that serve."""
        return sum(self._state(worker_id) == MemberState.READY.value for worker_id in self.deployment.new_ids)

    @property
    def leaving(self) -> list[str]:
        """Workers that retire and have not left."""
        return [group.worker_id for group in self.deployment.retiring if group.worker_id in self.members]

    @property
    def left(self) -> int:
        """Requests that they still have."""
        return sum(_sequences(self.members[worker_id]) for worker_id in self.leaving)

    def line(self) -> str:
        """One line of text; another one only where something has changed."""
        deployment = self.deployment
        if deployment.stage is ReshapeStage.FORMING:
            waiting = [each for each in deployment.new_ids if self._state(each) != MemberState.READY.value]
            whom = f"; waiting for {', '.join(waiting)}" if waiting else ""
            return f"forming: {self.serving} of {len(deployment.new_ids)} new groups serve{whom}"
        if deployment.stage is ReshapeStage.MOVING:
            back = f", {deployment.given_back} given back" if deployment.given_back else ""
            return (
                f"moving: {deployment.moved} requests moved{back}, {self.left} left; "
                f"{', '.join(self.leaving) or 'none'} of the old groups to leave"
            )
        return f"{deployment.stage.value}: {deployment.reason}" if deployment.reason else deployment.stage.value

    def table(self) -> Group:
        """The same for a terminal: a row for each group, and how many requests have moved."""
        deployment = self.deployment
        title = f"{deployment.stage.value}, {self.seconds:.0f} s (re-shape to {deployment.config})"
        table = _table(title, "worker", "pool", "stages x shards", "devices", "now")
        for group in deployment.groups:
            table.add_row(*_cells(group), self._state(group.worker_id))
        for group in deployment.retiring:
            member = self.members.get(group.worker_id)
            now = "[dim]has left" if member is None else f"[yellow]{member.state.value}, {_sequences(member)} requests"
            table.add_row(*_cells(group), now)
        if deployment.stage is not ReshapeStage.MOVING:
            return Group(table)
        done = deployment.moved + deployment.given_back
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            f"requests moved: {deployment.moved}, left: {self.left}",
            ProgressBar(total=max(1, done + self.left), completed=done, width=_BAR_WIDTH),
        )
        return Group(table, bar)

    def summary(self, prediction: PredictedReshape | None = None) -> str:
        """How a finished re-shape went, beside what was expected of it."""
        deployment, began_s = self.deployment, self.deployment.began_s
        ended_s, served_s = deployment.ended_s or began_s, deployment.served_s or began_s
        lines = [
            f"re-shaped to {deployment.config} in {seconds_text(ended_s - began_s)}: "
            f"{deployment.moved} requests moved, {deployment.given_back} given back (computed again)"
        ]
        if deployment.new_ids:
            beside = _expected(prediction, lambda plan: seconds_text(plan.forming_s))
            lines.append(f"the new groups served after {seconds_text(served_s - began_s)}{beside}")
            lines.append(self._weights(prediction))
        if deployment.moved:
            beside = _expected(prediction, lambda plan: seconds_text(plan.pause_s))
            mean, longest = seconds_text(deployment.pause_s), seconds_text(deployment.longest_pause_s)
            lines.append(f"pause of a request that moved: {mean} in the mean{beside}, {longest} at most")
        return "\n".join(lines)

    def _weights(self, prediction: PredictedReshape | None) -> str:
        """What devices got for the new groups, beside the plan."""
        deployment = self.deployment
        fetched = _expected(prediction, lambda plan: bytes_text(plan.moved_bytes - plan.storage_bytes))
        read = _expected(prediction, lambda plan: bytes_text(plan.storage_bytes))
        others = deployment.unplanned_bytes
        elsewhere = f", {bytes_text(others)} of that from others than planned" if others else ""
        return (
            f"weights from other devices: {bytes_text(deployment.fetched_bytes)}{fetched}{elsewhere}; "
            f"from model folders: {bytes_text(deployment.read_bytes)}{read}"
        )

    def _state(self, worker_id: str) -> str:
        member = self.members.get(worker_id)
        return "not there yet" if member is None else member.state.value


def _expected(prediction: PredictedReshape | None, text: Callable[[PredictedReshape], str]) -> str:
    """What was expected of a figure, to stand behind it; nothing where that is not known."""
    return "" if prediction is None else f" (expected {text(prediction)})"


def _sequences(member: Member) -> int:
    load = member.load
    if load is None:
        return 0
    return load.waiting + load.waiting_for_kv + load.running + load.preempted + load.migrating


def _table(title: str, *headings: str) -> Table:
    table = Table(header_style="bold", title=title, title_justify="left", title_style="")
    for heading in headings:
        table.add_column(heading)
    return table


def _cells(group: DeviceGroup) -> tuple[str, str, str, str]:
    return group.worker_id, group.pool.value, f"{group.stages} x {group.shards}", ", ".join(group.device_ids)
