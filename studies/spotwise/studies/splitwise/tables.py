"""The Splitwise paper's headlines and limits as tables, and as parts of a JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from spotwise.cli.simulate.documents import run_document
from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.runs.clusters import DESIGNS
from spotwise.simulator.runs.run_summary import STEADY_SHARE
from spotwise.simulator.searches.search import Limit
from spotwise.studies.splitwise.headlines import ClusterHeadline, headlines
from spotwise.studies.splitwise.paper import ClusterFindings, PaperCluster
from spotwise.studies.splitwise.published_runs import Comparison, PublishedCluster
from spotwise.studies.study_tables import coloured, headline_table


def limits_table(limits: Mapping[PaperCluster, Limit], decode_model: DecodeModel) -> Table:
    """Return every cluster's highest rate, requests a second: a row for each budget and workload, a column for each design."""
    title = f"highest rate that keeps all nine objectives, requests/s; {decode_model.value} times"
    table = Table(header_style="bold", title=title, title_justify="left")
    table.add_column("cluster for; workload")
    for design in DESIGNS:
        table.add_column(design.removeprefix("Splitwise-"), justify="right")
    rows = dict.fromkeys((cluster.budget, cluster.made_for, cluster.served) for cluster in limits)
    for budget, made_for, served in rows:
        cells = [_limit(limits.get(PaperCluster(budget, made_for, served, design))) for design in DESIGNS]
        table.add_row(f"{budget}, {made_for}" + ("" if served == made_for else f"; {served}"), *cells)
    return table


def unsteady_limits(limits: Mapping[PaperCluster, Limit], seconds: float) -> list[str]:
    """Return how many limits rest on runs without a steady state, and what helps."""
    unsteady = [limit for limit in limits.values() if not limit.is_steady]
    if not unsteady:
        return []
    return [
        f"{len(unsteady)} of {len(limits)} limits rest on runs without a steady state: requests arrive for {seconds:g} s, and "
        f"take more than {STEADY_SHARE:g} of that in the mean. Longer runs (--seconds) may have other limits."
    ]


def _limit(limit: Limit | None) -> str:
    if limit is None:
        return ""
    return f"{limit.mean:.0f}" + (f" ± {limit.half_width:.0f}" if limit.half_width else "")


def headlines_table(rows: Sequence[ClusterHeadline], models: Sequence[DecodeModel]) -> Table:
    """Return the paper's number, ours by each decode model, and why they differ."""
    return headline_table(
        [f"ours, {model.value}" for model in models],
        ([row.name, f"{row.paper:g}", *(_cell(row, model) for model in models), row.why] for row in rows),
    )


def _cell(row: ClusterHeadline, model: DecodeModel) -> str:
    measured = row.measured[model]
    if measured.value is None:
        return "[yellow]none[/]"
    spread = "" if measured.spread is None else f" ({measured.spread[0]:.2f}–{measured.spread[1]:.2f})"
    return coloured(f"{measured.value:.4g}", not row.differs(model)) + spread


def comparison_table(results: Mapping[PublishedCluster, Comparison]) -> Table:
    """Return the published simulator's limits and ours."""
    table = Table(
        header_style="bold", title="highest rate that keeps all nine objectives, requests/s", title_justify="left"
    )
    for heading in ("model", "decode model", "workload", "design", "machines"):
        table.add_column(heading)
    for heading in ("published", "ours", "agrees", "latencies within"):
        table.add_column(heading, justify="right")
    for cluster, comparison in results.items():
        split = cluster.split
        table.add_row(
            cluster.model,
            cluster.decode_model.value,
            cluster.workload,
            cluster.design,
            f"{split.prompt}, {split.token}" if split.token else str(split.prompt),
            _interval(comparison),
            "none" if comparison.ours is None else f"{comparison.ours:g}",
            "[green]yes" if comparison.agrees else "[red]no",
            "" if comparison.deviation is None else f"{100 * comparison.deviation:.1f} %",
        )
    return table


def _interval(comparison: Comparison) -> str:
    if comparison.holds is None:
        return f"< {comparison.breaks:g}"
    return f"{comparison.holds:g}" if comparison.breaks is not None else f">= {comparison.holds:g}"


def headlines_document(found: Mapping[DecodeModel, ClusterFindings]) -> dict[str, Any]:
    """Return all headlines, and the limits behind them."""
    return {
        "headlines": [_headline_document(row) for row in headlines(found)],
        "limits": [
            {"decode_model": model, **_limit_document(cluster, limit)}
            for model, of_model in found.items()
            for cluster, limit in of_model.limits.items()
        ],
    }


def _headline_document(row: ClusterHeadline) -> dict[str, Any]:
    ours = {
        model.value: {
            "value": measured.value,
            "ratio": None if measured.value is None else measured.value / row.paper,
            "spread": measured.spread,
            "about": measured.about,
            "close": not row.differs(model),
        }
        for model, measured in row.measured.items()
    }
    return {"name": row.name, "paper": row.paper, "ours": ours, "why": row.why}


def _limit_document(cluster: PaperCluster, limit: Limit) -> dict[str, Any]:
    return {
        "budget": cluster.budget,
        "made_for": cluster.made_for,
        "asked": cluster.served,
        "design": cluster.design,
        "prompt_machines": cluster.split.prompt,
        "token_machines": cluster.split.token,
        "rates": limit.rates,
        "mean": limit.mean,
        "half_width_95": limit.half_width,
        "steady_state": limit.is_steady,
        "runs": [run_document(run) for run in limit.runs],
    }


def comparison_document(cluster: PublishedCluster, comparison: Comparison) -> dict[str, Any]:
    """Return a cluster's limit beside the published simulator's."""
    return {
        "model": cluster.model,
        "decode_model": cluster.decode_model.value,
        "workload": cluster.workload,
        "design": cluster.design,
        "prompt_machines": cluster.split.prompt,
        "token_machines": cluster.split.token,
        "published_holds": comparison.holds,
        "published_breaks": comparison.breaks,
        "ours": comparison.ours,
        "agrees": comparison.agrees,
        "deviation": comparison.deviation,
        "runs": [run_document(run) for run in comparison.runs],
    }
