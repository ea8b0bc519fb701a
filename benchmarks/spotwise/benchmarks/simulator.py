"""`spotwise bench simulator`: a live run against its simulation, by a profile recorded on the same machine.

One mesh is profiled, loaded and profiled again (a machine's pace drifts), with a journal; the simulator gets the profile, and
the cluster and arrivals of that journal, but none of its times. Fresh roles replay the same journal.
"""

from __future__ import annotations

import asyncio
import json as json_text
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from spotwise.benchmarks.arrivals import UniformSizes, poisson_arrivals, storm
from spotwise.benchmarks.batching import parse_rates
from spotwise.benchmarks.contention import Contention, CoreUse, contention_lines
from spotwise.benchmarks.open_loop import failures, run_open_loop
from spotwise.benchmarks.recorded import RequestTimes, arrivals_of, simulate_recorded
from spotwise.benchmarks.recorded_run import recorded_cluster, times_of
from spotwise.cli.bench.report import (
    ReportRow,
    Target,
    environment,
    progress_bar,
    report_console,
    require_writable,
    write_report,
)
from spotwise.cli.bench.servers import running_mesh, up_arguments
from spotwise.cli.errors import CommandError, OptionError
from spotwise.cli.profile import fitted_profile, measure_costs, profile_steps
from spotwise.cli.profile_files import extrapolation_lines
from spotwise.core.costs.cost_profile import MeasuredRange, TimeBeyond
from spotwise.core.percentile import percentile
from spotwise.files.cost_profile import profile_as_dict
from spotwise.mesh.replay.journal_replay import JournalError, find_journals, recorded_requests, replay

_WITHIN = Target(at_most=1.1, at_least=0.9)
_WARM_UP_REQUESTS = 4
_QUICK_RATES, _QUICK_SECONDS = "1", 5.0
_METRICS = ("TTFT", "TPOT", "E2E")


