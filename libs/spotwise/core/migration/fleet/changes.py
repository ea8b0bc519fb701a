"""Schedules changes of the fleet's configuration, and assigns notices, losses and newcomers to them.

Law: one change at a time, interruptions first. Interruptions that come together merge: the first waits `gather_s`, at most a
tenth of its notice. A newcomer acquired after an interruption waits until that is settled (SpotServe, section 4.2, Interruption
fault-tolerance); one acquired before and ready by the deadline takes part.
An event during a change is decided after it; a notice whose deadline would pass before then abandons the change.
An interruption is settled by the end of a change that includes it; an instance lost before that costs its KV, once.
A loss without notice is an interruption with deadline now; it abandons the change unless the instance was leaving with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from spotwise.core.migration.fleet import events as e

#: Finished instances that are remembered, so that late and repeated events of them are ignored.
_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """Waiting times of changes: `gather_s` of the first of several events for the others; `reserve_s`, which the next
    interruption may need: a notice that would have less left abandons the change; `retry_s` from a failed change to the next.
    """

    gather_s: float = 0.2
    reserve_s: float = 0.0
    retry_s: float = 1.0

    def __post_init__(self) -> None:
        if min(self.gather_s, self.reserve_s, self.retry_s) < 0:
            raise ValueError(f"gather_s, reserve_s and retry_s must be at least 0: {self}")


@dataclass(frozen=True, slots=True)
class _Received:
    order: int
    since_s: float
    about: e.Leaving | e.Joining


class FleetChanges:
    """The state machine: `handle(event, now_s) -> commands`."""

    def __init__(self, limits: FleetLimits | None = None, first_change: int = 1) -> None:
        self.limits = limits or FleetLimits()
        self._next_change = first_change
        self._order = 0
        self._interruptions: dict[str, _Received] = {}  # unsettled; those in the change under way as well
        self._newcomers: dict[str, _Received] = {}  # not in the configuration yet; as above
        self._finished: dict[str, bool] = {}  # no place and nothing to settle; whether it is known to be gone
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
            e.InstanceReturned: self._returned,
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

    @property
    def is_settled(self) -> bool:
        """Whether no change is under way, and none is about to begin for an instance that leaves."""
        return self.under_way is None and not self._interruptions

    @property
    def next_change(self) -> int:
        """The number of the next change."""
        return self._next_change

    def number_change(self) -> int:
        """Return the number of a change that is carried out without this machine, such as a re-shape that was ordered."""
        self._next_change += 1
        return self._next_change - 1

    def handle(self, event: e.FleetChangeEvent, now_s: float) -> list[e.FleetCommand]:
        """Process one event at time `now_s` and return the commands, in order."""
        self._handlers[type(event)](event, now_s)
        for leaving in self.unsettled:  # at a deadline the instance counts as lost
            if leaving.deadline_s <= now_s and not leaving.lost:
                self._lost(leaving.instance, now_s, confirmed=False)
        self._decide(now_s)
        commands, self._commands = self._commands, []
        return commands

    def _noticed(self, event: e.InstanceNoticed, now_s: float) -> None:
        name = event.instance
        if name in self._finished:
            return
        if self._has_nothing(name):  # and gets no place
            del self._newcomers[name]
            self._finish_with(name, gone=False)
            return
        leaving = e.Leaving(name, event.deadline_s)
        old = self._interruptions.get(name)
        if old is not None and (_is_lost(old) or old.about == leaving):
            return
        self._interruptions[name] = self._receive(leaving, now_s) if old is None else replace(old, about=leaving)
        if self.under_way is not None and self._is_leaving(name):
            self._newcomers.pop(name, None)  # the notice had been withdrawn, and is active again
            self._commands.append(e.MoveDeadline(self.under_way.change, name, event.deadline_s))
        else:
            self._abandon_if_late()

    def _withdrawn(self, event: e.NoticeWithdrawn, now_s: float) -> None:
        name = event.instance
        interruption = self._interruptions.get(name)
        if interruption is not None and not _is_lost(interruption):
            del self._interruptions[name]
            if self._is_leaving(name):  # the change under way takes its place away
                self._newcomers[name] = self._receive(e.Joining(name, now_s), now_s)
        elif self._finished.get(name) is False:
            del self._finished[name]
            self._newcomers[name] = self._receive(e.Joining(name, now_s), now_s)

    def _lost(self, name: str, now_s: float, *, confirmed: bool) -> None:
        if name in self._finished:
            self._finished[name] |= confirmed
            return
        if self._has_nothing(name):
            del self._newcomers[name]
            self._finish_with(name, gone=True)
            return
        old = self._interruptions.get(name)
        if old is not None and _is_lost(old):
            return
        self._commands.append(e.DropKv(name))
        lost = e.Leaving(name, now_s, lost=True)
        self._interruptions[name] = self._receive(lost, now_s) if old is None else replace(old, about=lost)
        if self._is_leaving(name):
            self._newcomers.pop(name, None)  # as one whose notice had been withdrawn
        else:
            self._abandon()

    def _returned(self, event: e.InstanceReturned, now_s: float) -> None:
        """Count a loss no more, settled or not, so that a later notice does."""
        name = event.instance
        self._finished.pop(name, None)
        old = self._interruptions.get(name)
        if old is not None and _is_lost(old):
            del self._interruptions[name]

    def _acquired(self, name: str, ready_s: float, now_s: float) -> None:
        if name in self._interruptions or self._finished.get(name) is not None or self._is_in_current(name):
            return
        old = self._newcomers.get(name)
        joining = e.Joining(name, ready_s)
        self._newcomers[name] = self._receive(joining, now_s) if old is None else replace(old, about=joining)

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
                    self._finish_with(leaving.instance, gone=_is_lost(interruption))
            for joining in ended.joining:
                self._newcomers.pop(joining.instance, None)
        else:
            for joining in ended.joining:
                if joining.instance in self._interruptions:
                    self._newcomers.pop(joining.instance, None)
            self._load_since_s = now_s  # even where no instance leaves or joins any more
            self._not_before_s = now_s if self._abandoned else now_s + self.limits.retry_s

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
        patience_s = self.limits.gather_s
        if self._interruptions:
            begins = []
            for received in self._interruptions.values():
                assert isinstance(received.about, e.Leaving)
                tenth_s = (received.about.deadline_s - received.since_s) / 10
                begins.append(received.since_s + (patience_s if received.about.lost else min(patience_s, tenth_s)))
        else:
            begins = [received.since_s + patience_s for received in self._newcomers.values()]
            if self._load_since_s is not None:
                begins.append(self._load_since_s + patience_s)
        return max(min(begins), self._not_before_s) if begins else None

    def _begin(self) -> None:
        leaving = self.unsettled
        newcomers = sorted(self._newcomers.values(), key=lambda received: received.order)
        joining = tuple(received.about for received in newcomers if isinstance(received.about, e.Joining))
        if leaving:
            first = min(received.order for received in self._interruptions.values())
            earlier = {received.about.instance for received in newcomers if received.order < first}
            joining = tuple(
                each for each in joining if each.instance in earlier and each.ready_s <= leaving[0].deadline_s
            )
        self.under_way = e.BeginChange(self._next_change, leaving, joining)
        self._next_change += 1
        self._abandoned = False
        self._expected_end_s = self._load_since_s = None
        self._commands.append(self.under_way)

    def _abandon_if_late(self) -> None:
        if self._expected_end_s is None:
            return
        others = [each for each in self.unsettled if not each.lost and not self._is_leaving(each.instance)]
        if any(each.deadline_s < self._expected_end_s + self.limits.reserve_s for each in others):
            self._abandon()

    def _abandon(self) -> None:
        if self.under_way is not None and not self._abandoned:
            self._abandoned = True
            self._commands.append(e.AbandonChange(self.under_way.change))

    def _receive(self, about: e.Leaving | e.Joining, now_s: float) -> _Received:
        self._order += 1
        return _Received(self._order, now_s, about)

    def _is_leaving(self, name: str) -> bool:
        return self.under_way is not None and any(each.instance == name for each in self.under_way.leaving)

    def _is_in_current(self, name: str) -> bool:
        return self.under_way is not None and any(each.instance == name for each in self.under_way.joining)

    def _has_nothing(self, name: str) -> bool:
        """Whether an acquired instance has had no position in any configuration so far."""
        return name in self._newcomers and not self._is_in_current(name) and not self._is_leaving(name)

    def _finish_with(self, name: str, *, gone: bool) -> None:
        self._finished[name] = gone
        while len(self._finished) > _REMEMBERED:
            del self._finished[next(iter(self._finished))]


def _is_lost(received: _Received) -> bool:
    return isinstance(received.about, e.Leaving) and received.about.lost


def _by_deadline(interruptions: dict[str, _Received]) -> tuple[e.Leaving, ...]:
    received = sorted(interruptions.values(), key=lambda each: each.order)
    leaving = [each.about for each in received if isinstance(each.about, e.Leaving)]
    return tuple(sorted(leaving, key=lambda each: each.deadline_s))
