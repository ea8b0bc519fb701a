"""Jobs: their sizes and times, and runs of them on one engine under one scheduler."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import spotwise.studies
from spotwise.core.kv.swap import WhenFull
from spotwise.core.worker.policy import Batching, Reserve, Scheduling
from spotwise.simulator.searches.kept_runs import KeptRuns
from spotwise.simulator.world.observation import Arrival, CompletedRequest
from spotwise.studies.fastserve import job_runs
from spotwise.studies.fastserve.engines import (
    ENGINES,
    GPT3_ON_16,
    OPT_ON_40GB,
    OPT_ON_80GB,
    Queues,
    Scheduler,
    interruptions,
    worker_policy,
)
from spotwise.studies.fastserve.job_runs import JobCase, JobSummary, simulate_jobs
from spotwise.studies.fastserve.job_sizes import AzureSizes, JobSizes, LogNormalSizes, ZipfSizes, gamma_arrivals
from spotwise.studies.fastserve.studies import CHATS
from tests.unit.simulator.runs.kept import Counting, forget

CASE = JobCase(OPT_ON_80GB.name, Scheduler.FASTSERVE, ZipfSizes(512, 512, 1.3), 2.0, 40, batch=4)


def jct_s(case: JobCase, scheduler: Scheduler) -> float:
    return simulate_jobs(replace(case, scheduler=scheduler)).jct_s["mean"]


class TestEngines:
    """The paper's engines as machines of a world."""

    def test_a_decode_takes_the_time_of_the_artifacts_profile(self) -> None:
        """19.9 ms, 0.0385 ms for a sequence, 0.63 us for each token of its context; a prompt of 100: 28.4 ms."""
        queues = Queues().policy(OPT_ON_80GB)
        assert queues.first_quantum_s == pytest.approx(0.0199 + 0.0385e-3 + 0.63e-6)
        run = simulate_jobs(replace(CASE, sizes=ZipfSizes(1, 1, 0.0), jobs=2, rate=0.1))
        assert run.jct_s["mean"] == pytest.approx(0.0181 + 0.102e-3, rel=1e-3)

    @pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
    def test_memory_holds_the_configured_tokens(self, engine: object) -> None:
        assert engine.machine.kv_tokens(engine.model) == engine.kv_tokens  # type: ignore[attr-defined]
        assert engine.host_tokens > engine.kv_tokens  # type: ignore[attr-defined]


class TestSchedulers:
    """Each scheduler of the paper is a policy of the mesh's worker."""

    def test_fcfs_reserves_and_runs_to_completion(self) -> None:
        policy = worker_policy(GPT3_ON_16, Scheduler.FCFS, Queues())
        assert (policy.scheduling, policy.reserve, policy.max_in_flight) == (Scheduling.FCFS, Reserve.MAX_TOKENS, 2)

    def test_request_level_has_one_batch_at_a_time(self) -> None:
        policy = worker_policy(GPT3_ON_16, Scheduler.REQUEST_LEVEL, Queues())
        assert (policy.batching, policy.max_in_flight) == (Batching.REQUEST_LEVEL, 1)

    def test_only_one_mlfq_does_not_skip_and_only_one_interrupts(self) -> None:
        """All else is the same in all three."""
        queues = Queues(quantum_ratio=4.0, when_full=WhenFull.REACTIVE)
        fast, plain, lost = (
            worker_policy(OPT_ON_40GB, scheduler, queues)
            for scheduler in (Scheduler.FASTSERVE, Scheduler.MLFQ_NO_PREEMPTION, Scheduler.MLFQ_PREEMPTION)
        )
        assert fast.mlfq is not None and plain.mlfq is not None
        assert fast == lost
        assert replace(plain, mlfq=replace(plain.mlfq, skips=True)) == fast
        assert (fast.mlfq.quantum_ratio, fast.swap.when_full) == (4.0, WhenFull.REACTIVE)
        assert [interruptions(OPT_ON_40GB, scheduler, queues) is not None for scheduler in Scheduler].count(True) == 1

    def test_no_job_is_promoted_without_a_limit(self) -> None:
        assert Queues(starve_limit_s=None).policy(OPT_ON_40GB).starve_limit_s == float("inf")


