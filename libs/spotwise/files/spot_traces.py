"""Recorded availability of spot instances, in the formats of SpotServe's artifact (one JSON list a line), Bamboo and Parcae
(`ms,add|remove,node`). Beyond these formats, a removal may say how many milliseconds before it the nodes are notified. A node
that joins twice or leaves while absent is an error with its line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson

from spotwise.files.tables import TraceError

_ONLY_A_MINUTE_PASSED = ("no-op", "migration")


class SpotEventKind(StrEnum):
    """Kind of event."""

    ADD = "add"  #: instances joined
    REMOVE = "remove"  #: instances left
    LOAD = "load"  #: only the load changed
    DONE = "done"  #: the recording ended


@dataclass(frozen=True, slots=True)
class SpotEvent:
    """An availability event.

    Attributes:
        time_s: from the trace's start; the notice comes before, how long is not in the trace.
        nodes: nodes that joined or left.
        required_rate: requests a second expected from here on; `None` where the trace has none.
        notice_s: from the notice of nodes that leave to this event; `None` where the trace does not say.
    """

    time_s: float
    kind: SpotEventKind
    nodes: tuple[str, ...] = ()
    required_rate: float | None = None
    notice_s: float | None = None


@dataclass(frozen=True, slots=True)
class NodeLife:
    """One stay of an instance; `to_s` is `None` if it was up at the end, `notice_s` as in `SpotEvent`."""

    node: str
    from_s: float
    to_s: float | None
    notice_s: float | None = None


@dataclass(frozen=True, slots=True)
class SpotTrace:
    """A recording: `events` by time, at one time in the file's order."""

    name: str
    events: tuple[SpotEvent, ...]

    def __post_init__(self) -> None:
        if not self.events:
            raise ValueError(f"{self.name}: a trace has at least one event")
        if any(later.time_s < earlier.time_s for earlier, later in zip(self.events, self.events[1:], strict=False)):
            raise ValueError(f"{self.name}: the events are not in the order of their times")
        _ = list(self.lives())

    @property
    def end_s(self) -> float:
        """When the recording ended: its `done`, or else its last event."""
        return self.events[-1].time_s

    def lives(self) -> Iterator[NodeLife]:
        """Yield every stay: ended ones by their ends, then the others by their starts; raises ValueError if a present node
        joins or an absent one leaves."""
        here: dict[str, float] = {}
        for event in self.events:
            for node in event.nodes:
                if event.kind is SpotEventKind.ADD:
                    if node in here:
                        raise ValueError(f"{self.name}: {node} comes at {event.time_s:g} s and is there already")
                    here[node] = event.time_s
                elif event.kind is SpotEventKind.REMOVE:
                    if node not in here:
                        raise ValueError(f"{self.name}: {node} goes at {event.time_s:g} s and is not there")
                    yield NodeLife(node, here.pop(node), event.time_s, event.notice_s)
        for node, from_s in here.items():
            yield NodeLife(node, from_s, None)

    def counts(self) -> tuple[tuple[float, int], ...]:
        """Return (time, instances from then on), one pair a time."""
        curve: dict[float, int] = {}
        count = 0
        for event in self.events:
            count += len(event.nodes) * {SpotEventKind.ADD: 1, SpotEventKind.REMOVE: -1}.get(event.kind, 0)
            curve[event.time_s] = count
        return tuple(curve.items())

    def part(self, from_s: float, to_s: float) -> SpotTrace:
        """Return the events between two times, from 0 s on; nodes already up join at 0 s, with the last required rate. Raises
        ValueError if the second time is not later."""
        if not 0 <= from_s < to_s:
            raise ValueError(f"a part goes from a time to a later one, not from {from_s:g} to {to_s:g} s")
        present = sorted(
            (life for life in self.lives() if life.from_s <= from_s and (life.to_s is None or life.to_s > from_s)),
            key=lambda life: life.from_s,
        )
        rates = [event.required_rate for event in self.events if event.time_s <= from_s and event.required_rate]
        first = SpotEvent(0.0, SpotEventKind.ADD, tuple(life.node for life in present), rates[-1] if rates else None)
        inside = [
            replace(event, time_s=event.time_s - from_s)
            for event in self.events
            if from_s < event.time_s < to_s and event.kind is not SpotEventKind.DONE
        ]
        done = SpotEvent(to_s - from_s, SpotEventKind.DONE)
        events = (first, *inside, done) if present else (*inside, done)
        return SpotTrace(f"{self.name} {from_s:g}-{to_s:g} s", events)


def read_spot_trace(path: Path, name: str | None = None) -> SpotTrace:
    """Read a segment of JSON lists or a CSV of events; `name` defaults to the file's. Raises TraceError if it cannot be read or
    a line is wrong."""
    lines = read_lines(path)
    rows = _segment(path, lines) if lines[0][1].startswith("[") else _csv(path, lines)
    return _checked(path, name or path.stem, rows)


