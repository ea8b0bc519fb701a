"""A simulated cluster's figures as tables and sentences."""

from __future__ import annotations

from rich.table import Table

from spotwise.cli.simulate.run_marks import mark_lines
from spotwise.core.fleet.prices import PriceSeries
from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.machine_changes import lives_of
from spotwise.simulator.runs.metrics import Judged
from spotwise.simulator.runs.run_summary import RunSummary
from spotwise.simulator.runs.slo import MEASURED, METRICS, PERCENTS

_NUMBERS = dict(enumerate(("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")))


def bill(run: RunSummary, paid: PriceSeries | None) -> float | None:
    """Return the dollars until the last request's end at prices over time; each machine is paid as long as it is there."""
    if paid is None:
        return None
    lives = lives_of(run.case.cluster, run.case.changes)
    return sum(
        paid.cost(life.from_s, life.from_s + stay_s) for life in lives if (stay_s := life.until_s(run.ended_s)) > 0.0
    )


def bill_line(run: RunSummary, paid: PriceSeries | None) -> list[str]:
    """Return the bill in words, if there are prices over time."""
    dollars = bill(run, paid)
    if dollars is None:
        return []
    per_1000 = f", {1000 * dollars / run.completed:,.2f} $ per 1,000 requests" if run.completed else ""
    return [f"Bill: {dollars:,.2f} $ at the prices of {run.ended_s:,.1f} s{per_1000}."]


def rate_in_words(case: Case) -> str:
    """Return a case's rate."""
    return "its own rate" if case.rate is None else f"{case.rate:g} requests/s"


def count_in_words(count: int) -> str:
    """Return a small number in words."""
    return _NUMBERS.get(count, str(count))


def latency_headings() -> list[str]:
    """Return the headings of latencies, in seconds and as slowdowns."""
    percents = [f"p{percent}" for percent in PERCENTS]
    return ["mean", *percents, *(f"slowdown {percent}" for percent in percents)]


def latency_table(run: RunSummary) -> Table:
    """Return latencies in seconds, with their bounds where they have some, and as slowdowns beside theirs."""
    title = f"{run.case.label}, {run.case.workload.name}, {rate_in_words(run.case)}"
    table = Table(header_style="bold", title=title, title_justify="left")
    table.add_column("latency")
    for heading in latency_headings():
        table.add_column(heading, justify="right")
    for metric in MEASURED:
        seconds = run.latencies_s[metric]
        cells = [time_text(seconds.get("mean"))]
        bounds = [bound for _, bound in run.verdict.seconds.get(metric, ((0.0, None),) * len(PERCENTS))]
        for percent, bound in zip(PERCENTS, bounds, strict=True):
            ours = seconds.get(f"p{percent}")
            cells.append(
                time_text(ours)
                if ours is None or bound is None
                else coloured_bound(time_text(ours), time_text(bound), ours < bound)
            )
        cells += _slowdowns(run.verdict.slowdowns.get(metric, ()))
        table.add_row(metric.upper(), *cells)
    return table


def _slowdowns(figures: Judged) -> list[str]:
    return [
        f"{ours:.2f}" if bound is None else coloured_bound(f"{ours:.2f}", f"{bound:g}", ours < bound)
        for ours, bound in figures
    ]


def coloured_bound(ours: str, bound: str, holds: bool) -> str:
    """Return a figure in the colour that shows whether it is below its bound, and the bound."""
    return f"[{'green' if holds else 'red'}]{ours}[/] of {bound}"


def priority_table(run: RunSummary) -> Table:
    """Return the latencies of each priority's requests, in seconds."""
    table = Table(header_style="bold")
    names = ("mean", *(f"p{percent}" for percent in PERCENTS))
    for heading in ("priority", "latency", *names):
        table.add_column(heading, justify="left" if heading == "latency" else "right")
    for priority, latencies in run.by_priority.items():
        for number, metric in enumerate(METRICS):
            cells = [time_text(latencies[metric].get(name)) for name in names]
            table.add_row("" if number else str(priority), metric.upper(), *cells)
    return table


def pool_table(run: RunSummary) -> Table:
    """Return the figures of each pool's machines."""
    table = Table(header_style="bold")
    table.add_column("pool")
    for heading in ("machines", "busy", "iterations", "decodes per iteration", "tokens per iteration, median of time"):
        table.add_column(heading, justify="right")
    for name, pool in run.pools.items():
        median = next(tokens for tokens, share in zip(pool.tokens, pool.time_shares, strict=True) if share >= 0.5)
        table.add_row(
            name,
            str(pool.machines),
            f"{pool.utilisation:.0%}",
            f"{pool.iterations:,}",
            f"{pool.mean_decodes:.1f}",
            f"{median:,}",
        )
    return table


def sentences(run: RunSummary) -> list[str]:
    """Return the other figures in words."""
    verdict = (
        f"All {count_in_words(run.verdict.bounds)} objectives hold."
        if run.verdict.holds
        else f"Objectives broken: {', '.join(run.verdict.broken)}."
    )
    if run.failed:
        verdict += f" {run.failed} requests failed, the first of them because {run.first_failure}."
    price = run.dollars_per_1000_requests
    per_request = "" if price is None else f", {price:.2f} $ per 1,000 requests"
    power = f"; power of {run.power:.1f} DGX-A100" if run.power else ""
    return [
        verdict,
        f"{run.completed:,} requests in {run.ended_s:,.1f} simulated seconds; in the middle of them {run.requests_per_s:.1f} "
        f"requests/s, {run.output_tokens_per_s:,.0f} output tokens/s.",
        *([f"{run.price_per_hour:,.0f} $ an hour{per_request}{power}."] if run.price_per_hour else []),
        *_changes(run),
        *mark_lines(run),
        f"{run.handoffs:,} hand-offs, {run.handoff_bytes / 1e9:,.0f} GB; {run.preemptions:,} preemptions; "
        f"simulated in {run.wall_s:.1f} s.",
    ]


def _changes(run: RunSummary) -> list[str]:
    if not run.case.changes:
        return []
    joined = f"{_machines(run.joined)} joined, and " if run.joined else ""
    moved = f"{run.moved:,} requests moved with their KV, {run.recomputed:,} were computed again"
    if run.restarted:
        moved += f", and {run.restarted:,} began again before their first token"
    return [f"{joined}{_machines(run.left)} left: {moved}."]


def _machines(count: int) -> str:
    return "1 machine" if count == 1 else f"{count} machines"


def time_text(seconds: float | None) -> str:
    """Return seconds, short ones in milliseconds; nothing for `None`."""
    if seconds is None:
        return ""
    return f"{1000 * seconds:,.0f} ms" if seconds < 10 else f"{seconds:,.1f} s"
