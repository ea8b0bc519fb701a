"""For how long conditions have held without a break, and until when a late instance is waited for.

Law: an instance is given back `hold_s` after it became late (`late_factor` times its type's `start_s`), whether or not
anything else serves: it is paid, and serves nothing. This planner has seen it late for as long: a keeper that has just begun
takes all of its instances for starting ones, until it hears them.
After each failure of its type in a row (`failed_starts`) the next one is waited for twice as long, up to `MOST_PATIENCE` times,
and never less than one and a half times as long as the slowest that became ready took: a `start_s` that is too low wastes a few
starts, not all.
"""

from __future__ import annotations

from collections.abc import Sequence

from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.fleet.state import FleetState
from spotwise.core.fleet.types import FleetType
from spotwise.core.messages.fleet import FleetInstance, FleetReported, InstanceState, Market


class Lasting:
    """Conditions by name."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}

    def lasts_s(self, name: str, is_so: bool, now: float) -> float | None:
        """Return the seconds since a condition began to hold; `None`: it does not."""
        if not is_so:
            self._since_s.pop(name, None)
            return None
        return now - self._since_s.setdefault(name, now)


MOST_PATIENCE = 4.0
_SLOWEST = 1.5


class LateStarts:
    """The late instances of one planner's fleet."""

    def __init__(self, types: Sequence[FleetType], policy: FleetPolicy) -> None:
        self._late_s = {each.name: policy.late_factor * each.start_s for each in types}
        self._hold_s = policy.hold_s
        self._starting: frozenset[str] = frozenset()
        self._slowest_s: dict[str, float] = {}
        self._seen_s: dict[tuple[str, Market], float] = {}
        self._lasting = Lasting()

    def overdue(self, report: FleetReported, state: FleetState, now: float) -> list[FleetInstance]:
        """Return the instances that are not waited for any more; `state`: the fleet of the report."""
        self._learn(report, now)
        self._seen_s |= {key: now for key, market in state.markets.items() if market.late}
        failed = {each.type_name: each.failed_starts for each in report.offers}
        late = {each.id: each for market in state.markets.values() for each in market.late}
        overdue = []
        for each in report.instances:
            lasts_s = self._lasting.lasts_s(each.id, each.id in late, now)
            patience_s = self._patience_s(each.type_name, failed.get(each.type_name, 0))
            if lasts_s is not None and lasts_s >= self._hold_s and now - each.launched_s > patience_s:
                overdue.append(each)
        return overdue

    def avoided(self, state: FleetState, now: float) -> list[tuple[str, Market]]:
        """Return the markets that had a late instance a moment ago."""
        return [key for key in state.markets if now - self._seen_s.get(key, -self._hold_s) < self._hold_s]

    def _learn(self, report: FleetReported, now: float) -> None:
        for each in report.instances:
            if each.state is InstanceState.RUNNING and each.id in self._starting:
                self._slowest_s[each.type_name] = max(self._slowest_s.get(each.type_name, 0.0), now - each.launched_s)
        self._starting = frozenset(each.id for each in report.instances if each.state is InstanceState.STARTING)

    def _patience_s(self, type_name: str, failed: int) -> float:
        patience_s = self._late_s.get(type_name, 0.0) * min(MOST_PATIENCE, 2.0 ** min(failed, 8))
        return max(patience_s, _SLOWEST * self._slowest_s.get(type_name, 0.0)) + self._hold_s
