"""A migration plan as lines of text: when each instance's links are busy, and when stages start.

`k` marks KV, `w` weights, `.` an idle link; a pipeline's line has its stages' numbers where they start, `+` for several.
"""

from __future__ import annotations

import re

from spotwise.core.migration.mapping.parts import PartKind
from spotwise.core.migration.planning.plan import MigrationPlan, Transfer


def lanes(plan: MigrationPlan, columns: int = 72, most_links: int = 40) -> str:
    """Return the lines, `columns` wide; beyond `most_links` links, the number of the others."""
    until_s = max([plan.done_s, *plan.stage_start_s.values()]) or 1.0

    def column_at(at_s: float) -> int:
        return min(columns - 1, int(at_s / until_s * columns))

    links: dict[tuple[str, str], list[str]] = {}
    for transfer in plan.transfers:
        for link in _links(transfer):
            line = links.setdefault(link, ["."] * columns)
            for column in range(column_at(transfer.start_s), column_at(transfer.end_s) + 1):
                line[column] = "k" if transfer.part.kind is PartKind.KV else line[column].replace(".", "w")
    ordered = sorted(links, key=lambda link: (_natural(link[0]), link[1]))
    rows = [(f"{instance} {way}", "".join(links[instance, way])) for instance, way in ordered[:most_links]]
    if len(ordered) > most_links:
        rows.append((f"{len(ordered) - most_links} more", ""))
    for pipeline in range(plan.config.pipelines):
        line = ["."] * columns
        for stage in range(plan.config.pipeline):
            column = column_at(plan.stage_start_s[pipeline, stage])
            line[column] = str(stage % 10) if line[column] == "." else "+"
        rows.append((f"pipeline {pipeline}", "".join(line)))
    width = max(len(name) for name, _ in rows)
    scale = f"{'':{width}}  0 s{f'{until_s:.2f} s':>{columns - 3}}"
    return "\n".join([scale, *(f"{name:{width}}  {line}".rstrip() for name, line in rows)])


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts `i2` before `i10`."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


def _links(transfer: Transfer) -> list[tuple[str, str]]:
    if transfer.source is None:
        return [(transfer.target.instance, "storage")]
    if transfer.source.instance == transfer.target.instance:
        return [(transfer.target.instance, "within")]
    return [(transfer.source.instance, "up"), (transfer.target.instance, "down")]
