"""SpotServe's figures, means over seeds, beside the paper's (sections 6.2 to 6.4); headlines are the paper's ratios, each with
the reason why ours may differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from spotwise.studies.spotserve.cases import SpotCase, SpotSummary
from spotwise.studies.spotserve.claims import (
    CLOSE,
    LATENCY_S,
    P99_OVER_SPOTSERVE,
    SPARED,
    WITHOUT_CONTROLLER_P99,
    WITHOUT_PLANNER_P99,
)
from spotwise.studies.spotserve.studies import AS_PUBLISHED
from spotwise.studies.study import Finding, Findings, Headline, ends


@dataclass(frozen=True, slots=True)
class SpotFinding(Finding[SpotCase, SpotSummary]):
    """A system's latency on one trace under one load."""

    @property
    def model(self) -> str:
        """The model that is served."""
        return self.point.cases[0].model

    @property
    def trace(self) -> str:
        """The availability trace, for people."""
        return str(self.point.place[0])

    @property
    def load(self) -> str:
        """The requests, for people."""
        return str(self.point.place[1])

    @property
    def latency_s(self) -> dict[str, float]:
        """Latency of all requests, by figure."""
        return self.means("latency_s")

    @property
    def counted_latency_s(self) -> dict[str, float]:
        """Latency of the requests that the artifact would count, by figure."""
        return self.means("counted_latency_s")

    @property
    def paper_s(self) -> Mapping[str, float]:
        """The paper's latency by figure; empty where it prints none."""
        return LATENCY_S.get((self.model, self.trace, self.point.line), {})

    @property
    def mean_changes(self) -> float:
        """Reconfigurations, mean over the runs."""
        return fmean(len(run.changes) for run in self.runs)

    @property
    def unanswered(self) -> int:
        """Requests of all runs without an answer."""
        return sum(run.unanswered for run in self.runs)

    @property
    def why_unanswered(self) -> str:
        """What kept them from one, in the first run that has such; empty without any."""
        return next((run.why_unanswered for run in self.runs if run.unanswered), "")

    @property
    def goodput_per_dollar(self) -> float | None:
        """Requests in time per dollar, of all runs; `None` without a cost."""
        paid = sum(run.cost_usd for run in self.runs)
        return sum(run.in_time for run in self.runs) / paid if paid else None

    def ratio(self, figure: str, *, counted: bool = False) -> float | None:
        """Return our latency over the paper's, counted as the artifact does or of all requests; `None` unless both exist, and
        where some of all requests have none."""
        if self.unanswered and not counted:
            return None
        ours = self.counted_latency_s if counted else self.latency_s
        return ours[figure] / self.paper_s[figure] if figure in self.paper_s and figure in ours else None


SpotFindings = Findings[SpotFinding]


def is_close(ratio: float) -> bool:
    """Return whether our figure is within the paper's tolerance."""
    return abs(ratio - 1.0) <= CLOSE


def within(found: Mapping[str, SpotFindings], load: str = AS_PUBLISHED, *, counted: bool = False) -> tuple[int, int]:
    """Return how many latencies are close to the paper's, and how many it prints; one in two studies counts once."""
    findings = {
        (finding.model, finding.trace, finding.point.line): finding
        for of_study in found.values()
        for finding in of_study.points
        if finding.load == load
    }
    ratios = [
        ratio
        for finding in findings.values()
        for figure in finding.paper_s
        for ratio in [finding.ratio(figure, counted=counted)]
        if ratio is not None
    ]
    return sum(is_close(ratio) for ratio in ratios), len(ratios)


def p99_over(findings: SpotFindings, line: str, other: str) -> dict[str, float]:
    """Return one line's P99 over another's with the published requests, by trace where both answered all of them."""
    ratios = findings.over(line, other, lambda finding: None if finding.unanswered else finding.latency_s.get("p99"))
    return {str(trace): ratio for (trace, load), ratio in ratios.items() if load == AS_PUBLISHED}


def headlines(found: Mapping[str, SpotFindings]) -> list[Headline]:
    """Return the paper's ratios whose studies were run; studies by name."""
    rows: list[Headline] = []
    for (model, system), paper in P99_OVER_SPOTSERVE.items():
        for findings in found.values():
            ratios = p99_over(findings, system, "SpotServe") if findings.points[0].model == model else {}
            if ratios:
                rows.append(
                    headline(f"{model}: P99 of {system} over SpotServe's", paper, ends(ratios.values()), _RATIO_WHY)
                )
    rows += _ablation(found.get("ablation"))
    rows += _spared(found.get("on-demand"), found.get("gpt-20b"))
    return rows


def headline(name: str, paper: tuple[float, float], ours: tuple[float, float], why: str) -> Headline:
    """Return a headline that is close if both ends are."""
    return Headline(
        name, paper, ours, why, all(is_close(own / printed) for own, printed in zip(ours, paper, strict=True))
    )


_RATIO_WHY = (
    "30B: one pipeline takes 16 of the 28 to 40 devices, so a system that reroutes has one or two; the ratio is that of the "
    "backlogs after a lost one, and depends on how long a pipeline loads."
)
_ABLATION_WHY = (
    "What is taken away matters as far as the trace makes the fixed configuration too slow; ours fixes the one that its "
    "largest fleet would choose."
)
_SPARED_WHY = (
    "The artifact bills 137 minutes on B_S and 18 minutes each for what stays, 17 of which are looked at; ours are the "
    "minutes in which instances were there."
)


def _ablation(findings: SpotFindings | None) -> list[Headline]:
    if findings is None:
        return []
    rows = []
    without = p99_over(findings, "without controller", "SpotServe")
    if "B_S" in without:
        name = "GPT-20B, B_S: P99 without the controller over SpotServe's"
        rows.append(headline(name, (WITHOUT_CONTROLLER_P99,) * 2, (without["B_S"],) * 2, _ABLATION_WHY))
    planner = p99_over(findings, "without planner", "without controller")
    if planner:
        name = "GPT-20B: P99 without the planner besides, over with it"
        rows.append(headline(name, WITHOUT_PLANNER_P99, ends(planner.values()), _ABLATION_WHY))
    return rows


def _spared(fixed: SpotFindings | None, segments: SpotFindings | None) -> list[Headline]:
    """Compare a counted request's price on B_S with that on 8 on-demand instances."""
    spot = segments and segments.line("SpotServe").get(("B_S", AS_PUBLISHED))
    on_demand = fixed and fixed.line("on-demand").get(("8 on-demand", AS_PUBLISHED))
    if not spot or not on_demand or not min(on_demand.mean("counted"), spot.mean("counted")):
        return []
    spot_usd, on_demand_usd = (own.mean("cost_usd") / own.mean("counted") for own in (spot, on_demand))
    share = 1.0 - spot_usd / on_demand_usd
    name = "GPT-20B, B_S: share of a request's price on 8 on-demand instances that is spared"
    return [headline(name, (SPARED, SPARED), (share, share), _SPARED_WHY)]
