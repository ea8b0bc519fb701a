"""FastServe's figures, means over seeds, beside the paper's (sections 4.2, 6.2 to 6.4; the artifact's own table for
OPT-13B)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from spotwise.core.kv.swap import WhenFull
from spotwise.studies.fastserve.engines import Scheduler
from spotwise.studies.fastserve.job_runs import JobCase, JobSummary
from spotwise.studies.fastserve.studies import ARTIFACT, STEADY
from spotwise.studies.study import Finding, Findings, Headline, ends

#: Share by which the upper end of a range may differ from the paper's and still be close.
CLOSE = 0.25

#: The artifact's mean seconds a token, by scheduler and rate.
PUBLISHED_PER_TOKEN_S: Mapping[str, Mapping[float, float]] = {
    Scheduler.FCFS.value: {1.0: 0.038, 2.0: 0.091, 2.5: 0.403, 3.0: 0.849, 4.0: 1.459},
    Scheduler.FASTSERVE.value: {1.0: 0.039, 2.0: 0.047, 2.5: 0.048, 3.0: 0.063, 4.0: 0.106},
}


@dataclass(frozen=True, slots=True)
class JobFinding(Finding[JobCase, JobSummary]):
    """A scheduler's JCT at one value; of a steady study, of the jobs in the middle of the runs."""

    @property
    def at(self) -> float | str:
        """The value of what varies."""
        return self.point.place[0]

    @property
    def jct_s(self) -> dict[str, float]:
        """JCT by figure."""
        return self.means("steady_jct_s" if self.study.name in STEADY else "jct_s")

    @property
    def jct_per_token_s(self) -> dict[str, float]:
        """JCT per output token by figure."""
        return self.means("steady_jct_per_token_s" if self.study.name in STEADY else "jct_per_token_s")

    @property
    def published_per_token_s(self) -> float | None:
        """The artifact's mean, from runs of a fixed number of jobs; `None` where it has none."""
        if self.study.name != ARTIFACT or not isinstance(self.at, float):
            return None
        return PUBLISHED_PER_TOKEN_S.get(self.point.line, {}).get(self.at)


JobFindings = Findings[JobFinding]

_Ratios = Callable[[JobFindings], Iterable[float]]

_FCFS, _FAST = Scheduler.FCFS.value, Scheduler.FASTSERVE.value
_OVER_BATCH = (
    "The paper does not give batch and lengths, and the gain depends on both: it grows as the batch shrinks (v1-batch), and as "
    "the load exceeds what the engine can do."
)
_TAIL = (
    "A job that is long gives way to all that are short, so where the engine is full the longest jobs end later than under "
    "FCFS; the paper does not define its tail."
)


def jct_ratios(line: str, over: str = _FAST, figure: str = "mean") -> _Ratios:
    """Return a function from a study's findings to one line's JCT over another's, value by value."""
    return lambda findings: findings.over(line, over, lambda finding: finding.jct_s[figure]).values()


def _peaks(findings: JobFindings) -> Iterable[float]:
    return findings.over(_FAST, Scheduler.FCFS_ON_DEMAND.value, lambda finding: finding.mean("peak_kv_tokens")).values()


def _worst_over_best(findings: JobFindings) -> list[float]:
    lowest, highest = ends(finding.jct_s["mean"] for finding in findings.line(_FAST).values())
    return [highest / lowest]


#: Name, the paper's range, the studies it rests on, their ratios, and why ours may differ.
_CLAIMS: tuple[tuple[str, tuple[float, float] | None, tuple[str, ...], _Ratios, str], ...] = (
    ("mean JCT of FCFS over FastServe's, by rate", (1.0, 4.3), ("v1-rate",), jct_ratios(_FCFS), _OVER_BATCH),
    ("mean JCT of FCFS over FastServe's, by burstiness", (2.3, 5.1), ("v1-cv",), jct_ratios(_FCFS), _OVER_BATCH),
    ("mean JCT of FCFS over FastServe's, by skew", (1.9, 3.9), ("v1-theta",), jct_ratios(_FCFS), _OVER_BATCH),
    (
        "tail JCT of FCFS over FastServe's, by rate: p95",
        (6.4, 6.4),
        ("v1-rate",),
        jct_ratios(_FCFS, figure="p95"),
        _TAIL,
    ),
    (
        "tail JCT of FCFS over FastServe's, by rate: p99",
        (6.4, 6.4),
        ("v1-rate",),
        jct_ratios(_FCFS, figure="p99"),
        _TAIL,
    ),
    (
        "mean JCT of request-level over FastServe's",
        (1.9, 12.2),
        ("v1-rate", "v1-cv", "v1-theta"),
        jct_ratios(Scheduler.REQUEST_LEVEL.value),
        "A batch lasts as long as its longest answer; with answers as skewed as these the others wait ten times as long.",
    ),
    (
        "mean JCT of MLFQ without preemption over FastServe's",
        None,
        ("mlfq-rate",),
        jct_ratios(Scheduler.MLFQ_NO_PREEMPTION.value),
        "The paper's figure has no numbers: about the same at first, and far apart just above a knee.",
    ),
    (
        "mean JCT of MLFQ with preemption over FastServe's",
        None,
        ("mlfq-rate",),
        jct_ratios(Scheduler.MLFQ_PREEMPTION.value),
        "The paper's figure has no numbers. What is computed in vain is charged in full.",
    ),
    (
        "FastServe, mean JCT at the worst quantum ratio over the best",
        (1.0, 1.0),
        ("mlfq-quantum",),
        _worst_over_best,
        "Flat in the paper.",
    ),
    (
        "mean JCT of defer over proactive, by rate",
        (1.0, 2.3),
        ("memory-rate",),
        jct_ratios(WhenFull.DEFER.value, WhenFull.PROACTIVE.value),
        "As much as memory is short of what the queues want.",
    ),
    (
        "mean JCT of defer over proactive, by burstiness",
        (1.0, 3.5),
        ("memory-cv",),
        jct_ratios(WhenFull.DEFER.value, WhenFull.PROACTIVE.value),
        "As by rate.",
    ),
    (
        "mean JCT of reactive over proactive",
        (1.0, 1.4),
        ("memory-rate", "memory-cv"),
        jct_ratios(WhenFull.REACTIVE.value, WhenFull.PROACTIVE.value),
        "KV is in blocks here: a new job takes blocks for its prompt, not for the longest job, and its few hundred MB move "
        "in less than an iteration; what is moved ahead of need is half as much again, for nothing (memory-link).",
    ),
    (
        "peak of KV, FastServe over FCFS",
        (7.0, 7.0),
        ("peak-kv",),
        _peaks,
        "The paper's is of GPT-3 2.7B, with outputs to 20 as here; it grows with what waits.",
    ),
)


def headlines(found: Mapping[str, JobFindings]) -> list[Headline]:
    """Return the paper's claims whose studies were run; studies by name."""
    rows = []
    for name, paper, names, ratios_of, why in _CLAIMS:
        if all(study in found for study in names):
            ours = ends(ratio for study in names for ratio in ratios_of(found[study]))
            rows.append(Headline(name, paper, ours, why, None if paper is None else is_close(ours, paper)))
    return rows


def is_close(ours: tuple[float, float], paper: tuple[float, float]) -> bool:
    """Return whether the upper end of our range is about the paper's."""
    return abs(ours[1] / paper[1] - 1.0) <= CLOSE
