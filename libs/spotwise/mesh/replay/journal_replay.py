"""Reads journals, feeds their events to fresh roles, and compares the commands; no command is executed.

The completed requests of a recorded run come from the gateways' journals: arrival, sizes, TTFT, TPOT and E2E. A request that
was still open at the journal's end, or got no token, is left out.
"""

from __future__ import annotations

import csv
import json
import time
import typing
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from spotwise.core.fleet.keeper.events import FleetKeeperEvent
from spotwise.core.fleet.keeper.role import FleetKeeperRole
from spotwise.core.gateway.commands import GatewayEvent
from spotwise.core.gateway.keeping import KeepingEvent, KeepingRole
from spotwise.core.gateway.role import GatewayRole
from spotwise.core.kv.blocks import BlockPool
from spotwise.core.planner.commands import PlannerEvent
from spotwise.core.planner.role import PlannerRole
from spotwise.core.scheduler.role import SchedulerEvent, SchedulerRole
from spotwise.core.spot.commands import SpotWatcherEvent
from spotwise.core.spot.role import SpotWatcherRole
from spotwise.core.worker.commands import WorkerEvent
from spotwise.core.worker.role import WorkerRole
from spotwise.mesh.service.journal import FORMAT, SUFFIX, dumped, encoded, vocabulary_of
from spotwise.mesh.service.role_loop import Role

_ROLES: Mapping[str, tuple[type, Any]] = {
    role.__name__: (role, events)
    for role, events in (
        (FleetKeeperRole, FleetKeeperEvent),
        (GatewayRole, GatewayEvent),
        (KeepingRole, KeepingEvent),
        (PlannerRole, PlannerEvent),
        (SchedulerRole, SchedulerEvent),
        (SpotWatcherRole, SpotWatcherEvent),
        (WorkerRole, WorkerEvent),
    )
}
_READ_BYTES = 1 << 20

#: The first three are the Azure LLM inference traces', so that the file is a trace, too.
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens", "TtftS", "TpotS", "E2eS")


class JournalError(Exception):
    """A file is no journal, or is damaged; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One event as recorded.

    Attributes:
        number: number of its line, from 2; the header is line 1.
        now: when the role handled it, Unix seconds.
        commands: the role's, as `journal.encoded` writes them.
        error: type of the exception that the role raised.
    """

    number: int
    now: float
    event_type: str
    event: dict[str, Any]
    commands: list[Any]
    error: str | None


@dataclass(frozen=True, slots=True)
class RecordedRole:
    """A journal's header, and its events."""

    path: Path
    role: str
    member_id: str
    incarnation: int
    parameters: dict[str, Any]

    def entries(self) -> Iterator[JournalEntry]:
        """Read the events in order, except an unfinished last line (a killed process's); raises `JournalError` for a damaged
        one.
        """
        lines = _lines(self.path)
        next(lines, None)
        for number, line in enumerate(lines, start=2):
            try:
                now, event_type, event, commands, *error = orjson.loads(line)
            except ValueError as damage:
                raise JournalError(f"{self.path}, line {number}: {damage}") from damage
            yield JournalEntry(number, now, event_type, event, commands, error[0] if error else None)

    def make(self) -> Role:
        """Make the role as at its start; raises `JournalError` where this version has no such role, or other parameters."""
        try:
            role_type = _ROLES[self.role][0]
            types = typing.get_type_hints(vars(role_type)["__init__"])
            given = {name: _parameter(types[name], value) for name, value in self.parameters.items()}
            role: Role = role_type(**given)
        except (KeyError, TypeError, ValidationError) as error:
            raise JournalError(f"{self.path}: a {self.role} cannot be made of it: {error!r}") from error
        return role

    def event_types(self) -> dict[str, type]:
        """Return the types of the role's events by name."""
        return {event.__name__: event for event in typing.get_args(_ROLES[self.role][1])}