class TestWhatComesOut:
    """Figures of a run."""

    def test_the_same_case_is_the_same_run(self) -> None:
        assert simulate_jobs(CASE) == simulate_jobs(CASE)
        assert simulate_jobs(CASE) != simulate_jobs(replace(CASE, seed=1))

    @pytest.mark.parametrize("scheduler", Scheduler)
    def test_every_scheduler_serves_every_job(self, scheduler: Scheduler) -> None:
        for engine in (GPT3_ON_16, OPT_ON_40GB):
            run = simulate_jobs(replace(CASE, engine=engine.name, scheduler=scheduler, rate=20.0, kv_tokens=2048))
            assert run.completed == CASE.jobs
            assert run.live_at_last_arrival > 0
            assert 0 < run.utilisation <= 1.0

    @pytest.mark.parametrize("when_full", WhenFull)
    def test_kv_moves_where_the_device_is_full_and_is_to_move(self, when_full: WhenFull) -> None:
        """Else it is computed again, or newcomers wait."""
        small = replace(CASE, sizes=ZipfSizes(512, 512, 0.8), kv_tokens=1200, queues=Queues(when_full=when_full))
        run = simulate_jobs(small)
        assert (run.swapped_bytes > 0) is when_full.swaps
        assert (run.preemptions > 0) is (when_full is not WhenFull.PROACTIVE and not when_full.swaps)

    def test_queues_shorten_jobs_where_the_engine_is_full(self) -> None:
        """Heavy tails, a burst: less than half of FCFS's, and no less than an oracle's."""
        full = replace(CASE, sizes=ZipfSizes(1024, 1024, 1.5), jobs=200, rate=20.0, cv=2.0)
        fcfs, fast, oracle = (jct_s(full, each) for each in (Scheduler.FCFS, Scheduler.FASTSERVE, Scheduler.SRPT))
        assert fast < 0.5 * fcfs
        assert oracle < fast

    def test_queues_change_nothing_where_no_job_waits(self) -> None:
        idle = replace(CASE, rate=0.2)
        fcfs, fast = (jct_s(idle, scheduler) for scheduler in (Scheduler.FCFS, Scheduler.FASTSERVE))
        assert fast == pytest.approx(fcfs, rel=0.01)

    def test_an_interrupted_prompt_costs(self) -> None:
        prompts = replace(CASE, sizes=ZipfSizes(1024, 4, 0.2), rate=8.0)
        assert jct_s(prompts, Scheduler.MLFQ_PREEMPTION) > 1.2 * jct_s(prompts, Scheduler.FASTSERVE)

    def test_a_batch_of_requests_waits_for_its_longest(self) -> None:
        assert jct_s(CASE, Scheduler.REQUEST_LEVEL) > 1.5 * jct_s(CASE, Scheduler.FCFS)

    def test_a_job_that_does_not_fit_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="was refused"):
            simulate_jobs(replace(CASE, kv_tokens=64))


def test_figures_are_of_all_jobs_and_of_those_in_the_middle() -> None:
    """Ten jobs, one a second; those from the third to the eighth are in the middle. Per token: over the output tokens."""
    arrivals = [Arrival(float(second), 10, second + 1) for second in range(10)]
    figures = job_runs._Figures(arrivals)
    for arrival in arrivals:
        figures.request_completed(CompletedRequest(arrival, arrival.at_s + 0.1, 2 * arrival.at_s + 1.0))
    assert figures.jct.count == 10
    assert (figures.steady_jct.smallest, figures.steady_jct.largest, figures.steady_jct.count) == (3.0, 8.0, 6)
    assert figures.jct.mean == pytest.approx(5.5)
    assert figures.jct_per_token.mean == figures.steady_jct_per_token.mean == pytest.approx(1.0)
    assert figures.live_at_last_arrival == 5


@pytest.fixture(autouse=True)
def _other_process() -> None:
    """Make each test read files and code as a new process does."""
    forget()


@pytest.mark.parametrize("sizes", [ZipfSizes(20, 5, 1.0), CHATS, AzureSizes("conv", None, 64)])
def test_runs_of_jobs_are_kept_as_well(tmp_path: Path, sizes: JobSizes) -> None:
    path, run = tmp_path / "runs", Counting(simulate_jobs)
    case = JobCase(OPT_ON_80GB.name, Scheduler.FASTSERVE, sizes, 2.0, 5, queues=Queues(starve_limit_s=None))

    first = KeptRuns(path, run, JobSummary)(case)
    forget()
    assert KeptRuns(path, run, JobSummary)(case) == first
    assert run.runs == [case]
    KeptRuns(path, run, JobSummary)(replace(case, queues=Queues()))
    assert len(run.runs) == 2


