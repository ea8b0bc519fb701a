"""A migration plan as one JSON document."""

from __future__ import annotations

from typing import Any

from spotwise.core.migration.deployment import Device
from spotwise.core.migration.mapping.device_map import DeviceMap
from spotwise.core.migration.planning.plan import MigrationPlan, paper_migration_s


def plan_document(device_map: DeviceMap, plan: MigrationPlan) -> dict[str, Any]:
    """Return the whole plan; shares as exact fractions."""
    return {
        "from": str(plan.before),
        "to": str(plan.config),
        "positions": {_name(device): list(position) for device, position in device_map.positions.items()},
        "running_on": {str(new): old for new, old in device_map.running_on.items()},
        "running": {
            str(pipeline): [request.id for request in requests] for pipeline, requests in device_map.running.items()
        },
        "waiting": [request.id for request in device_map.waiting],
        "recomputed": [request.id for request in plan.recomputed],
        "transfers": [
            {
                "step": each.step,
                "part": each.part.kind.value,
                "layer": each.part.layer,
                "layers": each.layers,
                "request": each.part.request,
                "share": [str(each.share.start), str(each.share.end)],
                "bytes": each.byte_count,
                "source": None if each.source is None else _name(each.source),
                "target": _name(each.target),
                "relayed": each.is_relayed,
                "after_step": each.after_step,
                "start_s": each.start_s,
                "end_s": each.end_s,
            }
            for each in plan.transfers
        ],
        "freed": [
            {
                "step": each.step,
                "device": _name(each.device),
                "bytes": each.byte_count,
                "kv": each.is_kv,
                "at_s": each.at_s,
            }
            for each in plan.freed
        ],
        "stage_start_s": {f"{pipeline}.{stage}": start_s for (pipeline, stage), start_s in plan.stage_start_s.items()},
        "pause_s": {str(pipeline): seconds for pipeline, seconds in plan.pause_s.items()},
        "kv_done_s": plan.kv_done_s,
        "done_s": plan.done_s,
        "paper_migration_s": paper_migration_s(plan),
        "kept_bytes": plan.kept_bytes,
        "moved_bytes": plan.moved_bytes,
        "storage_bytes": plan.storage_bytes,
        "naive_bytes": plan.naive_bytes,
        "peak_buffer_bytes": dict(plan.peak_buffer_bytes),
    }


def _name(device: Device) -> str:
    return f"{device.instance}:{device.number}"
