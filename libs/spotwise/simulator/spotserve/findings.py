"""What came out of the SpotServe paper's questions, beside what it says.

Law: a figure is a mean over seeds of the runs' own figures. It is close if it is within 15 % of the paper's. Headlines are
ratios as the paper gives them; each says why ours may differ.

Source: SpotServe, sections 6.2 to 6.4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from spotwise.simulator.spotserve.cases import SpotCase, SpotSummary
from spotwise.simulator.spotserve.claims import (
    CLOSE,
    LATENCY_S,
    P99_OVER_SPOTSERVE,
    SPARED,
    WITHOUT_CONTROLLER_P99,
    WITHOUT_PLANNER_P99,
)
from spotwise.simulator.spotserve.studies import AS_PUBLISHED, Point, Study


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a study: means over the seeds.

    Attributes:
        point: which.
        runs: with each seed.
        latency_s: of all requests, by figure.
        counted_latency_s: of those that the artifact would count.
        paper_s: what the paper says, by figure; empty where it says nothing.
    """

    point: Point
    runs: tuple[SpotSummary, ...]
    latency_s: Mapping[str, float]
    counted_latency_s: Mapping[str, float]
    paper_s: Mapping[str, float]

    @classmethod
    def of(cls, model: str, point: Point, runs: tuple[SpotSummary, ...]) -> Finding:
        """Average a point's runs."""
        return cls(
            point,
            runs,
            _means([run.latency_s for run in runs]),
            _means([run.counted_latency_s for run in runs]),
            LATENCY_S.get((model, point.trace, point.line), {}),
        )

    def mean_of(self, figure: str) -> float:
        """Return the mean over the runs of a number that each has."""
        return fmean(getattr(run, figure) for run in self.runs)

    @property
    def mean_changes(self) -> float:
        """Changes of the configuration, mean over the runs."""
        return fmean(len(run.changes) for run in self.runs)

    @property
    def goodput_per_dollar(self) -> float | None:
        """Requests in time for each dollar, of all runs; `None` where nothing was paid."""
        paid = sum(run.cost_usd for run in self.runs)
        return sum(run.in_time for run in self.runs) / paid if paid else None

    def ratio(self, figure: str) -> float | None:
        """Return ours over the paper's; `None` where one of them is missing."""
        if figure not in self.paper_s or figure not in self.latency_s:
            return None
        return self.latency_s[figure] / self.paper_s[figure]

    def counted_ratio(self, figure: str) -> float | None:
        """Return ours, counted as the artifact does, over the paper's; `None` where one of them is missing."""
        if figure not in self.paper_s or figure not in self.counted_latency_s:
            return None
        return self.counted_latency_s[figure] / self.paper_s[figure]


@dataclass(frozen=True, slots=True)
class Findings:
    """A study and what came out of it.

    Attributes:
        study: what was looked at.
        points: in the study's order.
    """

    study: Study
    points: tuple[Finding, ...]

    @classmethod
    def of(cls, study: Study, runs: Mapping[SpotCase, SpotSummary]) -> Findings:
        """Gather a study's runs."""
        points = (Finding.of(study.model, point, tuple(runs[case] for case in point.cases)) for point in study.points)
        return cls(study, tuple(points))

    def at(self, trace: str, load: str, line: str) -> Finding | None:
        """Return one line; `None` where it was not run."""
        for finding in self.points:
            if (finding.point.trace, finding.point.load, finding.point.line) == (trace, load, line):
                return finding
        return None

    def over(self, line: str, other: str, figure: str, load: str) -> dict[str, float]:
        """Return one line's latency over another's, by trace."""
        found = {}
        for trace in dict.fromkeys(finding.point.trace for finding in self.points):
            own, base = self.at(trace, load, line), self.at(trace, load, other)
            if own and base and figure in own.latency_s and base.latency_s.get(figure):
                found[trace] = own.latency_s[figure] / base.latency_s[figure]
        return found


@dataclass(frozen=True, slots=True)
class Headline:
    """A claim of the paper beside ours.

    Attributes:
        name: what is compared.
        paper: least and most; equal where it is one number.
        ours: the same of ours.
        why: where they differ.
    """

    name: str
    paper: tuple[float, float]
    ours: tuple[float, float]
    why: str

    @property
    def is_close(self) -> bool:
        """Whether both ends are about the paper's."""
        return all(is_close(own / said) for own, said in zip(self.ours, self.paper, strict=True))