def read_lines(path: Path) -> list[tuple[int, str]]:
    """Return a file's non-empty lines, numbered from 1; raises TraceError if it cannot be read or is empty."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path} is no text file: {error}") from error
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise TraceError(f"{path} is empty")
    return lines


def _checked(path: Path, name: str, rows: Iterable[tuple[int, SpotEvent]]) -> SpotTrace:
    here: set[str] = set()
    last_s = 0.0
    events: list[SpotEvent] = []
    for number, event in rows:
        if event.time_s < last_s:
            raise TraceError(f"{path}, line {number}: {event.time_s:g} s is earlier than the line before it")
        last_s = event.time_s
        for node in event.nodes:
            if event.kind is SpotEventKind.ADD and node in here:
                raise TraceError(f"{path}, line {number}: {node} comes and is there already")
            if event.kind is SpotEventKind.REMOVE and node not in here:
                raise TraceError(f"{path}, line {number}: {node} goes and is not there")
            (here.add if event.kind is SpotEventKind.ADD else here.remove)(node)
        events.append(event)
        if event.kind is SpotEventKind.DONE:
            break
    if all(event.kind is SpotEventKind.DONE for event in events):
        raise TraceError(f"{path}: nothing happens in it")
    return SpotTrace(name, tuple(events))


def _csv(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, SpotEvent]]:
    """Read `time_ms,add|remove,node[,notice_ms]`; joins or leaves at one time, of one notice, are one event, as they were
    polled."""
    open_event: tuple[int, SpotEvent] | None = None
    for number, line in lines:
        cells = [cell.strip() for cell in line.split(",")]
        has_notice = len(cells) == 4 and cells[1] == "remove"
        if not (len(cells) == 3 or has_notice) or cells[1] not in ("add", "remove") or not cells[2]:
            raise TraceError(
                f"{path}, line {number}: {line!r} is not milliseconds,add|remove,node, nor milliseconds,remove,node,"
                "milliseconds of notice"
            )
        notice_s = _seconds(path, number, cells[3]) if has_notice else None
        event = SpotEvent(_seconds(path, number, cells[0]), SpotEventKind(cells[1]), (cells[2],), notice_s=notice_s)
        if open_event and _moment(open_event[1]) == _moment(event):
            if event.nodes[0] in open_event[1].nodes:
                raise TraceError(f"{path}, line {number}: {event.nodes[0]} is listed twice at {event.time_s:g} s")
            open_event = (open_event[0], replace(open_event[1], nodes=open_event[1].nodes + event.nodes))
            continue
        if open_event:
            yield open_event
        open_event = (number, event)
    if open_event:
        yield open_event


def _moment(event: SpotEvent) -> tuple[float, SpotEventKind, float | None]:
    return event.time_s, event.kind, event.notice_s


def _segment(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, SpotEvent]]:
    """Read `[time_ms, "add" | "remove" | "other" | "DONE", {"nodes": [...], "required_tpt": ..., "notice_ms": ...}]`."""
    kinds = {
        "add": SpotEventKind.ADD,
        "remove": SpotEventKind.REMOVE,
        "other": SpotEventKind.LOAD,
        "DONE": SpotEventKind.DONE,
    }
    unmarked_end: tuple[int, float] | None = None  # where no DONE follows
    for number, line in lines:
        try:
            time_ms, word, details = orjson.loads(line)
            nodes, rate = tuple(details.get("nodes", ())), details.get("required_tpt")
            notice_ms = details.get("notice_ms")
        except (ValueError, TypeError, AttributeError) as error:
            raise TraceError(f'{path}, line {number}: not a list like [0, "add", {{"nodes": ["node-0"]}}]') from error
        time_s = _seconds(path, number, time_ms)
        if word in _ONLY_A_MINUTE_PASSED:
            unmarked_end = number, time_s
            continue
        unmarked_end = None
        kind = kinds.get(word)
        if kind is None:
            raise TraceError(f"{path}, line {number}: {word!r} is not add, remove, other or DONE")
        if not all(isinstance(node, str) and node for node in nodes) or len(set(nodes)) != len(nodes):
            raise TraceError(f"{path}, line {number}: nodes are names, each once")
        if kind in (SpotEventKind.ADD, SpotEventKind.REMOVE) and not nodes:
            raise TraceError(f"{path}, line {number}: {word} names no nodes")
        notice_s = None if notice_ms is None else _seconds(path, number, notice_ms)
        yield number, SpotEvent(time_s, kind, nodes, _rate(path, number, rate), notice_s)
    if unmarked_end is not None:
        yield unmarked_end[0], SpotEvent(unmarked_end[1], SpotEventKind.DONE)


def _seconds(path: Path, number: int, written: Any) -> float:
    try:
        time_ms = float(written)
    except (TypeError, ValueError):
        time_ms = -1.0
    if not 0 <= time_ms < float("inf"):
        raise TraceError(f"{path}, line {number}: {written!r} is no time in milliseconds of at least 0")
    return time_ms / 1000.0


def _rate(path: Path, number: int, written: Any) -> float | None:
    if written is None or (isinstance(written, int | float) and 0 < written < float("inf")):
        return None if written is None else float(written)
    raise TraceError(f"{path}, line {number}: required_tpt is {written!r}, not requests a second above 0")
