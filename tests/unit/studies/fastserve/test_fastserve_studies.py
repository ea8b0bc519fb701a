"""The FastServe paper's questions, and what is made of the answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwise.simulator.runs.plots import save
from spotwise.studies.fastserve.engines import Scheduler
from spotwise.studies.fastserve.findings import JobFinding, JobFindings, headlines, is_close, jct_ratios
from spotwise.studies.fastserve.job_runs import PERCENTS, JobCase, JobSummary
from spotwise.studies.fastserve.job_sizes import AzureSizes
from spotwise.studies.fastserve.plots import plot_study
from spotwise.studies.fastserve.studies import JobScope, JobStudy, sizes_name, studies
from spotwise.studies.study import findings_of

FCFS, FAST = Scheduler.FCFS.value, Scheduler.FASTSERVE.value
FIGURES = ("mean", *(f"p{percent}" for percent in PERCENTS))


def summary(case: JobCase, jct_s: float) -> JobSummary:
    """Every figure of a run is the same; those of its middle are twice as much."""
    jct, steady = dict.fromkeys(FIGURES, jct_s), dict.fromkeys(FIGURES, 2 * jct_s)
    return JobSummary(case, case.jobs, jct, jct, steady, steady, 10.0, 3, 0.5, 1000 + case.seed, 0, 0, 0.1)


def answered(study: JobStudy) -> JobFindings:
    """FCFS takes 6 s a job, all else 2 s; a second seed adds a second."""
    runs = {case: summary(case, (6.0 if case.scheduler is Scheduler.FCFS else 2.0) + case.seed) for case in study.cases}
    return findings_of(study, runs, JobFinding)


FOUND = {study.name: answered(study) for study in studies(JobScope())}


class TestStudies:
    """The studies and their points."""

    def test_names_are_of_one_study_each(self) -> None:
        names = [study.name for study in studies(JobScope())]
        assert len(names) == len(set(names))

    def test_what_is_compared_is_given_the_same_jobs(self) -> None:
        for study in studies(JobScope()):
            for value in {point.place for point in study.points}:
                jobs = {
                    tuple((case.engine, case.sizes, case.rate, case.cv, case.jobs, case.seed) for case in point.cases)
                    for point in study.points
                    if point.place == value
                }
                assert len(jobs) == 1, study.name

    def test_lines_differ(self) -> None:
        for study in studies(JobScope()):
            cases = [case for point in study.points for case in point.cases]
            assert len(cases) == len(set(cases)), study.name

    def test_the_artifacts_runs_are_as_published(self) -> None:
        """400 jobs at five rates, batches of 16, Poisson."""
        artifact = FOUND["artifact"]
        assert list(artifact.line(FAST)) == [(1.0,), (2.0,), (2.5,), (3.0,), (4.0,)]
        case = artifact.points[0].runs[0].case
        assert (case.jobs, case.built_engine.batch, case.cv) == (400, 16, 1.0)
        assert [found.published_per_token_s for found in artifact.line(FAST).values()] == [
            0.039,
            0.047,
            0.048,
            0.063,
            0.106,
        ]
        assert [found.published_per_token_s for found in artifact.line(FCFS).values()][-1] == 1.459
        assert artifact.line(Scheduler.SRPT.value)[1.0,].published_per_token_s is None

    def test_a_coarse_scope_keeps_the_last_values(self) -> None:
        whole, thin = ({study.name: study for study in studies(JobScope(thin=thin))} for thin in (False, True))
        for name, study in thin.items():
            assert study.points[-1].place == whole[name].points[-1].place
        assert len(thin["v1-rate"].points) < len(whole["v1-rate"].points)

    def test_a_trace_is_used_where_there_is_one(self) -> None:
        path = Path("conv.csv")
        (study,) = [study for study in studies(JobScope(conv=path)) if study.name == "azure-conv"]
        case = study.points[0].cases[0]
        assert case.files == (path,)
        assert "Azure conv" in sizes_name(case.sizes)
        assert isinstance(case.sizes, AzureSizes)


class TestFindings:
    """Means over seeds, and ratios."""

    def test_figures_are_means_over_the_seeds(self) -> None:
        """Two of them: 6 and 7 s, 2 and 3 s."""
        at_2 = {found.point.line: found for found in FOUND["v1-rate"].points if found.at == 2.0}
        assert (at_2[FCFS].jct_s["mean"], at_2[FAST].jct_s["p99"]) == (6.5, 2.5)
        assert [at_2[FCFS].mean(name) for name in ("peak_kv_tokens", "utilisation", "live_at_last_arrival")] == [
            1000.5,
            0.5,
            3,
        ]

    def test_a_steady_study_looks_at_the_middle(self) -> None:
        assert FOUND["artifact-long"].line(FAST)[1.0,].jct_s["mean"] == 2.5
        assert FOUND["artifact-steady"].line(FAST)[1.0,].jct_s["mean"] == 5.0

    def test_a_ratio_is_of_one_value_each(self) -> None:
        assert list(jct_ratios(FCFS)(FOUND["v1-theta"])) == [2.6] * 5

    def test_headlines_are_ranges(self) -> None:
        rows = {row.name: row for row in headlines(FOUND)}
        by_rate = rows["mean JCT of FCFS over FastServe's, by rate"]
        assert (by_rate.paper, by_rate.ours, by_rate.is_close) == ((1.0, 4.3), (2.6, 2.6), False)
        assert all(row.why for row in rows.values())
        assert rows["mean JCT of MLFQ without preemption over FastServe's"].is_close is None

    def test_what_was_not_looked_at_has_no_headline(self) -> None:
        names = [row.name for row in headlines({"v1-cv": FOUND["v1-cv"]})]
        assert names == ["mean JCT of FCFS over FastServe's, by burstiness"]

    @pytest.mark.parametrize(("ours", "expected"), [(2.9, False), (3.1, True), (4.9, True), (5.1, False)])
    def test_close_is_within_a_quarter(self, ours: float, expected: bool) -> None:
        assert is_close((1.0, ours), (1.0, 4.0)) is expected


@pytest.mark.parametrize("name", ["v1-rate", "memory-cv", "starve-limit", "artifact", "peak-kv"])
def test_a_study_is_drawn(tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    save(plot_study(FOUND[name]), tmp_path / "study.png")
    assert (tmp_path / "study.png").read_bytes().startswith(b"\x89PNG")


def test_a_finding_of_one_seed_is_that_run() -> None:
    study = studies(JobScope(seeds=(7,)))[0]
    point = study.points[0]
    (case,) = point.cases
    assert JobFinding(study, point, (summary(case, 4.0),)).jct_s == dict.fromkeys(FIGURES, 4.0)
