"""Results of `spotwise simulate provision` as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from rich.table import Table

from spotwise.simulator.runs.clusters import Design, Split
from spotwise.simulator.searches.provisioning import BestSplit, Provisioned


class Aim(StrEnum):
    """What to optimise."""

    THROUGHPUT = "throughput"
    COST = "cost"
    POWER = "power"
    MACHINES = "machines"


#: A design's figures by name.
ProvisionRow = Mapping[str, float]

ROW_FIGURES = {
    "requests/s": "{:,.1f}",
    "prompt machines": "{:,.0f}",
    "token machines": "{:,.0f}",
    "cost, $/h": "{:,.0f}",
    "power, DGX-A100": "{:,.1f}",
}


def carried_row(design: Design, best: BestSplit) -> ProvisionRow:
    """Return the split that carries most."""
    return _row(design, best.split, best.limit.mean) | {"95 % of the mean, +-": best.limit.half_width or 0.0}


def served_row(design: Design, rate: float, answer: Provisioned) -> ProvisionRow | None:
    """Return the best split for a rate, if there is one."""
    return None if answer.split is None else _row(design, answer.split, rate)


def split_document(split: Split) -> dict[str, Any]:
    """Return a split as part of a document."""
    return {"prompt_machines": split.prompt, "token_machines": split.token}


def _row(design: Design, split: Split, rate: float) -> dict[str, float]:
    figures = (rate, split.prompt, split.token, design.price_per_hour(split), design.power(split))
    return dict(zip(ROW_FIGURES, map(float, figures), strict=True))


def provision_table(rows: Mapping[str, ProvisionRow | None], objective: Aim) -> Table:
    """Return a row for each design, the best first."""
    table = Table(header_style="bold")
    table.add_column("design")
    for heading in (*ROW_FIGURES, "per $/h", "per DGX-A100 of power"):
        table.add_column(heading, justify="right")
    figure = {Aim.THROUGHPUT: "requests/s", Aim.COST: "cost, $/h", Aim.POWER: "power, DGX-A100"}.get(objective)
    sign = -1 if objective is Aim.THROUGHPUT else 1

    def rank(item: tuple[str, ProvisionRow | None]) -> float:
        row = item[1]
        if row is None:
            return float("inf")
        return sign * (row["prompt machines"] + row["token machines"] if figure is None else row[figure])

    for name, row in sorted(rows.items(), key=rank):
        if row is None:
            table.add_row(name, "no split holds within --most")
            continue
        cells = [shown.format(row[heading]) for heading, shown in ROW_FIGURES.items()]
        table.add_row(name, *cells, _per(row, "cost, $/h", "{:.4f}"), _per(row, "power, DGX-A100", "{:.2f}"))
    return table


def _per(row: ProvisionRow, figure: str, shown: str) -> str:
    """Return requests a second for each unit of a figure; nothing where it is unknown."""
    return shown.format(row["requests/s"] / row[figure]) if row[figure] else ""
