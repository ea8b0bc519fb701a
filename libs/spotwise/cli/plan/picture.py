"""A migration plan as a picture: when bytes arrive at each device, and when its stage may start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spotwise.core.migration.mapping.device_map import DeviceMap
from spotwise.core.migration.planning.plan import MigrationPlan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_LABELS = 48
_COLOURS = {"KV": "C1", "weights": "C0", "from storage": "C3"}


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
