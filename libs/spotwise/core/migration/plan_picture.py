"""A migration plan for people and for other programs: a table, a picture of its links, and plain data.

Law: nothing is decided here. The table has a line for each transfer, or for each run of layers that goes the same way in turn.
The picture has a line for each instance's links over time, `k` where KV moves and `w` where weights do, and a line for each
pipeline with the numbers of its stages where they start. Plain data holds lists, numbers and texts only; shares are written as
fractions.

Invariants: the table's bytes add up to the plan's; plain data goes through JSON unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from spotwise.core.migration.deployment import Device
from spotwise.core.migration.held import PartKind
from spotwise.core.migration.plan import MigrationPlan, Transfer

#: What JSON can hold.
Plain = dict[str, "Plain"] | list["Plain"] | str | int | float | bool | None


def table(plan: MigrationPlan) -> str:
    """Return the plan's transfers as a table, and what they come to."""
    lines = [("from s", "to s", "what", "share", "source", "target", "bytes")]
    for run in _runs(plan):
        first, last = run[0], run[-1]
        lines.append(
            (
                f"{first.start_s:.2f}",
                f"{last.end_s:.2f}",
                _what(first, last),
                f"{first.share.start}..{first.share.end}",
                _place(first.source),
                _place(first.target),
                f"{sum(each.byte_count for each in run):,}",
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(7)]
    right = (0, 1, 6)
    written = [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([*written, "", *_summary(plan)])


def picture(plan: MigrationPlan, columns: int = 72) -> str:
    """Return when each instance's links are busy and when stages start, `columns` wide."""
    until_s = max([plan.done_s, *plan.stage_start_s.values()]) or 1.0
    names: dict[tuple[str, str], list[str]] = {}
    for transfer in plan.transfers:
        left, right = (min(columns - 1, int(at_s / until_s * columns)) for at_s in (transfer.start_s, transfer.end_s))
        for name in _links(transfer):
            line = names.setdefault(name, ["."] * columns)
            for column in range(left, right + 1):
                line[column] = "k" if transfer.part.kind == PartKind.KV else line[column].replace(".", "w")
    rows = [(f"{instance} {way}", "".join(line)) for (instance, way), line in sorted(names.items())]
    for pipeline in range(plan.config.pipelines):
        line = ["."] * columns
        for stage in range(plan.config.pipeline):
            column = min(columns - 1, int(plan.stage_start_s[pipeline, stage] / until_s * columns))
            line[column] = str(stage % 10) if line[column] == "." else "+"
        rows.append((f"pipeline {pipeline}", "".join(line)))
    width = max(len(name) for name, _ in rows)
    scale = f"{'':{width}}  0 s{f'{until_s:.2f} s':>{columns - 3}}"
    return "\n".join([scale, *(f"{name:{width}}  {line}" for name, line in rows)])


def plain(plan: MigrationPlan) -> dict[str, Plain]:
    """Return the plan as plain data."""
    return {
        "before": str(plan.before),
        "config": str(plan.config),
        "transfers": [
            {
                "step": each.step,
                "kind": str(each.part.kind),
                "layer": each.part.layer,
                "layers": each.layers,
                "request": each.part.request,
                "share": [str(each.share.start), str(each.share.end)],
                "byte_count": each.byte_count,
                "source": None if each.source is None else list(each.source),
                "target": list(each.target),
                "is_relayed": each.is_relayed,
                "after_step": each.after_step,
                "start_s": each.start_s,
                "end_s": each.end_s,
            }
            for each in plan.transfers
        ],
        "freed": [
            {
                "step": each.step,
                "device": list(each.device),
                "byte_count": each.byte_count,
                "is_kv": each.is_kv,
                "at_s": each.at_s,
            }
            for each in plan.freed
        ],
        "stage_start_s": [[*stage, start_s] for stage, start_s in sorted(plan.stage_start_s.items())],
        "pause_s": [plan.pause_s[pipeline] for pipeline in range(plan.config.pipelines)],
        "kv_done_s": plan.kv_done_s,
        "done_s": plan.done_s,
        "moved_bytes": plan.moved_bytes,
        "storage_bytes": plan.storage_bytes,
        "kept_bytes": plan.kept_bytes,
        "naive_bytes": plan.naive_bytes,
        "peak_buffer_bytes": dict(sorted(plan.peak_buffer_bytes.items())),
        "recomputed": [each.id for each in plan.recomputed],
    }


def _runs(plan: MigrationPlan) -> Iterator[list[Transfer]]:
    """Yield transfers that follow one another and differ in their layer only, in the order of the first of them."""

    def way(each: Transfer) -> tuple[object, ...]:
        return each.source, each.target, each.share, each.part.kind, each.part.request

    ways: dict[tuple[object, ...], list[Transfer]] = {}
    for each in plan.transfers:
        ways.setdefault(way(each), []).append(each)
    runs = []
    for those in ways.values():
        numbered = enumerate(those)
        for _, run in groupby(numbered, key=lambda entry: (entry[1].part.layer or 0) - entry[0]):
            runs.append([each for _, each in run])
    yield from sorted(runs, key=lambda run: (run[0].start_s, run[0].step, run[0].target))


def _what(first: Transfer, last: Transfer) -> str:
    if first.part.layer is None:
        return str(first.part.kind)
    end = (last.part.layer or 0) + last.layers - 1
    layers = f"layer {first.part.layer}" if end == first.part.layer else f"layers {first.part.layer}-{end}"
    return layers if first.part.request is None else f"KV of {first.part.request}, {layers}"


def _place(device: Device | None) -> str:
    return "storage" if device is None else f"{device.instance}:{device.index}"


def _links(transfer: Transfer) -> list[tuple[str, str]]:
    if transfer.source is None:
        return [(transfer.target.instance, "storage")]
    if transfer.source.instance == transfer.target.instance:
        return [(transfer.target.instance, "within")]
    return [(transfer.source.instance, "up"), (transfer.target.instance, "down")]


def _summary(plan: MigrationPlan) -> list[str]:
    peak = max(plan.peak_buffer_bytes.values(), default=0)
    return [
        f"{plan.before} -> {plan.config}: all there after {plan.done_s:.2f} s, KV after {plan.kv_done_s:.2f} s; "
        f"the longest pause is {plan.longest_pause_s:.2f} s",
        f"moved {plan.moved_bytes:,} bytes, from storage {plan.storage_bytes:,}, kept {plan.kept_bytes:,}; "
        f"a restart would load {plan.naive_bytes:,}",
        f"largest receive buffer {peak:,} bytes; computed again: "
        + (", ".join(each.id for each in plan.recomputed) or "nobody"),
    ]
