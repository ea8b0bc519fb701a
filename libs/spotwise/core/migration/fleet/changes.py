"""When the fleet's configuration changes: which notices, losses and newcomers one change is for, and what waits for the next.

Law: one change at a time. Interruptions come first, and those that come together merge into one change: the first waits
`gather_s` for others, but no more than a tenth of its notice. A newcomer that was acquired after an interruption waits until
this is settled (SpotServe, section 4.2, Interruption fault-tolerance); one that was acquired before, and is ready by the
deadline, takes part.
What comes during a change is remembered, and decided right after it. A notice whose deadline comes before the change under way
could end, and another be made, abandons that change: both are then decided together.

An interruption is settled by the end of a change that was told of it. Until then an instance that goes, early or at its
deadline, costs its KV: requests go on from their committed tokens. An instance that goes without notice is an interruption
whose deadline is now. If it had no place in what comes, the change under way goes on; otherwise that change is abandoned.

Invariants: a change begins after the one before has ended; no unsettled interruption is forgotten, but by the notice's
withdrawal; KV of an instance is dropped at most once, and only while its interruption is unsettled; what is said twice
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from spotwise.core.migration.fleet import events as e

#: Instances that are done with, remembered so that late and repeated news of them means nothing.
_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """How patient changes are.

    Attributes:
        gather_s: that the first of several notices, losses or newcomers waits for the others.
        reserve_s: that the next interruption is expected to need: a change is abandoned for a notice if less than this
            would be left of it.
        retry_s: between a change that failed and the next.
    """

    gather_s: float = 0.2
    reserve_s: float = 0.0
    retry_s: float = 1.0

    def __post_init__(self) -> None:
        if min(self.gather_s, self.reserve_s, self.retry_s) < 0:
            raise ValueError(f"gather_s, reserve_s and retry_s must be at least 0: {self}")


@dataclass(frozen=True, slots=True)
class _Received:
    """Something to be decided, and when it came: `order` counts."""

    order: int
    since_s: float
    about: e.Leaving | e.Joining


class FleetChanges:
    """The machine: `handle(event, now_s) -> commands`."""

    def __init__(self, limits: FleetLimits | None = None, first_change: int = 1) -> None:
        self.limits = limits or FleetLimits()
        self._next_change = first_change
        self._order = 0
        self._interruptions: dict[str, _Received] = {}  # unsettled; those in the change under way as well
        self._newcomers: dict[str, _Received] = {}  # not in the configuration yet; as above
        self._done_with: dict[str, bool] = {}  # no place and nothing to settle; whether it is known to be gone
        self._load_since_s: float | None = None
        self.under_way: e.BeginChange | None = None
        self._abandoned = False
        self._expected_end_s: float | None = None
        self._not_before_s = 0.0
        self._woken_at_s: float | None = None
        self._commands: list[e.FleetCommand] = []
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            e.InstanceNoticed: self._noticed,
            e.NoticeWithdrawn: self._withdrawn,
            e.InstanceLost: lambda event, now_s: self._lost(event.instance, now_s, confirmed=True),
            e.InstanceAcquired: lambda event, now_s: self._acquired(event.instance, event.ready_s, now_s),
            e.LoadChanged: self._load_changed,
            e.ChangeExpected: self._expected,
            e.ChangeEnded: self._ended,
            e.FleetTick: lambda event, now_s: None,
        }

    @property
    def unsettled(self) -> tuple[e.Leaving, ...]:
        """Interruptions that no change has settled yet, by deadline."""
        return _by_deadline(self._interruptions)

    def handle(self, event: e.FleetEvent, now_s: float) -> list[e.FleetCommand]:
        """Take in one event at time `now_s` and return what to do about it, in order."""
        self._handlers[type(event)](event, now_s)
        for leaving in self.unsettled:  # whoever's deadline has come
            if leaving.deadline_s <= now_s and not leaving.lost:
                self._lost(leaving.instance, now_s, confirmed=False)
        self._decide(now_s)
        commands, self._commands = self._commands, []
        return commands

    # --- what is heard ------------------------------------------------------------------------------------------------

    def _noticed(self, event: e.InstanceNoticed, now_s: float) -> None:
        name = event.instance
        if name in self._done_with:
            return
        if self._has_nothing(name):  # and shall get nothing
            del self._newcomers[name]
            self._be_done_with(name, gone=False)
            return
        leaving = e.Leaving(name, event.deadline_s)
        old = self._interruptions.get(name)
        if old is not None and (_is_lost(old) or old.about == leaving):
            return
        self._interruptions[name] = self._hear(leaving, now_s) if old is None else replace(old, about=leaving)
        if self.under_way is not None and self._is_leaving(name):
            self._newcomers.pop(name, None)  # the notice had been withdrawn, and stands again
            self._commands.append(e.MoveDeadline(self.under_way.change, name, event.deadline_s))
        else:
            self._abandon_if_late()

    def _withdrawn(self, event: e.NoticeWithdrawn, now_s: float) -> None:
        name = event.instance
        interruption = self._interruptions.get(name)
        if interruption is not None and not _is_lost(interruption):
            del self._interruptions[name]
            if self._is_leaving(name):  # the change under way takes its place away
                self._newcomers[name] = self._hear(e.Joining(name, now_s), now_s)
        elif self._done_with.get(name) is False:
            del self._done_with[name]
            self._newcomers[name] = self._hear(e.Joining(name, now_s), now_s)

    def _lost(self, name: str, now_s: float, *, confirmed: bool) -> None:
        if name in self._done_with:
            self._done_with[name] |= confirmed
            return
        if self._has_nothing(name):
            del self._newcomers[name]
            self._be_done_with(name, gone=True)
            return
        old = self._interruptions.get(name)
        if old is not None and _is_lost(old):
            return
        self._commands.append(e.DropKv(name))
        lost = e.Leaving(name, now_s, lost=True)
        self._interruptions[name] = self._hear(lost, now_s) if old is None else replace(old, about=lost)
        if self._is_leaving(name):
            self._newcomers.pop(name, None)  # as one whose notice had been withdrawn
        else:
            self._abandon()

    def _acquired(self, name: str, ready_s: float, now_s: float) -> None:
        if name in self._interruptions or self._done_with.get(name) is not None or self._is_in_current(name):
            return
        old = self._newcomers.get(name)
        joining = e.Joining(name, ready_s)
        self._newcomers[name] = self._hear(joining, now_s) if old is None else replace(old, about=joining)

    def _load_changed(self, event: e.LoadChanged, now_s: float) -> None:
        if self._load_since_s is None:
            self._load_since_s = now_s

    def _expected(self, event: e.ChangeExpected, now_s: float) -> None:
        if self.under_way is not None and self.under_way.change == event.change:
            self._expected_end_s = event.end_s
            self._abandon_if_late()

    def _ended(self, event: e.ChangeEnded, now_s: float) -> None:
        if self.under_way is None or self.under_way.change != event.change:
            return
        ended, self.under_way = self.under_way, None
        if event.done:
            for leaving in ended.leaving:
                interruption = self._interruptions.pop(leaving.instance, None)
                if interruption is not None:  # its notice was not withdrawn meanwhile
                    self._be_done_with(leaving.instance, gone=_is_lost(interruption))
            for joining in ended.joining:
                self._newcomers.pop(joining.instance, None)
        else:
            for joining in ended.joining:
                if joining.instance in self._interruptions:
                    self._newcomers.pop(joining.instance, None)
            self._load_since_s = now_s  # even where nobody leaves or joins any more
            self._not_before_s = now_s if self._abandoned else now_s + self.limits.retry_s

    # --- what is decided ----------------------------------------------------------------------------------------------

    def _decide(self, now_s: float) -> None:
        begin_s = None if self.under_way is not None else self._begin_s()
        if begin_s is not None and begin_s <= now_s:
            self._begin()
            begin_s = None
        deadlines = [leaving.deadline_s for leaving in self.unsettled if not leaving.lost]
        wake_s = min([*deadlines, *([] if begin_s is None else [begin_s])], default=None)
        if wake_s != self._woken_at_s:
            self._woken_at_s = wake_s
            if wake_s is not None:
                self._commands.append(e.WakeAt(wake_s))

    def _begin_s(self) -> float | None:
        """Return when the next change is to begin; `None` where there is nothing to change for."""
        patience_s = self.limits.gather_s
        if self._interruptions:
            begins = []
            for heard in self._interruptions.values():
                assert isinstance(heard.about, e.Leaving)
                tenth_s = (heard.about.deadline_s - heard.since_s) / 10
                begins.append(heard.since_s + (patience_s if heard.about.lost else min(patience_s, tenth_s)))
        else:
            begins = [heard.since_s + patience_s for heard in self._newcomers.values()]
            if self._load_since_s is not None:
                begins.append(self._load_since_s + patience_s)
        return max(min(begins), self._not_before_s) if begins else None

    def _begin(self) -> None:
        leaving = self.unsettled
        newcomers = sorted(self._newcomers.values(), key=lambda heard: heard.order)
        joining = tuple(heard.about for heard in newcomers if isinstance(heard.about, e.Joining))
        if leaving:
            first = min(heard.order for heard in self._interruptions.values())
            earlier = {heard.about.instance for heard in newcomers if heard.order < first}
            joining = tuple(
                each for each in joining if each.instance in earlier and each.ready_s <= leaving[0].deadline_s
            )
        self.under_way = e.BeginChange(self._next_change, leaving, joining)
        self._next_change += 1
        self._abandoned = False
        self._expected_end_s = self._load_since_s = None
        self._commands.append(self.under_way)

    def _abandon_if_late(self) -> None:
        """Abandon the change under way if somebody who is not in it could not be helped after it."""
        if self._expected_end_s is None:
            return
        others = [each for each in self.unsettled if not each.lost and not self._is_leaving(each.instance)]
        if any(each.deadline_s < self._expected_end_s + self.limits.reserve_s for each in others):
            self._abandon()

    def _abandon(self) -> None:
        if self.under_way is not None and not self._abandoned:
            self._abandoned = True
            self._commands.append(e.AbandonChange(self.under_way.change))

    def _hear(self, about: e.Leaving | e.Joining, now_s: float) -> _Received:
        self._order += 1
        return _Received(self._order, now_s, about)

    def _is_leaving(self, name: str) -> bool:
        return self.under_way is not None and any(each.instance == name for each in self.under_way.leaving)

    def _is_in_current(self, name: str) -> bool:
        return self.under_way is not None and any(each.instance == name for each in self.under_way.joining)

    def _has_nothing(self, name: str) -> bool:
        """Whether an instance is ours, and no configuration has had a place for it yet."""
        return name in self._newcomers and not self._is_in_current(name) and not self._is_leaving(name)

    def _be_done_with(self, name: str, *, gone: bool) -> None:
        self._done_with[name] = gone
        while len(self._done_with) > _REMEMBERED:
            del self._done_with[next(iter(self._done_with))]


def _is_lost(heard: _Received) -> bool:
    return isinstance(heard.about, e.Leaving) and heard.about.lost


def _by_deadline(interruptions: dict[str, _Received]) -> tuple[e.Leaving, ...]:
    """Return the interruptions by deadline; of equals the one heard of first."""
    heard = sorted(interruptions.values(), key=lambda each: each.order)
    leaving = [each.about for each in heard if isinstance(each.about, e.Leaving)]
    return tuple(sorted(leaving, key=lambda each: each.deadline_s))
