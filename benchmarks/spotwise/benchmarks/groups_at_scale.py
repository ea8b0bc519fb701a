"""`spotwise bench dev groups-at-scale`: what changes of many groups cost the planner, and what streams see of them.

The groups are simulated: every device and worker is a member of the mesh, every message and every move of a request is real,
and only computing, weights and KV bytes are not. Four changes, one after the other, each under streams of its own: one group
in sixteen gets a notice, spare devices take the place of those that left, all groups take another shape, and one in sixteen
gets a notice again, now that the planner has learned what a move takes.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from spotwise.benchmarks.planner_load import PlannerLoad
from spotwise.benchmarks.scaled_changes import ScaledChange, ScaledMesh
from spotwise.cli.bench.completion import random_prompt
from spotwise.cli.bench.report import (
    ReportRow,
    Target,
    environment,
    progress_bar,
    report_console,
    require_writable,
    write_report,
)
from spotwise.cli.bench.servers import running_mesh
from spotwise.cli.launch.gateway_options import open_ports
from spotwise.core.parallel.config import ParallelConfig

#: One group in so many gets a notice.
ONE_IN = 16
#: The pause that the planner expects is right within this.
_WITHIN = 0.3
_LOOPBACK = "127.0.0.1"
_PATIENCE_S = "60"


def groups_at_scale(
    groups: Annotated[int, typer.Option(min=2, help="Workers, each a group of simulated devices.")] = 64,
    stages: Annotated[int, typer.Option(min=1, max=32, help="P.")] = 2,
    shards: Annotated[int, typer.Option(min=1, max=8, help="M; 1, 2, 4 or 8.")] = 2,
    streams: Annotated[int, typer.Option(min=1, help="Open at once.")] = 128,
    input_tokens: Annotated[int, typer.Option(min=1)] = 128,
    tokens: Annotated[int, typer.Option(min=64, help="Output tokens of each stream.")] = 160,
    speed: Annotated[float, typer.Option(min=1e-6, help="Of a group over that of its profile.")] = 0.2,
    notice: Annotated[float, typer.Option(min=1.0, help="Seconds from the notices to the deadline.")] = 10.0,
    rest: Annotated[float, typer.Option(min=0.1, help="Seconds for which the planner is measured at rest.")] = 10.0,
    seed: Annotated[int, typer.Option(min=0, help="Of prompts and answers.")] = 1,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
) -> None:
    """Measure changes of many simulated groups under streams: planner CPU and messages, pauses. Exit 1: a wrong token."""
    require_writable(json)
    console = report_console()
    noticed = max(1, groups // ONE_IN)
    shape = ParallelConfig(groups, stages, shards)
    left = ParallelConfig(groups - noticed, stages, shards)
    size = stages * shards
    other = ParallelConfig(groups, 1, size) if stages > 1 and size <= 8 else ParallelConfig(groups, size, 1)
    rng = random.Random(seed)
    prompts = [random_prompt(rng, input_tokens) for _ in range(streams)]
    (port,) = open_ports(_LOOPBACK, 0)
    arguments = ("--parallel", f"{groups},{stages},{shards}", "--devices", str((groups + noticed) * size))
    # A slow machine must not count members as lost, nor take the planner's lease.
    env = {"SPOTWISE_PLANNER_METRICS_PORT": str(port), "SPOTWISE_MEMBER_TIMEOUT_S": "10"}
    env |= {"SPOTWISE_PLANNER_LEASE_S": "10"}
    env |= {"SPOTWISE_STORE_TIMEOUT_S": _PATIENCE_S, "SPOTWISE_SUBMIT_TIMEOUT_S": _PATIENCE_S}
    done: list[ScaledChange] = []
    with progress_bar(console) as progress:
        task = progress.add_task("starting", total=5)
        with running_mesh(("--engine", "simulated", "--speed", str(speed), *arguments), env) as endpoint:
            mesh = ScaledMesh(endpoint, f"http://{_LOOPBACK}:{port}/metrics", prompts, tokens, seed)
            progress.update(task, description="at rest")
            at_rest, rest_cores = uvloop.run(mesh.rest(rest))
            progress.advance(task)
            progress.update(task, description="notices")
            done.append(uvloop.run(mesh.noticed(f"notice to {noticed} of {groups} groups", noticed, left, notice)))
            progress.advance(task)
            progress.update(task, description="spares")
            done.append(uvloop.run(mesh.reshaped(f"spares for {noticed} of {groups} groups", shape)))
            progress.advance(task)
            progress.update(task, description="another shape")
            name = f"{groups} groups, {stages}x{shards} > {other.pipeline}x{other.tensor}"
            done.append(uvloop.run(mesh.reshaped(name, other)))
            progress.advance(task)
            progress.update(task, description="notices again")
            left = replace(left, pipeline=other.pipeline, tensor=other.tensor)
            done.append(uvloop.run(mesh.noticed(f"notice to {noticed} of {groups}, again", noticed, left, notice)))
            progress.advance(task)
    settings = {
        "groups": groups,
        "stages": stages,
        "shards": shards,
        "streams": streams,
        "input_tokens": input_tokens,
        "tokens": tokens,
        "speed": speed,
        "notice_s": notice,
        "seed": seed,
    }
    changes = [each.as_dict() for each in done]
    write_report(
        _rows(at_rest, rest_cores, done),
        environment(**settings),
        json,
        console,
        lambda figure: f"{figure:,.2f}",
        at_rest=at_rest.as_dict() | {"mesh_cores": rest_cores},
        changes=changes,
    )
    if any(each.lost or each.wrong for each in done):
        raise typer.Exit(1)


def _rows(at_rest: PlannerLoad, rest_cores: float, done: Sequence[ScaledChange]) -> list[ReportRow]:
    rows = [
        ReportRow("at rest: mesh, cores", rest_cores),
        ReportRow("at rest: planner, cores", at_rest.cores),
        ReportRow("at rest: messages received a second", at_rest.received.total() / at_rest.seconds),
    ]
    return rows + [row for each in done for row in change_rows(each, at_rest)]


def change_rows(change: ScaledChange, at_rest: PlannerLoad) -> list[ReportRow]:
    """Return the rows of one change."""
    name, carried, load = change.name, change.carried, change.load
    beside = dict(load.received)
    heartbeats = beside.pop("Member", 0)
    rows = [
        ReportRow(f"{name}: until the plan was stored, ms", 1000 * carried.stored_s),
        ReportRow(f"{name}: until it was over, s", load.seconds),
        ReportRow(f"{name}: planner CPU, s", load.cpu_s, at_rest.cores * load.seconds),
        ReportRow(f"{name}: heartbeats to the planner", heartbeats),
        ReportRow(f"{name}: other messages to the planner", sum(beside.values())),
        ReportRow(f"{name}: messages of the planner", load.sent.total()),
        ReportRow(f"{name}: requests moved", len(change.pauses_s)),
    ]
    if carried.forming_s is not None:
        rows.append(ReportRow(f"{name}: until new groups served, s", carried.forming_s, carried.predicted_forming_s))
    if change.pauses_s:
        within = Target(at_least=1 - _WITHIN, at_most=1 + _WITHIN)
        median_ms, most_ms = 1000 * statistics.median(change.pauses_s), 1000 * max(change.pauses_s)
        rows.append(
            ReportRow(f"{name}: pause by the ledger, median ms", median_ms, 1000 * carried.pause_s or None, within)
        )
        rows.append(ReportRow(f"{name}: pause by the ledger, max ms", most_ms, 1000 * carried.pause_s or None))
    for whose, gaps_s in (("that moved", change.gaps_s), ("that stayed", change.other_gaps_s)):
        if gaps_s:
            usual_ms = 1000 * change.usual_gap_s
            median_ms, most_ms = 1000 * statistics.median(gaps_s), 1000 * max(gaps_s)
            rows.append(ReportRow(f"{name}: longest gap of streams {whose}, median ms", median_ms, usual_ms))
            rows.append(ReportRow(f"{name}: longest gap of streams {whose}, max ms", most_ms, usual_ms))
    rows.append(ReportRow(f"{name}: tokens computed again", change.recomputed))
    rows.append(ReportRow(f"{name}: streams lost", change.lost))
    rows.append(ReportRow(f"{name}: tokens lost, doubled or wrong", change.wrong))
    return rows
