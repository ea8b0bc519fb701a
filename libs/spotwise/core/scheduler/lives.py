"""Hazard of each worker's end, from the watcher's report of the fleet and the instances that the worker depends on.

Law: a worker depends on its own instance and on those of the devices that have a place in its group; its hazard is that of the
first end among them. Instances on demand, of unknown lives, or not in the report add nothing.
One watcher is followed: an older report, and one of its earlier incarnation, are ignored; another watcher's too, until the
followed one's last report is older than `REPORT_COUNTS_S`. From then on no life is known.
What is known of a worker or a device goes with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.fleet.devices import instance_of
from spotwise.core.fleet.learned_hazards import LearnedHazards
from spotwise.core.lives.survival import PiecewiseHazard, first_end
from spotwise.core.messages.fleet import FleetReported, InstanceState
from spotwise.core.messages.members import Member
from spotwise.core.scheduler.pools import Pools
from spotwise.core.scheduler.views import WorkerLife

#: Seconds for which a report of the fleet counts.
REPORT_COUNTS_S = 30.0


@dataclass(frozen=True, slots=True)
class _Source:
    report: FleetReported
    counts_until_s: float


class Lives:
    """Keeps the workers' lives in `pools` up to date."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._source: _Source | None = None
        self._instances: dict[str, tuple[PiecewiseHazard, float] | None] = {}  # hazard, launched; `None`: it stays
        self._leaders: dict[str, str] = {}  # of devices that have a place
        self._devices: dict[str, dict[str, None]] = {}  # by leader

    def reported(self, report: FleetReported, now: float) -> None:
        """Take the fleet's instances and learned lives from a report, unless it is old; all ages are those of now."""
        if not self._is_news(report, now):
            return
        counts_until_s = min(report.at_s, now) + REPORT_COUNTS_S
        self._source = _Source(report, counts_until_s)
        hazards = LearnedHazards(report.lives)
        self._instances = {}
        for instance in report.instances:
            if instance.state is not InstanceState.GONE:
                hazard = hazards.of(instance)
                self._instances[instance.id] = None if hazard is None else (hazard, instance.launched_s)
        self._show_all(now)

    def _is_news(self, report: FleetReported, now: float) -> bool:
        if report.at_s + REPORT_COUNTS_S <= now:
            return False
        known = self._source
        if known is None:
            return True
        last, is_same = known.report, known.report.watcher_id == report.watcher_id
        if now < known.counts_until_s:
            return is_same and report.is_newer_than(last)
        return not is_same or report.incarnation >= last.incarnation

    def expire(self, now: float) -> None:
        """Forget the fleet where its last report is too old."""
        if self._instances and self._source is not None and now >= self._source.counts_until_s:
            self._instances = {}
            self._show_all(now)

    def worker_joined(self, worker_id: str, now: float) -> None:
        """Look up the life of a worker that is new in the pools."""
        if self._instances:
            self._show(worker_id, now)

    def device_reported(self, device: Member, now: float) -> None:
        """Note whose group a device is in, by its heartbeat."""
        leader_id = device.leader_id if device.place is not None else ""
        if self._leaders.get(device.id, "") == leader_id:
            return
        self.device_lost(device.id, now)
        if leader_id:
            self._leaders[device.id] = leader_id
            self._devices.setdefault(leader_id, {})[device.id] = None
            self._show(leader_id, now)

    def device_lost(self, device_id: str, now: float) -> None:
        """Forget a device."""
        leader_id = self._leaders.pop(device_id, None)
        if leader_id is not None:
            del self._devices[leader_id][device_id]
            if not self._devices[leader_id]:
                del self._devices[leader_id]
            self._show(leader_id, now)

    def _show_all(self, now: float) -> None:
        for view in self._pools:
            self._pools.set_life(view.id, self._life(view.id, now))

    def _show(self, worker_id: str, now: float) -> None:
        if worker_id in self._pools:
            self._pools.set_life(worker_id, self._life(worker_id, now))

    def _life(self, worker_id: str, now: float) -> WorkerLife | None:
        if not self._instances:
            return None
        found: dict[str, tuple[PiecewiseHazard, float]] = {}
        for member_id in (worker_id, *self._devices.get(worker_id, ())):
            instance_id = instance_of(member_id, self._instances)
            known = None if instance_id is None else self._instances[instance_id]
            if instance_id is not None and known is not None:
                found[instance_id] = known[0], max(0.0, now - known[1])
        if not found:
            return None
        if len(found) == 1:
            ((hazard, age_s),) = found.values()
            return WorkerLife.of(hazard, age_s)
        return WorkerLife.of(first_end(found.values()), 0.0)
