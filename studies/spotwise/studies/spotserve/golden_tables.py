"""The SpotServe optimizer's published answers beside ours, as tables and as parts of a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from spotwise.studies.spotserve.golden import AloneAnswer, GoldenAnswer, GoldenCell, OptimizerAnswer


def golden_table(answers: Sequence[GoldenAnswer]) -> Table:
    """Return a row for each number of instances: D,P,M,B, l_exe and throughput for each model and rate."""
    exact = sum(answer.is_exact for answer in answers)
    columns = list(dict.fromkeys(_column(answer.cell) for answer in answers))
    title = f"the optimizer's answers: {exact} of {len(answers)} as published (golden)"
    table = Table(header_style="bold", title=title, title_justify="left", title_style="")
    table.add_column("instances", justify="right")
    for column in columns:
        table.add_column(column)
    for instances in sorted({answer.cell.instances for answer in answers}):
        row = {_column(answer.cell): answer for answer in answers if answer.cell.instances == instances}
        table.add_row(str(instances), *(_golden_cell(row[column]) if column in row else "" for column in columns))
    return table


def _column(cell: GoldenCell) -> str:
    return f"{cell.model.name}, {cell.required_rate:g}/s"


def _golden_cell(answer: GoldenAnswer) -> str:
    ours = _written(answer.ours)
    return f"[green]{ours}[/]" if answer.is_exact else f"[red]{ours}[/] (published: {_written(answer.cell.published)})"


def _written(answer: OptimizerAnswer) -> str:
    if answer.config is None:
        return "none"
    return f"{answer.config}  {answer.execution_s:.3f} s  {answer.throughput:.3f}/s"


def alone_table(answers: Sequence[AloneAnswer]) -> Table:
    """Return the paper's Table 1 beside ours."""
    table = Table(header_style="bold", title="one request alone (Table 1)", title_justify="left", title_style="")
    for heading in ("model", "P", "M", "paper s", "ours s"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for answer in answers:
        claim = answer.model.alone
        colour = "green" if answer.is_exact else "red"
        ours = f"[{colour}]{answer.seconds:.3f}[/]"
        table.add_row(answer.model.name, str(claim.stages), str(claim.shards), f"{claim.seconds:.3f}", ours)
    return table


def golden_document(answers: Sequence[GoldenAnswer], alone: Sequence[AloneAnswer]) -> dict[str, Any]:
    """Return all cells and Table 1."""
    return {
        "golden": [
            {
                "model": answer.cell.model.name,
                "required_rate": answer.cell.required_rate,
                "instances": answer.cell.instances,
                "published": answer.cell.published.config,
                "ours": answer.ours.config,
                "execution_s": {"published": answer.cell.published.execution_s, "ours": answer.ours.execution_s},
                "throughput": {"published": answer.cell.published.throughput, "ours": answer.ours.throughput},
                "exact": answer.is_exact,
            }
            for answer in answers
        ],
        "alone_s": {
            answer.model.name: {"paper": answer.model.alone.seconds, "ours": answer.seconds} for answer in alone
        },
    }
