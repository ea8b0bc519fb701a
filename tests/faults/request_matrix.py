"""The table of requests under faults: a row for each disturbance of each process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from tests.faults.request_phases import RequestPhase
from tests.faults.seeded_load import SeededAnswer

_WIDTH = 220
_COUNTED = ("requests", "tokens", "lost", "doubled", "wrong", "errors", "refused", "broken", "again")


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """What clients got of one cell.

    Attributes:
        disturbance, victims: what was done to which processes.
        phases: how many requests were in each when it began.
        requests, tokens: that clients got.
        lost, doubled, wrong: tokens that are missing, too many, or others than those that were due.
        errors: accepted requests that ended with one.
        refused: times that requests were not accepted, and sent again.
        broken: connections that broke within an answer.
        again: attempts beyond the first, of all requests.
        pause_s: the longest wait for the next token of an answer.
    """

    disturbance: str
    victims: str
    phases: Counter[RequestPhase]
    requests: int
    tokens: int
    lost: int
    doubled: int
    wrong: int
    errors: int
    refused: int
    broken: int
    again: int
    pause_s: float

    @property
    def is_clean(self) -> bool:
        """Tell whether each client got its tokens, and no others."""
        return not (self.lost or self.doubled or self.wrong or self.errors)


def row_of(
    disturbance: str,
    victims: str,
    phases: Counter[RequestPhase],
    answers: Sequence[SeededAnswer],
    words: Sequence[int],
    again: int,
) -> MatrixRow:
    """Compare what clients got with what they have to get."""
    lost = doubled = wrong = 0
    for answer in answers:
        for choice, due in enumerate(answer.expected(words)):
            got = answer.tokens.get(choice, [])
            lost += max(0, len(due) - len(got))
            doubled += max(0, len(got) - len(due))
            wrong += sum(one != other for one, other in zip(got, due, strict=False))
    return MatrixRow(
        disturbance,
        victims,
        phases,
        len(answers),
        sum(len(tokens) for answer in answers for tokens in answer.tokens.values()),
        lost,
        doubled,
        wrong,
        sum(bool(answer.errors) for answer in answers),
        sum(answer.refused for answer in answers),
        sum(answer.broken for answer in answers),
        again,
        max((answer.longest_gap_s for answer in answers), default=0.0),
    )


def sum_of(rows: Sequence[MatrixRow], name: str) -> MatrixRow:
    """Return a row of the sums and longest waits of some."""
    counts = {name: sum(getattr(row, name) for row in rows) for name in _COUNTED}
    longest_s = max((row.pause_s for row in rows), default=0.0)
    return MatrixRow(name, "", Counter(), **counts, pause_s=longest_s)


def as_table(rows: Sequence[MatrixRow]) -> str:
    """Return the table, with a row of sums and longest waits."""
    table = Table(title="requests under faults")
    for name in ("disturbance", "victims", "in each phase when it began"):
        table.add_column(name, overflow="fold")
    for name in (*_COUNTED, "pause_s"):
        table.add_column(name, justify="right")
    for row in rows:
        phases = ", ".join(f"{phase} {count}" for phase, count in sorted(row.phases.items()))
        table.add_row(row.disturbance, row.victims, phases, *_figures(row))
    table.add_section()
    table.add_row(f"{len(rows)} cells", "", "", *_figures(sum_of(rows, "")))
    console = Console(width=_WIDTH, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def _figures(row: MatrixRow) -> list[str]:
    return [*(str(getattr(row, name)) for name in _COUNTED), f"{row.pause_s:.2f}"]
