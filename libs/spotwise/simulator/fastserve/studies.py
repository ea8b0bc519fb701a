"""What the FastServe paper looked at, as runs to be made.

Law: a study varies one thing and compares a few lines at each of its values; all else is in `Scope` and in the constants here,
and is published with the results, because the paper leaves lengths' bounds, batch, CV and theta unsaid. What is compared is
given the same jobs.

Source: FastServe, sections 6.2 and 6.3, figures 9 to 11; its artifact for OPT-13B.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spotwise.core.kv_swap import WhenFull
from spotwise.simulator.fastserve.engines import GPT3_ON_16, OPT_ON_40GB, OPT_ON_80GB, Queues, Scheduler
from spotwise.simulator.fastserve.job_runs import JobCase
from spotwise.simulator.fastserve.job_sizes import AzureSizes, JobSizes, LogNormalSizes, ZipfSizes

_LONGEST = 1024
#: Lengths of the end-to-end comparison.
SKEWED = ZipfSizes(_LONGEST, _LONGEST, 1.5)
#: Long prompts and short answers, to 20 tokens as in the paper's section 4.2: where it matters what becomes of a prompt.
LONG_PROMPTS = ZipfSizes(_LONGEST, 20, 0.5)
#: Large jobs on a device with room for four of the largest.
LARGE = ZipfSizes(_LONGEST, _LONGEST, 1.0)
_SMALL_KV_TOKENS = 4096
#: Room for everybody, to see how much is wanted.
_AMPLE_KV_TOKENS = 1_000_000
#: Spreads and medians at which FCFS comes closest to the artifact's own row of FCFS; FastServe's row is then a prediction.
CHATS = LogNormalSizes(300, 1.5, 120, 1.5, _LONGEST, _LONGEST)

_CV = 2.0
_V1_RATE, _PROMPTS_RATE, _LARGE_RATE = 12.0, 13.0, 2.5
_PROMPTS_RATES = (8.0, 10.0, 12.0, 13.0, 14.0)
_ENDS = tuple(Scheduler(name) for name in Scheduler if name is not Scheduler.FCFS_ON_DEMAND)
_MLFQS = (Scheduler.FASTSERVE, Scheduler.MLFQ_PREEMPTION, Scheduler.MLFQ_NO_PREEMPTION)
_FEW = (Scheduler.FCFS, Scheduler.FASTSERVE, Scheduler.SRPT)


@dataclass(frozen=True, slots=True)
class Scope:
    """How much is run.

    Attributes:
        jobs: of a run of fixed length.
        artifact_jobs: of the artifact's runs.
        long_jobs: of runs whose middle is looked at.
        seeds: of which figures are means.
        thin: take every other value of what is varied, from the last one back.
        conv: the Azure conversation trace; `None` for its percentiles.
    """

    jobs: int = 1000
    artifact_jobs: int = 400
    long_jobs: int = 4000
    seeds: tuple[int, ...] = (0, 1)
    thin: bool = False
    conv: Path | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """One line of a study at one value.

    Attributes:
        line: what is compared.
        at: the value, as a number or a name.
        cases: the same run with each seed.
    """

    line: str
    at: float | str
    cases: tuple[JobCase, ...]


@dataclass(frozen=True, slots=True)
class Study:
    """Lines that are compared while one thing varies.

    Attributes:
        name: short, of files and documents.
        title: for people.
        axis: what varies, with its unit.
        points: by value, then by line.
        is_steady: look at the jobs in the middle of each run only.
    """

    name: str
    title: str
    axis: str
    points: tuple[Point, ...]
    is_steady: bool = False

    @property
    def lines(self) -> list[str]:
        """What is compared, in order."""
        return list(dict.fromkeys(point.line for point in self.points))


def studies(scope: Scope) -> list[Study]:
    """Return all of them, in the order of the paper."""
    v1 = JobCase(GPT3_ON_16.name, Scheduler.FASTSERVE, SKEWED, _V1_RATE, scope.jobs, _CV)
    prompts = JobCase(OPT_ON_40GB.name, Scheduler.FASTSERVE, LONG_PROMPTS, _PROMPTS_RATE, scope.jobs, _CV)
    large = JobCase(
        OPT_ON_40GB.name, Scheduler.FASTSERVE, LARGE, _LARGE_RATE, scope.jobs // 2, _CV, kv_tokens=_SMALL_KV_TOKENS
    )
    build = _Builder(scope)
    return [
        build.by_rate("v1-rate", "JCT by rate", v1, (0.5, 2.0, 5.0, 8.0, 10.0, 12.0, 15.0), _ENDS),
        build.by_cv("v1-cv", "JCT by burstiness", v1, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0), _ENDS),
        build.by_theta("v1-theta", "JCT by skew of lengths", v1, (1.1, 1.3, 1.5, 1.7, 1.9), _ENDS),
        _steady(
            build.by_rate(
                "v1-steady",
                f"JCT by rate, the middle of {scope.long_jobs} jobs",
                replace(v1, jobs=scope.long_jobs),
                (6.0, 8.0, 10.0, 11.0),
                _FEW,
            )
        ),
        build.of(
            "v1-batch",
            "JCT by batch",
            "sequences of a batch",
            (4, 8, 16, 32),
            _FEW,
            lambda at, line: replace(v1, scheduler=line, batch=int(at)),
        ),
        build.by_rate("mlfq-rate", "kinds of MLFQ by rate", prompts, _PROMPTS_RATES, (*_MLFQS, *_FEW[::2])),
        build.by_theta("mlfq-theta", "kinds of MLFQ by skew of lengths", prompts, (0.2, 0.5, 0.8, 1.1), _MLFQS),
        build.of(
            "mlfq-quantum",
            "kinds of MLFQ by quantum ratio",
            "quantum ratio",
            (1.5, 2.0, 4.0, 8.0, 16.0),
            _MLFQS,
            lambda at, line: replace(prompts, scheduler=line, queues=Queues(quantum_ratio=at)),
        ),
        build.when_full(
            "memory-rate", "full memory by rate", "jobs/s", (1.5, 2.5, 3.0, 3.5), lambda at: replace(large, rate=at)
        ),
        build.when_full(
            "memory-cv",
            "full memory by burstiness",
            "CV of gaps",
            (1.0, 2.0, 4.0, 6.0),
            lambda at: replace(large, cv=at),
        ),
        build.when_full(
            "memory-link",
            "full memory by the link to the host",
            "GB/s",
            (2.5, 5.0, 10.0, 25.0),
            lambda at: replace(large, host_bytes_per_s=at * 1e9),
        ),
        build.by_rate(
            "peak-kv",
            "peak of KV, with memory for all",
            replace(prompts, kv_tokens=_AMPLE_KV_TOKENS),
            _PROMPTS_RATES,
            (Scheduler.FCFS_ON_DEMAND, Scheduler.FASTSERVE),
        ),
        build.starvation(
            "starve-limit",
            replace(prompts, engine=OPT_ON_80GB.name, sizes=CHATS, rate=3.0, cv=1.0, jobs=scope.artifact_jobs),
        ),
        *_artifact(build, scope),
    ]


def _artifact(build: _Builder, scope: Scope) -> list[Study]:
    chats = JobCase(OPT_ON_80GB.name, Scheduler.FASTSERVE, CHATS, 2.0, scope.artifact_jobs)
    more = (*_FEW, Scheduler.MLFQ_NO_PREEMPTION)
    long = replace(chats, jobs=scope.long_jobs // 2)
    conv = replace(chats, sizes=AzureSizes("conv", scope.conv, 2 * _LONGEST))
    rates = (1.0, 1.5, 2.0, 2.5)
    return [
        build.by_rate("artifact", f"the artifact, {chats.jobs} jobs", chats, (1.0, 2.0, 2.5, 3.0, 4.0), more),
        build.by_rate("artifact-long", f"the artifact, {long.jobs} jobs", long, rates, _FEW),
        _steady(build.by_rate("artifact-steady", f"the artifact, the middle of {long.jobs} jobs", long, rates, _FEW)),
        build.by_rate("azure-conv", "sizes of Azure's conversations", conv, (1.0, 1.5, 2.0, 2.5), _FEW),
    ]


def _steady(study: Study) -> Study:
    return replace(study, is_steady=True)


@dataclass(frozen=True, slots=True)
class _Builder:
    """Makes studies.

    Attributes:
        scope: of all of them.
    """

    scope: Scope

    def of(
        self,
        name: str,
        title: str,
        axis: str,
        values: Sequence[float],
        lines: Sequence[Scheduler],
        case: Callable[[float, Scheduler], JobCase],
    ) -> Study:
        """Compare schedulers while anything varies."""
        points = [Point(line.value, at, self._seeded(case(at, line))) for at in self._thin(values) for line in lines]
        return Study(name, title, axis, tuple(points))

    def by_rate(
        self, name: str, title: str, base: JobCase, rates: Sequence[float], lines: Sequence[Scheduler]
    ) -> Study:
        return self.of(name, title, "jobs/s", rates, lines, lambda at, line: replace(base, scheduler=line, rate=at))

    def by_cv(self, name: str, title: str, base: JobCase, cvs: Sequence[float], lines: Sequence[Scheduler]) -> Study:
        return self.of(name, title, "CV of gaps", cvs, lines, lambda at, line: replace(base, scheduler=line, cv=at))

    def by_theta(
        self, name: str, title: str, base: JobCase, thetas: Sequence[float], lines: Sequence[Scheduler]
    ) -> Study:
        def case(at: float, line: Scheduler) -> JobCase:
            assert isinstance(base.sizes, ZipfSizes)
            return replace(base, scheduler=line, sizes=replace(base.sizes, theta=at))

        return self.of(name, title, "theta", thetas, lines, case)

    def when_full(
        self, name: str, title: str, axis: str, values: Sequence[float], case: Callable[[float], JobCase]
    ) -> Study:
        """Compare what happens where KV has no room."""
        points = [
            Point(way.value, at, self._seeded(replace(case(at), queues=Queues(when_full=way))))
            for at in self._thin(values)
            for way in (WhenFull.PROACTIVE, WhenFull.REACTIVE, WhenFull.DEFER, WhenFull.RECOMPUTE)
        ]
        return Study(name, title, axis, tuple(points))

    def starvation(self, name: str, base: JobCase) -> Study:
        """Compare how long a job waits at most below Q1."""
        points = [
            Point(
                Scheduler.FASTSERVE.value,
                f"{limit_s:g}" if limit_s else "none",
                self._seeded(replace(base, queues=queues)),
            )
            for limit_s in (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, None)
            for queues in [Queues(starve_limit_s=limit_s)]
        ]
        return Study(name, "JCT by starvation limit", "seconds", tuple(points))

    def _thin(self, values: Sequence[float]) -> Sequence[float]:
        return values[::-2][::-1] if self.scope.thin else values

    def _seeded(self, case: JobCase) -> tuple[JobCase, ...]:
        return tuple(replace(case, seed=seed) for seed in self.scope.seeds)


def sizes_name(sizes: JobSizes) -> str:
    """Return what jobs' sizes are, for people."""
    if isinstance(sizes, ZipfSizes):
        return f"Zipf {sizes.theta:g}, prompts to {sizes.longest_prompt}, outputs to {sizes.longest_output}"
    if isinstance(sizes, LogNormalSizes):
        return (
            f"log-normal, prompts {sizes.prompt_median:g} (sigma {sizes.prompt_spread:g}) to {sizes.longest_prompt}, "
            f"outputs {sizes.output_median:g} (sigma {sizes.output_spread:g}) to {sizes.longest_output}"
        )
    return f"Azure {sizes.name}, to {sizes.longest} tokens in all"
