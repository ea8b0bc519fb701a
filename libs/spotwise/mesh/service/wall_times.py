"""Translates absolute times between the wall clock, by which messages and records have them, and a member's steady clock.

What a role receives is translated on its way in, and what it commands on its way out; its heartbeat too. Nothing is to do while
no clock was set since the member's start. A keeper of the fleet is left out: its times are its provider's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from spotwise.core.gateway import commands as g
from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import QuarantinedPair
from spotwise.core.planner import commands as p
from spotwise.core.requests.record import RequestRecord
from spotwise.core.spot import commands as s
from spotwise.core.spot.signs import MetadataAnswered, Sign
from spotwise.core.worker import commands as c

T = TypeVar("T")

#: By type, the members that are absolute times, or have some.
TIMES: Mapping[type, tuple[str, ...]] = {
    # messages, and what is in them
    m.SubmitRequest: ("deadline_unix_s",),
    m.Drain: ("deadline_s",),
    m.Member: ("leaves_at_s", "quarantined"),
    QuarantinedPair: ("until_s",),
    m.InterruptionReported: ("deadline_s",),
    m.LoadReported: ("arrivals_s",),
    m.FleetReported: ("at_s", "instances"),
    m.FleetInstance: ("launched_s", "leaves_at_s"),
    m.FleetOrder: ("releases",),
    m.InstanceRelease: ("deadline_s",),
    m.LedgerEntry: ("at_s",),
    RequestRecord: ("arrival_unix_s", "deadline_unix_s"),
    # events
    c.RecordLoaded: ("record",),
    g.RequestReceived: ("deadline_unix_s",),
    g.RequestResumed: ("deadline_unix_s",),
    MetadataAnswered: ("signs",),
    Sign: ("deadline_s",),
    # commands
    m.Send: ("message",),
    m.RecordLedger: ("entry",),
    g.PublishLoad: ("report",),
    p.PublishDrain: ("drain",),
    p.PublishFleetOrder: ("order",),
    s.PublishNotice: ("notice",),
    s.PublishReport: ("report",),
}


def shifted(item: T, seconds: float) -> T:
    """Return an event, a command or a message with all its absolute times that much later."""
    if not seconds or (names := TIMES.get(type(item))) is None:
        return item
    before: dict[str, Any] = {name: getattr(item, name) for name in names}
    changed = {name: after for name, each in before.items() if (after := _shifted(each, seconds)) is not each}
    return replace(item, **changed) if changed else item  # type: ignore[type-var]


def _shifted(value: Any, seconds: float) -> Any:
    if isinstance(value, float | int):
        return value + seconds
    if isinstance(value, tuple):
        return tuple(_shifted(each, seconds) for each in value)
    return shifted(value, seconds)
