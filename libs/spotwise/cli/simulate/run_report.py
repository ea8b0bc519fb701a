"""What `spotwise simulate run` reports of the runs of each rate, one for each seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from spotwise.cli.bench.report import environment
from spotwise.cli.simulate.documents import means_document, run_document
from spotwise.cli.simulate.run_tables import bill, bill_line, latency_table, pool_table, priority_table, sentences
from spotwise.cli.simulate.seed_tables import mean_sentences, means_table
from spotwise.core.fleet.prices import PriceSeries
from spotwise.simulator.runs.intervals import SeedMeans
from spotwise.simulator.runs.run_summary import RunSummary


def report(console: Console, runs: Sequence[RunSummary], paid: PriceSeries | None) -> None:
    """Print the figures of one rate: of its run, or means over its runs."""
    if len(runs) > 1:
        means = SeedMeans(tuple(runs))
        console.print(means_table(means))
        for line in mean_sentences(means, paid):
            console.print(line)
        return
    (run,) = runs
    console.print(latency_table(run))
    if run.by_priority:
        console.print(priority_table(run))
    console.print(pool_table(run))
    for line in [*sentences(run), *bill_line(run, paid)]:
        console.print(line)


def runs_document(found: Sequence[Sequence[RunSummary]], paid: PriceSeries | None) -> dict[str, Any]:
    """Return the document of all runs, rate by rate, and of each rate's means where it has several."""
    document: dict[str, Any] = {
        "environment": environment(simulation="run"),
        "runs": [run_document(run) | {"bill_usd": bill(run, paid)} for runs in found for run in runs],
    }
    if any(len(runs) > 1 for runs in found):
        document["means"] = [means_document(SeedMeans(tuple(runs))) for runs in found]
    return document
