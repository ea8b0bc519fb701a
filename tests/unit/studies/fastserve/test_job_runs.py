"""Runs of jobs on one engine under one scheduler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.kv.swap import WhenFull
from spotwise.core.worker.policy import Batching, Reserve, Scheduling
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
from spotwise.studies.fastserve.job_runs import JobCase, simulate_jobs
from spotwise.studies.fastserve.job_sizes import ZipfSizes

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
        """The device has memory for exactly the configured tokens, and the host for more."""
        assert engine.machine.kv_tokens(engine.model) == engine.kv_tokens  # type: ignore[attr-defined]
        assert engine.host_tokens > engine.kv_tokens  # type: ignore[attr-defined]

    def test_a_token_of_opt_13b_is_0_82_mb(self) -> None:
        """A token of OPT-13B takes 819,200 bytes of KV, as in FastServe's artifact."""
        assert OPT_ON_80GB.model.kv_token_bytes == 819_200


class TestSchedulers:
    """Each scheduler of the paper is a policy of the mesh's worker."""

    def test_fcfs_reserves_and_runs_to_completion(self) -> None:
        """FCFS reserves `max_tokens` and has as many batches in flight as the pipeline has stages."""
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
        """Two simulations of one case have equal summaries; another seed has another one."""
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
        """Without waiting jobs FastServe's mean JCT is within a percent of FCFS's."""
        idle = replace(CASE, rate=0.2)
        fcfs, fast = (jct_s(idle, scheduler) for scheduler in (Scheduler.FCFS, Scheduler.FASTSERVE))
        assert fast == pytest.approx(fcfs, rel=0.01)

    def test_an_interrupted_prompt_costs(self) -> None:
        prompts = replace(CASE, sizes=ZipfSizes(1024, 4, 0.2), rate=8.0)
        assert jct_s(prompts, Scheduler.MLFQ_PREEMPTION) > 1.2 * jct_s(prompts, Scheduler.FASTSERVE)

    def test_a_batch_of_requests_waits_for_its_longest(self) -> None:
        """Request-level batching is slower than iteration-level batching, since a batch waits for its longest job."""
        assert jct_s(CASE, Scheduler.REQUEST_LEVEL) > 1.5 * jct_s(CASE, Scheduler.FCFS)

    def test_a_job_that_does_not_fit_is_an_error(self) -> None:
        """A refused job raises an error, since the summary would lack its figures."""
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
