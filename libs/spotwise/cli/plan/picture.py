"""A migration plan drawn, as a picture: when bytes arrive at each device, and when its stage may start; and as lines of text:
when each instance's links are busy, and when stages start.

In a line `k` marks KV, `w` weights, `.` an idle link; a pipeline's line has its stages' numbers where they start, `+` for
several.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from spotwise.core.migration.deployment import DeviceMap
from spotwise.core.migration.mapping.parts import PartKind
from spotwise.core.migration.planning.plan import MigrationPlan, Transfer

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_MOST_LABELS = 48
_COLOURS = {"KV": "C1", "weights": "C0", "from storage": "C3"}


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


def draw_plan(device_map: DeviceMap, plan: MigrationPlan) -> Figure:
    """Draw a lane for each device: KV and weights as they arrive, and a line where its stage may start."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    lanes = {device: lane for lane, device in enumerate(device_map.positions)}
    figure = Figure(figsize=(9, min(16.0, 1.6 + 0.22 * len(lanes))), layout="constrained")
    axes = figure.add_subplot()
    for transfer in plan.transfers:
        kind = (
            "KV" if transfer.part.request is not None else "weights" if transfer.source is not None else "from storage"
        )
        width_s = transfer.end_s - transfer.start_s
        axes.barh(lanes[transfer.target], width_s, 0.8, left=transfer.start_s, color=_COLOURS[kind])
    for device, position in device_map.positions.items():
        start_s = plan.stage_start_s[position.pipeline, position.stage]
        lane = lanes[device]
        axes.plot([start_s, start_s], [lane - 0.5, lane + 0.5], color="black", linewidth=1.5)
    labels = [
        f"{device.instance}:{device.number}  {'.'.join(map(str, position))}"
        for device, position in device_map.positions.items()
    ]
    every = -(-len(labels) // _MOST_LABELS)
    axes.set_yticks(range(0, len(labels), every), labels[::every], fontsize=7, family="monospace")
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_xlim(0, max(plan.done_s, 1e-3) * 1.02)
    axes.set_xlabel("seconds from the start of the migration")
    axes.set_title(f"{plan.before} to {plan.config}: instance:device, pipeline.stage.shard", fontsize=9)
    axes.grid(visible=True, axis="x", alpha=0.25)
    keys = [Patch(color=colour, label=kind) for kind, colour in _COLOURS.items()]
    keys.append(Patch(color="black", label="stage may start"))
    axes.legend(handles=keys, loc="upper right", fontsize=7)
    return figure
