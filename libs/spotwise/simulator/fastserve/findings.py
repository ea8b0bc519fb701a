"""What the FastServe paper says beside what came out.

Law: a figure is a mean over seeds of the runs' own figures. A headline is a range of ratios over a study, as the paper gives
it, and says why ours may differ.

Source: FastServe, sections 4.2, 6.2 to 6.4; the artifact's own table for OPT-13B.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean

from spotwise.core.kv_swap import WhenFull
from spotwise.simulator.fastserve.engines import Scheduler
from spotwise.simulator.fastserve.job_runs import PERCENTS, JobCase, JobSummary
from spotwise.simulator.fastserve.studies import Point, Study

FIGURES = ("mean", *(f"p{percent}" for percent in PERCENTS))
#: Share by which the upper end of a range may differ from the paper's and still be the same.
CLOSE = 0.25

#: Mean seconds a token of the artifact, by scheduler and rate.
PUBLISHED_PER_TOKEN_S: Mapping[str, Mapping[float, float]] = {
    Scheduler.FCFS.value: {1.0: 0.038, 2.0: 0.091, 2.5: 0.403, 3.0: 0.849, 4.0: 1.459},
    Scheduler.FASTSERVE.value: {1.0: 0.039, 2.0: 0.047, 2.5: 0.048, 3.0: 0.063, 4.0: 0.106},
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a study at one value: means over the seeds.

    Attributes:
        line: what is compared.
        at: the value.
        runs: with each seed.
        jct_s, jct_per_token_s: by figure, of the jobs that the study looks at.
        utilisation, live_at_last_arrival, peak_kv_tokens, swapped_bytes, preemptions: as in `JobSummary`.
    """

    line: str
    at: float | str
    runs: tuple[JobSummary, ...]
    jct_s: Mapping[str, float]
    jct_per_token_s: Mapping[str, float]
    utilisation: float
    live_at_last_arrival: float
    peak_kv_tokens: float
    swapped_bytes: float
    preemptions: float

    @classmethod
    def of(cls, point: Point, runs: tuple[JobSummary, ...], *, is_steady: bool) -> Finding:
        """Average a point's runs."""
        jct = [run.steady_jct_s if is_steady else run.jct_s for run in runs]
        per_token = [run.steady_jct_per_token_s if is_steady else run.jct_per_token_s for run in runs]
        return cls(
            point.line,
            point.at,
            runs,
            {figure: fmean(own[figure] for own in jct) for figure in FIGURES},
            {figure: fmean(own[figure] for own in per_token) for figure in FIGURES},
            fmean(run.utilisation for run in runs),
            fmean(run.live_at_last_arrival for run in runs),
            fmean(run.peak_kv_tokens for run in runs),
            fmean(run.swapped_bytes for run in runs),
            fmean(run.preemptions for run in runs),
        )


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
    def of(cls, study: Study, runs: Mapping[JobCase, JobSummary]) -> Findings:
        """Gather a study's runs."""
        points = (
            Finding.of(point, tuple(runs[case] for case in point.cases), is_steady=study.is_steady)
            for point in study.points
        )
        return cls(study, tuple(points))

    def line(self, name: str) -> dict[float | str, Finding]:
        """Return a line's findings by value."""
        return {finding.at: finding for finding in self.points if finding.line == name}

    def ratios(self, line: str, over: str, figure: str = "mean") -> list[float]:
        """Return one line's JCT over another's, value by value."""
        own, other = self.line(line), self.line(over)
        return [own[at].jct_s[figure] / other[at].jct_s[figure] for at in own if at in other]


@dataclass(frozen=True, slots=True)
class Headline:
    """A claim of the paper beside ours.

    Attributes:
        name: what is compared.
        paper: the range, lowest and highest; equal where it says only how far it goes, `None` where it has no number.
        ours: the range that came out.
        why: where they differ.
    """

    name: str
    paper: tuple[float, float] | None
    ours: tuple[float, float]
    why: str

    @property
    def is_close(self) -> bool | None:
        """Whether the upper end is about the paper's; `None` where that has none."""
        return None if self.paper is None else abs(self.ours[1] / self.paper[1] - 1.0) <= CLOSE


_FCFS, _FAST = Scheduler.FCFS.value, Scheduler.FASTSERVE.value
_KEPT_FREE = WhenFull.PROACTIVE.value
_OVER_BATCH = (
    "The paper leaves batch and lengths unsaid, and the gain hangs on both: it grows as the batch shrinks (v1-batch), and as "
    "the engine is asked for more than it can do."
)
_TAIL = (
    "A job that is long gives way to all that are short, so where the engine is full the longest jobs end later than under "
    "FCFS; the paper's tail is not said to be a percentile of what."
)


