"""How many preemptible machines were available, where a recording has no more than counts.

Law: a curve is pairs of a time and a count, by time; lines out of order are sorted, as one published file needs it. As a trace,
the oldest machine ends first where the count falls: the curve does not show which ended, so this is a choice.

Source of the formats: Bamboo (`date, time, count` of Google's cloud; `seconds,count` and `hours,count` of Amazon's), Parcae
(`milliseconds,count`).
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from pathlib import Path

from spotwise.files.spot_traces import SpotEvent, SpotEventKind, SpotTrace, read_lines
from spotwise.files.tables import TraceError

Curve = tuple[tuple[float, int], ...]


class TimeUnit(Enum):
    """The unit of a file's times, in seconds."""

    MILLISECONDS = 1e-3
    SECONDS = 1.0
    HOURS = 3600.0


def read_counts(path: Path, unit: TimeUnit = TimeUnit.SECONDS) -> Curve:
    """Read a curve: seconds from its first time, and how many there are from then on; sorted, one pair a time (the last).

    Args:
        path: of the file.
        unit: of `time,count`; unused with `date, time, count`.

    Raises:
        TraceError: it cannot be read, or a line is wrong.
    """
    points: list[tuple[float, int]] = []
    for number, line in read_lines(path):
        cells = [cell.strip() for cell in line.split(",")]
        try:
            if len(cells) not in (2, 3):
                raise ValueError
            at_s = float(cells[0]) * unit.value if len(cells) == 2 else _clock_s(" ".join(cells[:2]))
            count = int(cells[-1])
            if count < 0:
                raise ValueError
        except ValueError:
            raise TraceError(
                f"{path}, line {number}: {line!r} is neither time,count nor 2021-12-11, 11:11:30, count"
            ) from None
        points.append((at_s, count))
    points.sort(key=lambda point: point[0])  # stable: of equal times the file's last line wins
    start_s = points[0][0]
    return tuple({at_s - start_s: count for at_s, count in points}.items())


def trace_of_counts(name: str, curve: Curve) -> SpotTrace:
    """Return a trace with so many instances, `spot-0` and on, the oldest leaving first; it ends with the curve."""
    events: list[SpotEvent] = []
    came = gone = 0
    for at_s, count in curve:
        change = count - (came - gone)
        if change > 0:
            events.append(SpotEvent(at_s, SpotEventKind.ADD, tuple(f"spot-{came + i}" for i in range(change))))
            came += change
        elif change < 0:
            events.append(SpotEvent(at_s, SpotEventKind.REMOVE, tuple(f"spot-{gone + i}" for i in range(-change))))
            gone -= change
    return SpotTrace(name, (*events, SpotEvent(curve[-1][0], SpotEventKind.DONE)))


def node_seconds(trace: SpotTrace) -> float:
    """Return the lengths of all stays together, up to the end of the recording."""
    return sum((trace.end_s if life.to_s is None else life.to_s) - life.from_s for life in trace.lives())


def _clock_s(written: str) -> float:
    """Seconds from any fixed day; the files have no zone, so a day has 24 hours."""
    return (datetime.fromisoformat(written) - datetime(2000, 1, 1)).total_seconds()