def is_close(ratio: float) -> bool:
    """Return whether ours is about the paper's."""
    return abs(ratio - 1.0) <= CLOSE


def within(found: Mapping[str, Findings], load: str = AS_PUBLISHED, *, counted: bool = False) -> tuple[int, int]:
    """Return how many latencies are about the paper's, and how many it gives; one in two studies counts once."""
    points = {
        (findings.study.model, finding.point.trace, finding.point.line): finding
        for findings in found.values()
        for finding in findings.points
        if finding.point.load == load
    }
    ratios = [
        ratio
        for finding in points.values()
        for figure in finding.paper_s
        for ratio in [finding.counted_ratio(figure) if counted else finding.ratio(figure)]
        if ratio is not None
    ]
    return sum(is_close(ratio) for ratio in ratios), len(ratios)


def headlines(found: Mapping[str, Findings]) -> list[Headline]:
    """Return the paper's ratios about the studies that were made, by their names."""
    rows: list[Headline] = []
    for (model, system), said in P99_OVER_SPOTSERVE.items():
        for findings in found.values():
            ratios = (
                list(findings.over(system, "SpotServe", "p99", AS_PUBLISHED).values())
                if findings.study.model == model
                else []
            )
            if ratios:
                rows.append(Headline(f"{model}: P99 of {system} over SpotServe's", said, _ends(ratios), _RATIO_WHY))
    rows += _ablation(found.get("ablation"))
    rows += _spared(found.get("on-demand"), found.get("gpt-20b"))
    return rows


_RATIO_WHY = (
    "30B: one pipeline takes 16 of the 28 to 40 devices, so a system that reroutes has one or two; the ratio is that of the "
    "backlogs after a lost one, and hangs on how long a pipeline loads."
)
_ABLATION_WHY = (
    "What is taken away matters as far as the trace makes the fixed configuration too slow; ours fixes the one that its "
    "largest fleet would choose."
)
_SPARED_WHY = (
    "The artifact bills 137 minutes on B_S and 18 minutes each for what stays, 17 of which are looked at; ours are the "
    "minutes in which instances were there."
)


def _ablation(findings: Findings | None) -> list[Headline]:
    if findings is None:
        return []
    rows = []
    without = findings.over("without controller", "SpotServe", "p99", AS_PUBLISHED)
    if "B_S" in without:
        paper = (WITHOUT_CONTROLLER_P99, WITHOUT_CONTROLLER_P99)
        name = "GPT-20B, B_S: P99 without the controller over SpotServe's"
        rows.append(Headline(name, paper, (without["B_S"], without["B_S"]), _ABLATION_WHY))
    planner = findings.over("without planner", "without controller", "p99", AS_PUBLISHED)
    if planner:
        name = "GPT-20B: P99 without the planner besides, over with it"
        rows.append(Headline(name, WITHOUT_PLANNER_P99, _ends(list(planner.values())), _ABLATION_WHY))
    return rows


def _spared(fixed: Findings | None, segments: Findings | None) -> list[Headline]:
    """Compare the price of a request on B_S with that on 8 on-demand instances, each by what was there and was answered."""
    if fixed is None or segments is None:
        return []
    spot, stay = segments.at("B_S", AS_PUBLISHED, "SpotServe"), fixed.at("8 on-demand", AS_PUBLISHED, "on-demand")
    if spot is None or stay is None or not min(stay.mean_of("counted"), spot.mean_of("counted")):
        return []
    spot_usd, stay_usd = (own.mean_of("cost_usd") / own.mean_of("counted") for own in (spot, stay))
    share = 1.0 - spot_usd / stay_usd
    name = "GPT-20B, B_S: share of a request's price on 8 on-demand instances that is spared"
    return [Headline(name, (SPARED, SPARED), (share, share), _SPARED_WHY)]


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def _means(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = figures[0].keys()
    return {name: fmean(own[name] for own in figures) for name in names if all(name in own for own in figures)}
