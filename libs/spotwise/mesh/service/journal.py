"""Writes a role's journal, with absolute times on the wall clock.

What a role receives is translated on its way in, and what it commands on its way out; its heartbeat too. Nothing is to do while
no clock was set since the member's start. A keeper of the fleet is left out: its times are its provider's.

Written where `SPOTWISE_JOURNAL` names a folder, one file per incarnation of a member; read by `journal_replay.py` alone. A file
is gzip over lines of JSON: a header, then `[time, event type, event, commands]` for each event, and a fifth field, the error's
type, where the role raised. It is flushed about once a second: a killed process loses no more than that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, get_args, get_type_hints

import orjson
import structlog

from spotwise.core.gateway import commands as g
from spotwise.core.kv.blocks import BlockPool
from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import Member, QuarantinedPair
from spotwise.core.messages.mesh import Send
from spotwise.core.planner import commands as p
from spotwise.core.requests.record import RequestRecord
from spotwise.core.spot import commands as s
from spotwise.core.spot.signs import MetadataAnswered, Sign
from spotwise.core.worker import commands as c

_log = structlog.get_logger(__name__)

#: A change of how a line is written raises the number; what events and commands are called is in `vocabulary_of`.
FORMAT = "spotwise-journal/8"
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


SUFFIX = ".journal.gz"
#: Time between flushes, by the role's clock: what a killed process loses at most.
FLUSH_S = 1.0
#: The fastest: compression takes time from the work that is recorded.
_COMPRESSION = 1

#: Characters of a digest of names: two vocabularies are never compared by more.
_DIGEST_DIGITS = 16

P = ParamSpec("P")
RoleT = TypeVar("RoleT")


class Journal:
    """Writes one role's journal; raises `OSError` where the folder cannot be written."""

    def __init__(self, folder: Path, member: Member, role_type: Any, parameters: dict[str, Any]) -> None:
        # A journal holds prompts: only its owner may read it.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{member.id}-{member.incarnation}{SUFFIX}"
        self._raw = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
        self._file: gzip.GzipFile | None = gzip.GzipFile(path.name, "wb", _COMPRESSION, self._raw)
        self._flushed_s = 0.0
        header = {
            "format": FORMAT,
            "role": getattr(role_type, "__name__", ""),
            "vocabulary": vocabulary_of(role_type),
            "member_id": member.id,
            "incarnation": member.incarnation,
            "parameters": parameters,
        }
        # orjson would write an infinite limit as null.
        self._file.write(json.dumps(header, default=_plain).encode() + b"\n")
        self._file.flush()

    def note(self, event: Any, now: float, commands: Sequence[Any], error: Exception | None) -> None:
        """Write one event and its commands; a full disk ends the journal, not the service."""
        if self._file is None:
            return
        line: list[Any] = [now, type(event).__name__, event, [*map(encoded, commands)]]
        if error is not None:
            line.append(type(error).__name__)
        try:
            self._file.write(dumped(line) + b"\n")
            if now - self._flushed_s >= FLUSH_S:
                self._flushed_s = now
                self._file.flush()
        except OSError as full:
            _log.error("journal_ended", error=str(full))
            self._file = None
            with contextlib.suppress(OSError):
                self._raw.close()

    def close(self) -> None:
        """Flush and close the file; idempotent."""
        file, self._file = self._file, None
        if file is not None:
            try:
                with self._raw:
                    file.close()
            except OSError as full:
                _log.error("journal_ended", error=str(full))


def vocabulary_of(role_type: Any) -> str:
    """Return a digest of the types that a role's events and commands consist of, with the names and types of their fields."""
    described: dict[str, list[str]] = {}
    waiting = [*get_type_hints(role_type.handle).values()]
    while waiting:
        each = waiting.pop()
        waiting += get_args(each)
        if not isinstance(each, type) or each.__name__ in described:
            continue
        if issubclass(each, Enum):
            described[each.__name__] = [f"{name}={member.value}" for name, member in each.__members__.items()]
        elif dataclasses.is_dataclass(each) or hasattr(each, "_fields"):
            fields = get_type_hints(each)
            described[each.__name__] = [f"{name}: {hint}" for name, hint in fields.items()]
            waiting += fields.values()
    return hashlib.sha256(orjson.dumps(described, option=orjson.OPT_SORT_KEYS)).hexdigest()[:_DIGEST_DIGITS]


def encoded(command: Any) -> list[Any]:
    """Return a command with its type, and that of the message that it sends."""
    if isinstance(command, Send):
        return ["Send", command.recipient_id, type(command.message).__name__, command.message]
    return [type(command).__name__, command]


def dumped(value: Any) -> bytes:
    """Return events or commands as JSON."""
    return orjson.dumps(value, default=_fields)


def make_role(
    folder: Path | None, member: Member, role_type: Callable[P, RoleT], *args: P.args, **kwargs: P.kwargs
) -> tuple[RoleT, Journal | None]:
    """Make a member's role, and its journal where `folder` is set; raises `OSError` where the folder cannot be written."""
    journal = None
    if folder is not None:
        given = inspect.signature(role_type).bind(*args, **kwargs)
        given.apply_defaults()
        # Before the role is made, which may change its arguments.
        journal = Journal(folder, member, role_type, dict(given.arguments))
    return role_type(*args, **kwargs), journal


def _fields(value: Any) -> list[Any]:
    if isinstance(value, tuple):  # a named one
        return [*value]
    raise TypeError(f"a journal cannot hold a {type(value).__name__}")


def _plain(value: Any) -> Any:
    if isinstance(value, BlockPool):
        return {"num_blocks": value.num_blocks, "block_size": value.block_size}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"a journal cannot hold a {type(value).__name__}")
