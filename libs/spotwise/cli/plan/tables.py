"""A migration plan as tables: totals, device positions, transfers in order, and stage starts; and as one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.table import Table

from spotwise.cli.plan.scenario import Scenario
from spotwise.cli.quantities import bytes_text, seconds_text
from spotwise.core.migration.deployment import Device, DeviceMap
from spotwise.core.migration.mapping.parts import Part, PartKind
from spotwise.core.migration.planning.plan import MigrationPlan, Transfer, paper_migration_s
from spotwise.core.parallel.config import Position

_BAR = 32


def summary_table(change: Scenario, device_map: DeviceMap, plan: MigrationPlan, restart: MigrationPlan) -> Table:
    """The plan's totals, beside those of a restart that loads everything and computes all requests again."""
    running = sum(len(requests) for requests in device_map.running.values())
    decoding = sum(len(requests) for requests in change.before.running.values())
    moves = plan.moved_bytes + plan.storage_bytes
    table = _table(_title(change), ["", ">this plan", ">restart"])
    table.add_row("stays on its device", bytes_text(plan.kept_bytes), "0 B")
    table.add_row("from device to device", bytes_text(plan.moved_bytes), "0 B")
    table.add_row("from storage", bytes_text(plan.storage_bytes), bytes_text(restart.storage_bytes))
    table.add_row("moved or loaded, of a restart's bytes", f"{moves / max(1, plan.naive_bytes):.0%}", "100%")
    table.add_row(
        "longest pause of a pipeline", seconds_text(plan.longest_pause_s), seconds_text(restart.longest_pause_s)
    )
    table.add_row("all of it", seconds_text(plan.done_s), seconds_text(restart.done_s))
    table.add_row("T_mig by the paper's formula", seconds_text(paper_migration_s(plan)), "")
    table.add_row("pipelines that keep running", str(len(device_map.running_on)), "0")
    table.add_row("requests that resume with their KV", str(running - len(plan.recomputed)), "0")
    table.add_row(
        "requests computed again, or waiting", str(len(plan.recomputed) + len(device_map.waiting)), str(decoding)
    )
    largest = max(plan.peak_buffer_bytes.values(), default=0)
    limit = plan.policy.buffer_bytes
    bound = "no limit" if limit is None else f"limit {bytes_text(limit)}"
    table.add_row(f"largest receive buffer of an instance ({bound})", bytes_text(largest), "")
    return table


def mapping_table(change: Scenario, device_map: DeviceMap) -> Table:
    """A row for each instance: the old and new positions of its devices."""
    table = _table("positions of devices (pipeline.stage.shard)", ["instance", "", "before", "after"])
    for instance in change.before.instances:
        devices = instance.all_devices()
        before = [change.before.positions.get(device) for device in devices]
        after = [device_map.positions.get(device) for device in devices]
        what = "leaves" if instance.is_leaving else "joins" if instance.id in change.joining else ""
        if not what and not any(position is not None for position in after):
            what = "spare"
        stays = {position.pipeline for position in after if position is not None} & set(device_map.running_on)
        table.add_row(instance.id, what or ("keeps running" if stays else ""), _places(before), _places(after))
    for lost in change.lost:
        table.add_row(lost, "lost", "", "")
    return table


def order_table(plan: MigrationPlan, rows: int) -> Table:
    """A row for each step, up to that many."""
    ordered = sorted(plan.transfers, key=lambda transfer: transfer.step)
    steps = [(step, list(transfers)) for step, transfers in groupby(ordered, lambda transfer: transfer.step)]
    shown = f", the first {rows} of {len(steps)} steps (--rows)" if len(steps) > rows else ""
    headings = [">step", "what", ">bytes", ">transfers", "from", "to", ">starts", ">there"]
    table = _table(f"what moves, in order{shown}", headings)
    for step, transfers in steps[:rows]:
        table.add_row(
            str(step),
            _what(transfers),
            bytes_text(sum(each.byte_count for each in transfers)),
            str(len(transfers)),
            _names([each.source.instance if each.source is not None else "storage" for each in transfers]),
            _names([each.target.instance for each in transfers]),
            seconds_text(min(each.start_s for each in transfers)),
            seconds_text(max(each.end_s for each in transfers)),
        )
    return table


def stages_table(plan: MigrationPlan) -> Table:
    """When each stage may start, with a bar of the time until then."""
    table = _table("when stages may start", [">pipeline", ">stage", ">may start"])
    table.add_column(f"0 to {seconds_text(plan.done_s)}", no_wrap=True)
    for (pipeline, stage), start_s in sorted(plan.stage_start_s.items()):
        waits = round(_BAR * start_s / plan.done_s) if plan.done_s else 0
        bar = f"[dim]{'░' * waits}[/][green]{'█' * (_BAR - waits)}[/]"
        table.add_row(str(pipeline), str(stage), seconds_text(start_s), bar)
    return table


def _table(title: str, headings: Sequence[str]) -> Table:
    """Return an empty table; a heading that begins with `>` has its column aligned right."""
    table = Table(header_style="bold", title=title, title_justify="left", title_style="")
    for heading in headings:
        table.add_column(heading.removeprefix(">"), justify="right" if heading.startswith(">") else "left")
    return table


def _title(change: Scenario) -> str:
    goes = [instance.id for instance in change.before.instances if instance.is_leaving]
    parts = [f"from {change.before.config} to {change.config} (D,P,M,B)"]
    if goes:
        parts.append(f"{_names(goes)} under notice, {change.deadline_s:g} s left")
    if change.lost:
        parts.append(f"{_names(change.lost)} lost")
    if change.joining:
        parts.append(f"{_names(change.joining)} join")
    return "; ".join(parts)


def _places(positions: Sequence[Position | None]) -> str:
    places = []
    known = [position for position in positions if position is not None]
    for (pipeline, stage), group in groupby(known, lambda position: (position.pipeline, position.stage)):
        shards = [position.shard for position in group]
        is_run = len(shards) > 1 and shards == list(range(shards[0], shards[0] + len(shards)))
        written = f"{shards[0]}-{shards[-1]}" if is_run else ",".join(map(str, shards))
        places.append(f"{pipeline}.{stage}.{written}")
    return "  ".join(places) or "-"


def _what(transfers: Sequence[Transfer]) -> str:
    parts = {transfer.part: transfer.layers for transfer in transfers}  # in order, each once
    requests = list(dict.fromkeys(part.request for part in parts if part.request is not None))
    if requests:
        return f"KV of {_names(requests)}"
    return ", ".join(_part(part) for part in parts)


def _part(part: Part) -> str:
    return f"layer {part.layer}" if part.kind is PartKind.LAYER else part.kind.value


def _names(names: Sequence[str], most: int = 4) -> str:
    each = list(dict.fromkeys(names))
    return " ".join(each[:most]) + (f" +{len(each) - most}" if len(each) > most else "")


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