def simulator(
    rates: Annotated[str, typer.Option(help="Requests per second, one run each.")] = "0.5,1",
    seconds: Annotated[float, typer.Option(min=1, help="How long requests arrive at each rate.")] = 60.0,
    longest_prompt: Annotated[int, typer.Option(min=32, help="Tokens.")] = 512,
    longest_answer: Annotated[int, typer.Option(min=2, help="Tokens.")] = 128,
    up_args: Annotated[str, typer.Option(help="Passed on to `spotwise up`, for instance '--engine simulated'.")] = "",
    keep: Annotated[Path | None, typer.Option(help="Leave journals and profile in this folder.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One short run: shows that it works.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of arrivals, lengths and prompts.")] = 1,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
) -> None:
    """Compare the simulator with a live mesh: p50 and p90 of TTFT, TPOT and E2E of the same requests."""
    swept, seconds = parse_rates(_QUICK_RATES if quick else rates), _QUICK_SECONDS if quick else seconds
    sizes = UniformSizes((min(32, longest_prompt), longest_prompt), (2, longest_answer))
    schedules = [poisson_arrivals(rate, seconds, seed, sizes) for rate in swept]
    steps = profile_steps(64, 2, 1) if quick else profile_steps(longest_prompt, 16, 2)
    require_writable(json)
    if keep is not None and keep.is_dir() and any(keep.iterdir()):
        raise OptionError(f"--keep {keep}: it is not empty, and journals of other runs would be taken for this one's")
    console = report_console()
    windows: list[tuple[float, float]] = []
    contentions: dict[str, Contention] = {}
    with tempfile.TemporaryDirectory() as temporary, progress_bar(console) as progress:
        folder = keep or Path(temporary)
        task = progress.add_task("starting a mesh", total=2 * len(steps) + sum(map(len, schedules)))
        with running_mesh(up_arguments(up_args), {"SPOTWISE_JOURNAL": str(folder.resolve())}) as endpoint:
            progress.update(task, description="profile")
            since = CoreUse.so_far()
            found = uvloop.run(measure_costs(endpoint, steps, seed, lambda: progress.advance(task)))
            contentions["profile before"] = CoreUse.so_far().contention_since(since)
            asyncio.run(run_open_loop(endpoint, storm(_WARM_UP_REQUESTS, 0, sizes)))
            for rate, schedule in zip(swept, schedules, strict=True):
                progress.update(task, description=f"{rate:g} requests/s")
                began_s, since = time.time(), CoreUse.so_far()
                outcomes = asyncio.run(run_open_loop(endpoint, schedule, lambda: progress.advance(task)))
                windows.append((began_s, time.time()))
                contentions[f"{rate:g} requests/s"] = CoreUse.so_far().contention_since(since)
                for reason, count in failures(outcomes).items():
                    raise CommandError(f"{count} requests failed: {reason}")
            progress.update(task, description="profile again")
            since = CoreUse.so_far()
            found += uvloop.run(measure_costs(endpoint, steps, seed + 1, lambda: progress.advance(task)))
            contentions["profile after"] = CoreUse.so_far().contention_since(since)
            profile, fit = fitted_profile(found, endpoint.model, environment())
        progress.update(task, description="deciding again")
        try:
            journals = find_journals(folder)
            replays = [replay(journal) for journal in journals]
            cluster, requests = recorded_cluster(journals), recorded_requests(journals)
        except JournalError as error:
            raise CommandError(str(error)) from error
    rows, beyonds = [], {}
    for rate, (began_s, ended_s) in zip(swept, windows, strict=True):
        arrived = [request for request in requests if began_s <= request.arrived_s <= ended_s]
        sizes_then = [(each.arrived_s, each.prompt_tokens, each.output_tokens) for each in arrived]
        try:
            beyond = TimeBeyond(MeasuredRange.of(time.shape for time in found.iterations))
            simulated = simulate_recorded(cluster, profile, arrivals_of(sizes_then), beyond)
        except ValueError as error:
            raise CommandError(str(error)) from error
        beyonds[f"{rate:g} requests/s"] = beyond.extrapolation()
        rows += compared(f"{rate:g} requests/s", simulated, times_of(arrived))
    if keep is not None:
        document = {**profile_as_dict(profile), "fit": fit}
        (keep / "profile.json").write_text(json_text.dumps(document, indent=2) + "\n", encoding="utf-8")
    about = environment(
        rates=swept,
        seconds=seconds,
        up_args=up_args,
        seed=seed,
        quick=quick,
        profile=profile_as_dict(profile),
        fit=fit,
        workers=[home.value for home in cluster.home_pools],
        contention={part: asdict(each) for part, each in contentions.items()},
        beyond_profile={part: asdict(each) for part, each in beyonds.items()},
    )
    console.print("ours: simulated, ms; reference: live, ms", style="dim")
    write_report(rows, about, json, console, lambda figure: f"{figure:,.1f}")
    beyond_lines = [f"{part}: {line}" for part, each in beyonds.items() for line in extrapolation_lines(profile, each)]
    for line in [*contention_lines(contentions), *beyond_lines]:
        console.print(line, style="yellow")
    same = sum(each.difference is None for each in replays)
    commands = sum(each.commands for each in replays)
    console.print(f"{same} of {len(replays)} roles decided the same again, {commands:,} commands in all.")
    if same < len(replays):
        raise CommandError(
            f"a journal was decided differently; `spotwise replay {folder}` shows where (--keep a folder)"
        )


def compared(label: str, simulated: Sequence[RequestTimes], live: Sequence[RequestTimes]) -> list[ReportRow]:
    """Return a row for each metric and percentile, milliseconds; raises `CommandError` where either side has no figures."""
    rows = []
    for metric in _METRICS:
        ours, theirs = _values(simulated, metric), _values(live, metric)
        if not ours or not theirs:
            raise CommandError(f"{label}: nothing was measured of {metric}; let requests come for longer")
        for percent in (50, 90):
            row = ReportRow(
                f"{label}: {metric} p{percent}, ms",
                1000 * percentile(ours, percent),
                1000 * percentile(theirs, percent),
                _WITHIN,
            )
            rows.append(row)
    return rows


def _values(times: Sequence[RequestTimes], metric: str) -> list[float]:
    if metric == "TPOT":
        return [each.tpot_s for each in times if each.tpot_s is not None]
    return [each.ttft_s if metric == "TTFT" else each.e2e_s for each in times]