def test_the_code_of_a_study_is_part_of_its_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is kept until the code changes that made it, which is the study's as well as the simulator's."""
    path, run, changed = tmp_path / "runs", Counting(simulate_jobs), tmp_path / "studies"
    case = JobCase(OPT_ON_80GB.name, Scheduler.FASTSERVE, ZipfSizes(20, 5, 1.0), 2.0, 5)
    KeptRuns(path, run, JobSummary)(case)
    changed.mkdir()
    (changed / "job_runs.py").write_text("# made otherwise")
    monkeypatch.setattr(spotwise.studies, "__path__", [*spotwise.studies.__path__, str(changed)])
    forget()
    KeptRuns(path, run, JobSummary)(case)
    assert run.runs == [case, case]


MANY = 50_000


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


class TestZipf:
    """Lengths with a probability like a power of themselves."""

    @pytest.mark.parametrize("theta", [0.0, 0.5, 1.0, 1.5])
    def test_lengths_have_the_mean_of_their_distribution(self, theta: float) -> None:
        """The sum of k times k to the power of minus theta, over the sum of the powers."""
        prompts, outputs = ZipfSizes(1000, 100, theta).draw(MANY, rng())
        for drawn, longest in ((prompts, 1000), (outputs, 100)):
            lengths = np.arange(1, longest + 1)
            expected = (lengths ** (1 - theta)).sum() / (lengths**-theta).sum()
            assert drawn.mean() == pytest.approx(expected, rel=0.05)

    def test_all_lengths_within_the_bounds_come_and_no_others(self) -> None:
        prompts, outputs = ZipfSizes(7, 3, 0.5).draw(MANY, rng())
        assert set(prompts.tolist()) == set(range(1, 8))
        assert set(outputs.tolist()) == {1, 2, 3}

    def test_the_larger_theta_the_shorter(self) -> None:
        drawn = [ZipfSizes(1024, 1024, theta).draw(MANY, rng())[1] for theta in (0.5, 1.0, 1.5)]
        assert [each.mean() for each in drawn] == sorted((each.mean() for each in drawn), reverse=True)
        variations = [each.std() / each.mean() for each in drawn]
        assert variations == sorted(variations)

    @pytest.mark.parametrize("bounds", [(0, 5, 1.0), (5, 0, 1.0), (5, 5, -0.1)])
    def test_what_is_no_distribution_is_refused(self, bounds: tuple[int, int, float]) -> None:
        with pytest.raises(ValueError, match="at least"):
            ZipfSizes(*bounds)


def test_log_normal_lengths_have_their_medians_and_stay_within_bounds() -> None:
    prompts, outputs = LogNormalSizes(300, 1.5, 120, 1.5, 1024, 512).draw(MANY, rng())
    assert np.median(prompts) == pytest.approx(300, rel=0.03)
    assert np.median(outputs) == pytest.approx(120, rel=0.03)
    assert (prompts.min(), prompts.max(), outputs.min(), outputs.max()) == (4, 1024, 1, 512)


class TestAzure:
    """Sizes of a trace, cut to a context."""

    def test_a_line_is_drawn_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.csv"
        path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01,100,10\n2024-01-02,200,20\n")
        prompts, outputs = AzureSizes("conv", path, 2048).draw(100, rng())
        assert set(zip(prompts.tolist(), outputs.tolist(), strict=True)) == {(100, 10), (200, 20)}

    def test_what_is_too_long_loses_its_prompts_end(self) -> None:
        """Without a trace, percentiles come along."""
        prompts, outputs = AzureSizes("conv", None, 512).draw(MANY, rng())
        assert (prompts + outputs).max() == 512
        assert outputs.max() == 256
        assert prompts.min() >= 1


class TestGammaArrivals:
    """Gaps of a mean and a spread."""

    SIZES = ZipfSizes(100, 100, 1.0)

    @pytest.mark.parametrize("cv", [0.5, 1.0, 4.0])
    def test_gaps_have_the_requested_rate_and_variation(self, cv: float) -> None:
        times = [arrival.at_s for arrival in gamma_arrivals(self.SIZES, 5.0, cv, MANY, 0)]
        gaps = np.array([later - earlier for earlier, later in pairwise(times)])
        assert gaps.mean() == pytest.approx(0.2, rel=0.05)
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)

    def test_the_same_seed_is_the_same_jobs(self) -> None:
        once, again, other = (list(gamma_arrivals(self.SIZES, 5.0, 2.0, 50, seed)) for seed in (3, 3, 4))
        assert once == again
        assert once != other

    def test_another_rate_brings_the_same_jobs_at_other_times(self) -> None:
        slow, fast = (list(gamma_arrivals(self.SIZES, rate, 2.0, 50, 0)) for rate in (1.0, 2.0))
        for one, other in zip(slow, fast, strict=True):
            assert (one.prompt_tokens, one.output_tokens) == (other.prompt_tokens, other.output_tokens)
            assert one.at_s == pytest.approx(2 * other.at_s)

    @pytest.mark.parametrize(("rate", "cv"), [(0.0, 1.0), (1.0, 0.0)])
    def test_nothing_comes_without_a_rate_or_a_spread(self, rate: float, cv: float) -> None:
        with pytest.raises(ValueError, match="above 0"):
            list(gamma_arrivals(self.SIZES, rate, cv, 10, 0))