def find_journals(folder: Path) -> list[RecordedRole]:
    """Return the journals of a folder, sorted by name; raises `JournalError` where there are none, or one has no header."""
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    if not paths:
        raise JournalError(f"{folder} holds no journals (*{SUFFIX}); SPOTWISE_JOURNAL names the folder of a mesh's")
    return [_header(path) for path in paths]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first event whose commands differ.

    Attributes:
        index: the first command that differs, from 0; `None` where the exceptions differ.
        recorded, replayed: the command or exception type at that place; `None` where there is none.
    """

    entry: JournalEntry
    index: int | None
    recorded: Any
    replayed: Any


@dataclass(slots=True)
class Replay:
    """The result of a replay.

    Attributes:
        events, commands: how many were identical.
        difference: the first one; `None` where all are identical.
        decision_s: seconds that the role took for each event, by event type.
    """

    source: RecordedRole
    events: int = 0
    commands: int = 0
    difference: Difference | None = None
    decision_s: dict[str, array[float]] = field(default_factory=dict)


def replay(source: RecordedRole) -> Replay:
    """Feed a journal's events to a fresh role until a command differs; raises `JournalError`: a damaged line, an
    unknown event.
    """
    done = Replay(source)
    role, types = source.make(), source.event_types()
    for entry in source.entries():
        try:
            event = _adapter(types[entry.event_type]).validate_python(entry.event)
        except (KeyError, ValidationError) as error:
            raise JournalError(f"{source.path}, line {entry.number}: no {entry.event_type}: {error!r}") from error
        given: Sequence[Any] = ()
        raised = None
        started_s = time.perf_counter()
        try:
            given = role.handle(event, entry.now)
        except Exception as error:
            # As in the service's event loop: an exception that was recorded must be raised again.
            raised = type(error).__name__
        done.decision_s.setdefault(entry.event_type, array("d")).append(time.perf_counter() - started_s)
        commands = orjson.loads(dumped([*map(encoded, given)]))
        done.difference = _difference(entry, commands, raised)
        if done.difference is not None:
            return done
        done.events += 1
        done.commands += len(commands)
    return done


def _difference(entry: JournalEntry, commands: list[Any], raised: str | None) -> Difference | None:
    if raised != entry.error:
        return Difference(entry, None, entry.error, raised)
    if commands == entry.commands:
        return None
    both = list(zip(entry.commands, commands, strict=False))
    index = next((number for number, (then, now) in enumerate(both) if then != now), len(both))
    recorded = entry.commands[index] if index < len(entry.commands) else None
    return Difference(entry, index, recorded, commands[index] if index < len(commands) else None)


@cache
def _adapter(event_type: type) -> TypeAdapter[Any]:
    return TypeAdapter(event_type)


def _parameter(wanted: Any, value: Any) -> Any:
    if BlockPool in (wanted, *typing.get_args(wanted)):
        return None if value is None else BlockPool(**value)
    return TypeAdapter(wanted).validate_python(value)


def _header(path: Path) -> RecordedRole:
    line = next(_lines(path), b"")
    try:
        fields = json.loads(line)
        if fields["format"] != FORMAT:
            raise JournalError(f"{path} has the format {fields['format']!r}; this version reads {FORMAT!r}")
        role = _ROLES.get(fields["role"])
        if role is not None and fields["vocabulary"] != vocabulary_of(role[0]):
            raise JournalError(
                f"{path}: events or commands of a {fields['role']} have changed; replay it with its own version"
            )
        return RecordedRole(
            path, fields["role"], fields["member_id"], fields["incarnation"], dict(fields["parameters"])
        )
    except (ValueError, KeyError, TypeError) as error:
        raise JournalError(f"{path} is no journal: {error!r}") from error


def _lines(path: Path) -> Iterator[bytes]:
    unzip = zlib.decompressobj(wbits=31)
    rest = b""
    try:
        with path.open("rb") as file:
            while chunk := file.read(_READ_BYTES):
                *lines, rest = (rest + unzip.decompress(chunk)).split(b"\n")
                yield from lines
    except (OSError, zlib.error) as error:
        raise JournalError(f"{path} cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A completed request (each of a request's choices is one).

    Attributes:
        arrived_s: at the gateway, Unix seconds.
        tpot_s: mean seconds per token after the first; `None` for an output of one token.
    """

    arrived_s: float
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    tpot_s: float | None
    e2e_s: float


def recorded_requests(journals: Iterable[RecordedRole]) -> list[RecordedRequest]:
    """Return the completed requests of all gateways in the journals, by arrival; raises `JournalError` for a damaged line."""
    found = [request for journal in journals if journal.role == GatewayRole.__name__ for request in _of(journal)]
    return sorted(found, key=lambda request: request.arrived_s)


def write_requests(requests: Iterable[RecordedRequest], path: Path) -> None:
    """Write requests as a trace with latencies; raises `OSError` where the file cannot be written."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        for request in requests:
            at = datetime.fromtimestamp(request.arrived_s, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
            times = (request.ttft_s, request.tpot_s, request.e2e_s)
            seconds = ("" if time_s is None else f"{time_s:.6f}" for time_s in times)
            rows.writerow((at, request.prompt_tokens, request.output_tokens, *seconds))


def _of(journal: RecordedRole) -> Iterable[RecordedRequest]:
    arrivals_s: dict[str, float] = {}
    for entry in journal.entries():
        if entry.event_type == "RequestReceived":
            arrivals_s[entry.event["choice_id"]] = entry.now
        for command in entry.commands:
            if command[0] != "RecordLedger" or command[1]["entry"]["stage"] != "completed":
                continue
            choice_id, facts = command[1]["entry"]["choice_id"], dict(command[1]["entry"]["facts"])
            arrived_s = arrivals_s.pop(choice_id, None)
            if arrived_s is not None and "ttft_s" in facts:
                yield RecordedRequest(
                    arrived_s,
                    facts["prompt_tokens"],
                    facts["output_tokens"],
                    facts["ttft_s"],
                    facts.get("tpot_s"),
                    facts["e2e_s"],
                )
