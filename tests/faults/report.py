"""The table at the end of the suite: what each case cost its clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_WIDTH = 200


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case.

    Attributes:
        case: its name.
        victims: what was disturbed, and what else that was.
        ended: how the re-shape ended.
        requests, tokens: that clients got.
        lost, doubled, wrong: tokens that are missing, too many, or others than those of an undisturbed run.
        pause_ms: the longest wait of a client for tokens of a stream that had begun.
        again: attempts beyond the first, of all requests.
        seconds: until the mesh was idle and whole again.
    """

    case: str
    victims: str
    ended: str
    requests: int
    tokens: int
    lost: int
    doubled: int
    wrong: int
    pause_ms: int
    again: int
    seconds: int


def as_text(results: Sequence[CaseResult]) -> str:
    """Return the table, with a row of sums and longest waits."""
    table = Table(title="re-shapes under faults")
    for field in fields(CaseResult):
        is_text = field.name in ("case", "victims", "ended")
        table.add_column(field.name, justify="left" if is_text else "right", overflow="fold")
    for result in results:
        table.add_row(*map(escape, map(str, astuple(result))))
    table.add_section()
    sums = {name: sum(getattr(each, name) for each in results) for name in ("requests", "tokens", "lost", "doubled")}
    wrong, again, seconds = (sum(getattr(each, name) for each in results) for name in ("wrong", "again", "seconds"))
    longest_ms = max((each.pause_ms for each in results), default=0)
    table.add_row(f"{len(results)} cases", "", "", *map(str, (*sums.values(), wrong, longest_ms, again, seconds)))
    console = Console(width=_WIDTH, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return capture.get()
