"""Compares our runs with the published simulator's on two-minute traces (Patel et al., 2024; columns as in the CSV of its 184
runs). Both receive the same requests: with the files that the published runs had, the latencies of the same requests are
compared; limits agree when at most half a rate step apart."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spotwise.simulator.costs.hardware import BLOOM_176B, LANGUAGE_MODELS
from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.costs.profile_fit import ProfileError
from spotwise.simulator.loads.workload import SYNTHETIC, ArrivalKind, ClusterWorkload
from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.clusters import DESIGNS, Split
from spotwise.simulator.runs.run_summary import RunSummary
from spotwise.simulator.runs.slo import METRICS, PERCENTS, SPLITWISE_OBJECTIVES
from spotwise.simulator.searches.search import Search

#: Length of the published runs' arrivals, and the seed of their gaps.
SECONDS, SEED = 120.0, 0
#: Published rates are multiples of this; ours of half of it.
STEP = 10.0

_MODES = {"as_shipped": DecodeModel.PUBLISHED, "decode_by_batch": DecodeModel.BY_BATCH}


@dataclass(frozen=True, slots=True)
class PublishedCluster:
    """What a cluster's published runs share."""

    decode_model: DecodeModel
    workload: str
    design: str
    split: Split
    model: str = BLOOM_176B.name

    def case(self, path: Path | None, profile: Path | None) -> Case:
        """Return our run of it, without a rate; the files are a trace and a profile, or `None` for what comes along."""
        workload = ClusterWorkload(self.workload, path, ArrivalKind.PUBLISHED)
        cluster = DESIGNS[self.design].cluster(self.split)
        return Case(cluster, workload, None, SECONDS, SEED, self.model, self.decode_model, profile)


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

    def deviations(self, ours: RunSummary) -> dict[str, float]:
        """Return by what share each of our slowdowns is above the published one, by names like `tbt p99`."""
        return {
            f"{metric} p{percent}": own / published - 1
            for metric in METRICS
            for percent, published, (own, _) in zip(
                PERCENTS, self.slowdowns[metric], ours.verdict.slowdowns[metric], strict=True
            )
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """A cluster's limit, published and ours.

    Attributes:
        holds, breaks: the highest rate at which the published run kept all SLOs, and the lowest above it at which one broke;
            `None` without such a run.
        ours: the highest of these and neighbouring rates at which ours keeps all SLOs; `None` where none does.
        runs: ours, in the order of the search.
        deviation: the largest of a slowdown from the published one, as a share, among runs in which the published SLOs hold;
            `None` without such a run of ours.
    """

    holds: float | None
    breaks: float | None
    ours: float | None
    runs: tuple[RunSummary, ...]
    deviation: float | None = None

    @property
    def agrees(self) -> bool:
        """Whether ours is at most half a step from where the published limit may be."""
        ours = 0.0 if self.ours is None else self.ours
        is_high_enough = self.holds is None or ours >= self.holds - STEP / 2
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
    cluster: PublishedCluster, published: Sequence[PublishedRun], trace: Path | None, profile: Path | None
) -> Search[Comparison]:
    """Search our limit in half steps among the rates of the published runs, the gaps between them and a step beyond them."""
    holds = max((run.rate for run in published if run.holds), default=None)
    breaks = min((run.rate for run in published if not run.holds and run.rate > (holds or 0.0)), default=None)
    lowest, highest = published[0].rate, published[-1].rate
    half = STEP / 2
    rates = [lowest + half * step for step in range(-2, round((highest - lowest) / half) + 3)]
    rates = [rate for rate in rates if rate > 0]
    case = cluster.case(trace, profile)
    held = {run.rate: run for run in published if run.holds}
    runs: list[RunSummary] = []
    low, high = -1, len(rates)
    index = rates.index(lowest if holds is None else holds)
    while high - low > 1:
        rate = rates[index]
        (run,) = yield [replace(case, rate=rate, verdict_only=rate not in held)]
        runs.append(run)
        if run.verdict.holds:
            low = index
        else:
            high = index
        # Ours is likely near the published limit, so the neighbours come first.
        near = low + 1 if run.verdict.holds else high - 1
        index = near if len(runs) < 3 else (low + high) // 2
    deviations = [
        abs(share)
        for run in runs
        if (theirs := held.get(run.case.rate or 0.0)) is not None
        for share in theirs.deviations(run).values()
    ]
    return Comparison(holds, breaks, rates[low] if low >= 0 else None, tuple(runs), max(deviations, default=None))


def _read(fields: Mapping[str, str]) -> tuple[PublishedCluster, PublishedRun]:
    design, workload = DESIGNS[fields["design"]], fields["workload"]
    if workload not in SYNTHETIC:
        raise ValueError(f"{workload!r} is none of the workloads {', '.join(SYNTHETIC)}")
    prompt, token = int(fields["prompt_machines"]), int(fields["token_machines"])
    split = Split(prompt) if design.token is None else Split(prompt, token)
    slowdowns = {metric: tuple(float(fields[f"{metric}_p{percent}"]) for percent in PERCENTS) for metric in METRICS}
    run = PublishedRun(float(fields["rate_rps"]), int(fields["requests"]), slowdowns)
    model = LANGUAGE_MODELS[fields.get("model", BLOOM_176B.name)]
    return PublishedCluster(_MODES[fields["mode"]], workload, design.name, split, model.name), run
