"""Compares our limits with those of the published simulator's 184 runs on two-minute traces (Patel et al., 2024; columns as in
its CSV). Both receive the same gap generator and seed, and sizes from the same trace; limits agree when at most one rate
step apart."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.costs.profiles import ProfileError
from spotwise.simulator.runs.designs import DESIGNS, Split
from spotwise.simulator.runs.experiment import Case, RunSummary
from spotwise.simulator.runs.metrics import METRICS
from spotwise.simulator.runs.search import Search
from spotwise.simulator.runs.slo import PERCENTS, SPLITWISE_OBJECTIVES
from spotwise.simulator.runs.synthetic import SYNTHETIC
from spotwise.simulator.runs.workload import ClusterWorkload

#: Length of the published runs' arrivals, and the seed of their gaps.
SECONDS, SEED = 120.0, 0
#: Rates are multiples of this.
STEP = 10.0

_MODES = {"as_shipped": DecodeModel.PUBLISHED, "decode_by_batch": DecodeModel.BY_BATCH}


@dataclass(frozen=True, slots=True)
class PublishedCluster:
    """What a cluster's published runs share."""

    decode_model: DecodeModel
    workload: str
    design: str
    split: Split


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """One run: its rate in requests a second, its requests, and slowdowns by metric at each of `PERCENTS`."""

    rate: float
    requests: int
    slowdowns: Mapping[str, tuple[float, ...]]

    @property
    def holds(self) -> bool:
        """Whether all SLOs held."""
        return all(
            ours < bound
            for metric in METRICS
            for ours, bound in zip(self.slowdowns[metric], SPLITWISE_OBJECTIVES[metric], strict=True)
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """A cluster's limit, published and ours.

    Attributes:
        holds, breaks: the highest rate at which the published run kept all SLOs, and the lowest above it at which one broke;
            `None` without such a run.
        ours: the highest of these and neighbouring rates at which ours keeps all SLOs; `None` where none does.
        runs: ours, in the order of the search.
    """

    holds: float | None
    breaks: float | None
    ours: float | None
    runs: tuple[RunSummary, ...]

    @property
    def agrees(self) -> bool:
        """Whether ours is at most a step from the published limit."""
        ours = 0.0 if self.ours is None else self.ours
        is_high_enough = self.holds is None or ours >= self.holds - STEP
        return is_high_enough and (self.breaks is None or ours <= self.breaks)


def read_published_runs(path: Path) -> dict[PublishedCluster, list[PublishedRun]]:
    """Read the runs, each cluster's in the order of their rates; raises ProfileError if the file cannot be read or a line is
    wrong."""
    found: dict[PublishedCluster, list[PublishedRun]] = {}
    line = 1
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.DictReader(file)
            for fields in lines:
                line = lines.line_num
                cluster, run = _read(fields)
                found.setdefault(cluster, []).append(run)
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ProfileError(f"{path}, line {line}: no published run: {error}") from error
    return {cluster: sorted(runs, key=lambda run: run.rate) for cluster, runs in found.items()}


def compare(
    cluster: PublishedCluster, published: Sequence[PublishedRun], workload: ClusterWorkload, profile: Path | None
) -> Search[Comparison]:
    """Search our limit among the rates of the published runs, the gaps between them and a step beyond them."""
    holds = max((run.rate for run in published if run.holds), default=None)
    breaks = min((run.rate for run in published if not run.holds and run.rate > (holds or 0.0)), default=None)
    lowest, highest = published[0].rate, published[-1].rate
    rates = [lowest + STEP * step for step in range(-1, round((highest - lowest) / STEP) + 2)]
    rates = [rate for rate in rates if rate > 0]
    case = Case(
        cluster.design, cluster.split, workload, None, SECONDS, SEED, decode_model=cluster.decode_model, profile=profile
    )
    runs: list[RunSummary] = []
    low, high = -1, len(rates)
    index = rates.index(lowest if holds is None else holds)
    while high - low > 1:
        (run,) = yield [replace(case, rate=rates[index])]
        runs.append(run)
        if run.verdict.holds:
            low = index
        else:
            high = index
        # Ours is likely near the published limit, so the neighbours come first.
        near = low + 1 if run.verdict.holds else high - 1
        index = near if len(runs) < 3 else (low + high) // 2
    return Comparison(holds, breaks, rates[low] if low >= 0 else None, tuple(runs))


def _read(fields: Mapping[str, str]) -> tuple[PublishedCluster, PublishedRun]:
    design, workload = DESIGNS[fields["design"]], fields["workload"]
    if workload not in SYNTHETIC:
        raise ValueError(f"{workload!r} is none of the workloads {', '.join(SYNTHETIC)}")
    prompt, token = int(fields["prompt_machines"]), int(fields["token_machines"])
    split = Split(prompt) if design.token is None else Split(prompt, token)
    slowdowns = {metric: tuple(float(fields[f"{metric}_p{percent}"]) for percent in PERCENTS) for metric in METRICS}
    run = PublishedRun(float(fields["rate_rps"]), int(fields["requests"]), slowdowns)
    return PublishedCluster(_MODES[fields["mode"]], workload, design.name, split), run
