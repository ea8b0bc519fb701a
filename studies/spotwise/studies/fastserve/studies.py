"""The FastServe paper's questions as runs (sections 6.2 and 6.3, figures 9 to 11; its artifact for OPT-13B): a study varies one
thing and compares a few lines under the same jobs. The paper gives no bounds of lengths, batch, CV or theta; ours, in
`JobScope` and the constants here, are published with the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spotwise.core.kv.swap import WhenFull
from spotwise.studies.fastserve.engines import GPT3_ON_16, OPT_ON_40GB, OPT_ON_80GB, Queues, Scheduler
from spotwise.studies.fastserve.job_runs import JobCase
from spotwise.studies.fastserve.job_sizes import AzureSizes, JobSizes, LogNormalSizes, ZipfSizes
from spotwise.studies.study import Study, StudyPoint

JobStudy = Study[JobCase]

_LONGEST = 1024
#: Lengths of the end-to-end comparison.
SKEWED = ZipfSizes(_LONGEST, _LONGEST, 1.5)
#: Long prompts and short answers, to 20 tokens as in the paper's section 4.2: what an interrupted prompt loses matters.
LONG_PROMPTS = ZipfSizes(_LONGEST, 20, 0.5)
#: Large jobs on a device with memory for four of the largest.
LARGE = ZipfSizes(_LONGEST, _LONGEST, 1.0)
_SMALL_KV_TOKENS = 4096
#: KV memory for all jobs, to see the peak demand.
_AMPLE_KV_TOKENS = 1_000_000
#: Spreads and medians at which FCFS comes closest to the artifact's own row of FCFS; FastServe's row is then a prediction.
CHATS = LogNormalSizes(300, 1.5, 120, 1.5, _LONGEST, _LONGEST)

_CV = 2.0
_V1_RATE, _PROMPTS_RATE, _LARGE_RATE = 12.0, 13.0, 2.5
_PROMPTS_RATES = (8.0, 10.0, 12.0, 13.0, 14.0)
_ARTIFACT_RATES = (1.0, 1.5, 2.0, 2.5)
_STARVE_LIMITS_S = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, None)
_ENDS = tuple(Scheduler(name) for name in Scheduler if name is not Scheduler.FCFS_ON_DEMAND)
_MLFQS = (Scheduler.FASTSERVE, Scheduler.MLFQ_PREEMPTION, Scheduler.MLFQ_NO_PREEMPTION)
_FEW = (Scheduler.FCFS, Scheduler.FASTSERVE, Scheduler.SRPT)
_WHEN_FULL = (WhenFull.PROACTIVE, WhenFull.REACTIVE, WhenFull.DEFER, WhenFull.RECOMPUTE)
#: The study that repeats the artifact's table, and those of the jobs in the middle of each run only.
ARTIFACT, STEADY = "artifact", ("v1-steady", "artifact-steady")
PEAK_KV = "peak-kv"


@dataclass(frozen=True, slots=True)
class JobScope:
    """Size of the studies.

    Attributes:
        jobs: jobs of a run of fixed length.
        artifact_jobs: jobs of the artifact's runs.
        long_jobs: jobs of runs whose middle is measured.
        thin: take every other value of what varies, from the last one back.
        conv: the Azure conversation trace; `None` for its percentiles.
    """

    jobs: int = 1000
    artifact_jobs: int = 400
    long_jobs: int = 4000
    seeds: tuple[int, ...] = (0, 1)
    thin: bool = False
    conv: Path | None = None


def studies(scope: JobScope) -> list[JobStudy]:
    """Return all studies in the order of the paper."""
    v1 = JobCase(GPT3_ON_16.name, Scheduler.FASTSERVE, SKEWED, _V1_RATE, scope.jobs, _CV)
    v1_long = replace(v1, jobs=scope.long_jobs)
    prompts = JobCase(OPT_ON_40GB.name, Scheduler.FASTSERVE, LONG_PROMPTS, _PROMPTS_RATE, scope.jobs, _CV)
    ample = replace(prompts, kv_tokens=_AMPLE_KV_TOKENS)
    on_demand = (Scheduler.FCFS_ON_DEMAND, Scheduler.FASTSERVE)
    large = replace(prompts, sizes=LARGE, rate=_LARGE_RATE, jobs=scope.jobs // 2, kv_tokens=_SMALL_KV_TOKENS)
    chats = JobCase(OPT_ON_80GB.name, Scheduler.FASTSERVE, CHATS, 2.0, scope.artifact_jobs)
    chats_long = replace(chats, jobs=scope.long_jobs // 2)
    conv = replace(chats, sizes=AzureSizes("conv", scope.conv, 2 * _LONGEST))
    middle = f"the middle of {v1_long.jobs} jobs", f"the middle of {chats_long.jobs} jobs"

    def of(
        name: str,
        title: str,
        varied: str,
        base: JobCase,
        values: Sequence[float],
        lines: Iterable[Scheduler | WhenFull],
    ) -> JobStudy:
        axis, varying = _VARIED[varied]
        thinned = values[::-2][::-1] if scope.thin else values
        points = tuple(
            StudyPoint((at,), line.value, _seeded(_with_line(varying(base, at), line), scope))
            for at in thinned
            for line in lines
        )
        return Study(name, title, (axis,), points)

    return [
        of("v1-rate", "JCT by rate", "rate", v1, (0.5, 2.0, 5.0, 8.0, 10.0, 12.0, 15.0), _ENDS),
        of("v1-cv", "JCT by burstiness", "cv", v1, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0), _ENDS),
        of("v1-theta", "JCT by skew of lengths", "theta", v1, (1.1, 1.3, 1.5, 1.7, 1.9), _ENDS),
        of("v1-steady", f"JCT by rate, {middle[0]}", "rate", v1_long, (6.0, 8.0, 10.0, 11.0), _FEW),
        of("v1-batch", "JCT by batch", "batch", v1, (4, 8, 16, 32), _FEW),
        of("mlfq-rate", "kinds of MLFQ by rate", "rate", prompts, _PROMPTS_RATES, (*_MLFQS, *_FEW[::2])),
        of("mlfq-theta", "kinds of MLFQ by skew of lengths", "theta", prompts, (0.2, 0.5, 0.8, 1.1), _MLFQS),
        of("mlfq-quantum", "kinds of MLFQ by quantum ratio", "quantum", prompts, (1.5, 2.0, 4.0, 8.0, 16.0), _MLFQS),
        of("memory-rate", "full memory by rate", "rate", large, (1.5, 2.5, 3.0, 3.5), _WHEN_FULL),
        of("memory-cv", "full memory by burstiness", "cv", large, (1.0, 2.0, 4.0, 6.0), _WHEN_FULL),
        of("memory-link", "full memory by the link to the host", "link", large, (2.5, 5.0, 10.0, 25.0), _WHEN_FULL),
        of(PEAK_KV, "peak of KV, with memory for all", "rate", ample, _PROMPTS_RATES, on_demand),
        _starvation(replace(chats, rate=3.0, cv=1.0), scope),
        of(
            ARTIFACT,
            f"the artifact, {chats.jobs} jobs",
            "rate",
            chats,
            (1.0, 2.0, 2.5, 3.0, 4.0),
            (*_FEW, Scheduler.MLFQ_NO_PREEMPTION),
        ),
        of("artifact-long", f"the artifact, {chats_long.jobs} jobs", "rate", chats_long, _ARTIFACT_RATES, _FEW),
        of("artifact-steady", f"the artifact, {middle[1]}", "rate", chats_long, _ARTIFACT_RATES, _FEW),
        of("azure-conv", "sizes of Azure's conversations", "rate", conv, _ARTIFACT_RATES, _FEW),
    ]


def _with_theta(case: JobCase, theta: float) -> JobCase:
    assert isinstance(case.sizes, ZipfSizes)
    return replace(case, sizes=replace(case.sizes, theta=theta))


#: What varies: its axis, and a case at a value.
_VARIED: Mapping[str, tuple[str, Callable[[JobCase, float], JobCase]]] = {
    "rate": ("jobs/s", lambda case, at: replace(case, rate=at)),
    "cv": ("CV of gaps", lambda case, at: replace(case, cv=at)),
    "theta": ("theta", _with_theta),
    "batch": ("sequences of a batch", lambda case, at: replace(case, batch=int(at))),
    "quantum": ("quantum ratio", lambda case, at: replace(case, queues=Queues(quantum_ratio=at))),
    "link": ("GB/s", lambda case, at: replace(case, host_bytes_per_s=at * 1e9)),
}


def _with_line(case: JobCase, line: Scheduler | WhenFull) -> JobCase:
    if isinstance(line, WhenFull):
        return replace(case, queues=Queues(when_full=line))
    return replace(case, scheduler=line)


def _starvation(base: JobCase, scope: JobScope) -> JobStudy:
    points = tuple(
        StudyPoint(
            (f"{limit_s:g}" if limit_s else "none",),
            Scheduler.FASTSERVE.value,
            _seeded(replace(base, queues=Queues(starve_limit_s=limit_s)), scope),
        )
        for limit_s in _STARVE_LIMITS_S
    )
    return Study("starve-limit", "JCT by starvation limit", ("seconds",), points)


def _seeded(case: JobCase, scope: JobScope) -> tuple[JobCase, ...]:
    return tuple(replace(case, seed=seed) for seed in scope.seeds)


def sizes_name(sizes: JobSizes) -> str:
    """Return a description of jobs' sizes, for people."""
    if isinstance(sizes, ZipfSizes):
        return f"Zipf {sizes.theta:g}, prompts to {sizes.longest_prompt}, outputs to {sizes.longest_output}"
    if isinstance(sizes, LogNormalSizes):
        return (
            f"log-normal, prompts {sizes.prompt_median:g} (sigma {sizes.prompt_spread:g}) to {sizes.longest_prompt}, "
            f"outputs {sizes.output_median:g} (sigma {sizes.output_spread:g}) to {sizes.longest_output}"
        )
    return f"Azure {sizes.name}, to {sizes.longest} tokens in all"
