"""The Splitwise paper's figures from the findings of its headlines, and a few more runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from spotwise.cli.simulate.progress import Simulations
from spotwise.simulator.runs.clusters import BASELINE_H100, DESIGNS, PAPER_SPLITS, SPLITWISE_HH, Split
from spotwise.simulator.runs.plots import plot_bars, plot_batch_sizes, plot_latencies, save
from spotwise.simulator.runs.run_summary import RunSummary
from spotwise.simulator.searches.search import Search
from spotwise.studies.splitwise.paper import (
    CODE_RATE,
    ClusterFindings,
    ClusterScope,
    PaperCluster,
    heat_map,
    runs_by_design,
)
from spotwise.studies.splitwise.plots import plot_design_space, plot_sizes

#: Rates of figure 17: one that every cluster sustains, and one that few do.
_BATCH_RATES = (40.0, 80.0)
_SIZES = 20_000
_PROMPTS, _TOKENS = tuple(range(15, 37, 3)), tuple(range(1, 10))


def draw_figures(scope: ClusterScope, found: ClusterFindings, folder: Path, simulations: Simulations) -> list[Path]:
    """Draw all figures, and return their files; a wrong trace or profile raises `CommandError`."""
    paths: list[Path] = []

    def keep(figure: Any, name: str) -> None:
        paths.append(folder / name)
        save(figure, paths[-1])

    rng = np.random.default_rng(scope.seeds[0])
    keep(plot_sizes({name: work.sizes().draw(_SIZES, rng) for name, work in scope.workloads.items()}), "figure-3.png")
    searches: dict[str, Search[Any]] = {
        f"{workload} {rate:g}": _one_rate(scope, workload, rate)
        for workload in scope.workloads
        for rate in _BATCH_RATES
    }
    space = scope.case(SPLITWISE_HH, Split(1, 1), "code", CODE_RATE)
    searches["design space"] = heat_map(space, SPLITWISE_HH, _PROMPTS, _TOKENS)
    runs = simulations.carry_out(searches, "figures")
    title = f"{SPLITWISE_HH.name}, {CODE_RATE:g} requests/s of code"
    keep(plot_design_space(runs.pop("design space"), "ttft", 90, title), "figure-12.png")
    for workload in scope.workloads:
        title = f"{workload}, clusters of equal power"
        keep(plot_latencies(runs_by_design(found.limits, "iso-power", workload), title), f"figure-16-{workload}.png")
    for name, batch_runs in runs.items():
        workload, rate = name.split()
        keep(plot_batch_sizes(batch_runs, f"{workload}, {rate} requests/s"), f"figure-17-{workload}-{rate}.png")
    for budget, name in (("iso-power", "figure-18a.png"), ("iso-cost", "figure-18b.png")):
        keep(plot_bars(_summary(found, budget), f"conv, {budget.replace('-', ' ')}, Baseline-H100 = 1"), name)
    return paths


def _one_rate(scope: ClusterScope, workload: str, rate: float) -> Search[list[RunSummary]]:
    splits = PAPER_SPLITS["iso-power", workload]
    runs = yield [scope.case(DESIGNS[design], split, workload, rate) for design, split in splits.items()]
    return list(runs)


def _summary(found: ClusterFindings, budget: str) -> dict[str, dict[str, float]]:
    splits = PAPER_SPLITS[budget, "conv"]
    columns = {
        "throughput": {name: found.limits[PaperCluster(budget, "conv", "conv", name)].mean for name in splits},
        "cost": {name: DESIGNS[name].price_per_hour(split) for name, split in splits.items()},
        "power": {name: DESIGNS[name].power(split) for name, split in splits.items()},
        "machines": {name: float(split.machines) for name, split in splits.items()},
    }
    return {
        column: {name: value / values[BASELINE_H100.name] for name, value in values.items()}
        for column, values in columns.items()
        if values[BASELINE_H100.name]
    }