def headlines(found: Mapping[str, Findings]) -> list[Headline]:
    """Return the paper's claims about the studies that were made, by their names."""
    claims: list[tuple[str, tuple[float, float] | None, tuple[str, ...], Callable[[Findings], list[float]], str]] = [
        ("mean JCT of FCFS over FastServe's, by rate", (1.0, 4.3), ("v1-rate",), _over_fcfs(), _OVER_BATCH),
        ("mean JCT of FCFS over FastServe's, by burstiness", (2.3, 5.1), ("v1-cv",), _over_fcfs(), _OVER_BATCH),
        ("mean JCT of FCFS over FastServe's, by skew", (1.9, 3.9), ("v1-theta",), _over_fcfs(), _OVER_BATCH),
        ("tail JCT of FCFS over FastServe's, by rate: p95", (6.4, 6.4), ("v1-rate",), _over_fcfs("p95"), _TAIL),
        ("tail JCT of FCFS over FastServe's, by rate: p99", (6.4, 6.4), ("v1-rate",), _over_fcfs("p99"), _TAIL),
        (
            "mean JCT of request-level over FastServe's",
            (1.9, 12.2),
            ("v1-rate", "v1-cv", "v1-theta"),
            lambda study: study.ratios(Scheduler.REQUEST_LEVEL.value, _FAST),
            "A batch lasts as long as its longest answer; with answers as skewed as these the others wait ten times as long.",
        ),
        (
            "mean JCT of MLFQ without preemption over FastServe's",
            None,
            ("mlfq-rate",),
            lambda study: study.ratios(Scheduler.MLFQ_NO_PREEMPTION.value, _FAST),
            "The paper's figure has no numbers: about the same at first, and far apart just above a knee.",
        ),
        (
            "mean JCT of MLFQ with preemption over FastServe's",
            None,
            ("mlfq-rate",),
            lambda study: study.ratios(Scheduler.MLFQ_PREEMPTION.value, _FAST),
            "The paper's figure has no numbers. What is computed in vain is charged in full.",
        ),
        (
            "FastServe, mean JCT at the worst quantum ratio over the best",
            (1.0, 1.0),
            ("mlfq-quantum",),
            lambda study: [_spread(study, _FAST)],
            "Flat in the paper.",
        ),
        (
            "mean JCT of defer over proactive, by rate",
            (1.0, 2.3),
            ("memory-rate",),
            lambda study: study.ratios(WhenFull.DEFER.value, _KEPT_FREE),
            "As much as memory is short of what the queues want.",
        ),
        (
            "mean JCT of defer over proactive, by burstiness",
            (1.0, 3.5),
            ("memory-cv",),
            lambda study: study.ratios(WhenFull.DEFER.value, _KEPT_FREE),
            "As by rate.",
        ),
        (
            "mean JCT of reactive over proactive",
            (1.0, 1.4),
            ("memory-rate", "memory-cv"),
            lambda study: study.ratios(WhenFull.REACTIVE.value, _KEPT_FREE),
            "KV is in blocks here: a newcomer takes room for its prompt, not for the longest job, and its few hundred MB move "
            "in less than an iteration; what is moved ahead of need is half as much again, for nothing (memory-link).",
        ),
        (
            "peak of KV, FastServe over FCFS",
            (7.0, 7.0),
            ("peak-kv",),
            _peaks,
            "The paper's is of GPT-3 2.7B, with outputs to 20 as here; it grows with what waits.",
        ),
    ]
    rows = []
    for name, paper, names, ratios_of, why in claims:
        if all(study in found for study in names):
            ratios = [ratio for study in names for ratio in ratios_of(found[study])]
            rows.append(Headline(name, paper, (min(ratios), max(ratios)), why))
    return rows


def _over_fcfs(figure: str = "mean") -> Callable[[Findings], list[float]]:
    return lambda study: study.ratios(_FCFS, _FAST, figure)


def _peaks(study: Findings) -> list[float]:
    fcfs = study.line(Scheduler.FCFS_ON_DEMAND.value)
    return [own.peak_kv_tokens / fcfs[at].peak_kv_tokens for at, own in study.line(_FAST).items()]


def _spread(findings: Findings, line: str) -> float:
    means = [finding.jct_s["mean"] for finding in findings.line(line).values()]
    return max(means) / min(means)


def published_per_token_s(finding: Finding) -> float | None:
    """Return what the artifact has for a line at a rate, if anything."""
    return PUBLISHED_PER_TOKEN_S.get(finding.line, {}).get(finding.at) if isinstance(finding.at, float) else None
