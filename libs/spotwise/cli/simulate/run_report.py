"""Report of `spotwise simulate run`: the runs of each rate, one for each seed, and means over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from spotwise.cli.bench.report import environment
from spotwise.cli.simulate.documents import means_document, run_document
from spotwise.cli.simulate.run_marks import mean_mark_lines
from spotwise.cli.simulate.run_tables import (
    bill,
    bill_line,
    coloured_bound,
    count_in_words,
    latency_headings,
    latency_table,
    pool_table,
    priority_table,
    rate_in_words,
    sentences,
    time_text,
)
from spotwise.core.fleet.prices import PriceSeries
from spotwise.simulator.runs.intervals import MeanInterval, SeedMeans
from spotwise.simulator.runs.run_summary import RunSummary
from spotwise.simulator.runs.slo import MEASURED, PERCENTS


def means_table(means: SeedMeans) -> Table:
    """Return means of latencies in seconds, and as slowdowns beside their bounds, each with half of its 95 % interval."""
    case = means.runs[0].case
    table = Table(
        header_style="bold",
        title=f"{case.label}, {case.workload.name}, {rate_in_words(case)}, means of {len(means.runs)} seeds ± 95 %",
        title_justify="left",
    )
    table.add_column("latency")
    for heading in latency_headings():
        table.add_column(heading, justify="right")
    for metric in MEASURED:
        in_seconds = case.objectives.of(metric, is_slowdown=False)
        as_slowdown = case.objectives.of(metric, is_slowdown=True)
        cells = [_time(means.latency_s(metric, "mean"), None)]
        for percent, bound in zip(PERCENTS, in_seconds, strict=True):
            cells.append(_time(means.latency_s(metric, f"p{percent}"), bound))
        for percent, bound in zip(PERCENTS, as_slowdown, strict=True):
            cells.append(_slowdown(means.slowdown(metric, percent), bound))
        table.add_row(metric.upper(), *cells)
    return table


def mean_sentences(means: SeedMeans, paid: PriceSeries | None) -> list[str]:
    """Return the other figures in words, the bill among them where there are prices over time."""
    runs = means.runs
    bounds = count_in_words(runs[0].verdict.bounds)
    verdict = f"All {bounds} objectives hold with {means.holding} of {len(runs)} seeds."
    if means.broken:
        verdict += f" Broken with others: {', '.join(means.broken)}."
    if failed := sum(run.failed for run in runs):
        reason = next(run.first_failure for run in runs if run.failed)
        verdict += f" {failed} requests failed, the first of them because {reason}."
    requests, tokens = means.over(lambda run: run.requests_per_s), means.over(lambda run: run.output_tokens_per_s)
    lines = [verdict, f"{_number(requests, '{:.1f}')} requests/s, {_number(tokens, '{:,.0f}')} output tokens/s."]
    price = means.over(lambda run: run.dollars_per_1000_requests)
    if price is not None and price.mean:
        lines.append(f"{_number(price, '{:.2f}')} $ per 1,000 requests.")
    if (dollars := means.over(lambda run: bill(run, paid))) is not None:
        lines.append(f"Bill: {_number(dollars, '{:,.2f}')} $ at the prices of each run.")
    return lines + mean_mark_lines(means)


def _number(value: MeanInterval | None, shown: str) -> str:
    if value is None:
        return "no"
    mean = shown.format(value.mean)
    return mean if value.half_width is None else f"{mean} ± {shown.format(value.half_width)}"


def _time(value: MeanInterval | None, bound: float | None) -> str:
    if value is None:
        return ""
    text = time_text(value.mean)
    if value.half_width is not None:
        number, unit = text.split()
        width = f"{1000 * value.half_width:,.0f}" if unit == "ms" else f"{value.half_width:,.1f}"
        text = f"{number} ± {width} {unit}"
    return text if bound is None else coloured_bound(text, time_text(bound), value.mean < bound)


def _slowdown(value: MeanInterval | None, bound: float | None) -> str:
    if value is None:
        return ""
    text = _number(value, "{:.2f}")
    return text if bound is None else coloured_bound(text, f"{bound:g}", value.mean < bound)


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
