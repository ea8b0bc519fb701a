"""Runs of jobs in a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import spotwise.studies
from spotwise.simulator.searches.kept_runs import KeptRuns
from spotwise.studies.fastserve.engines import OPT_ON_80GB, Queues, Scheduler
from spotwise.studies.fastserve.job_runs import JobCase, JobSummary, simulate_jobs
from spotwise.studies.fastserve.job_sizes import AzureSizes, JobSizes, ZipfSizes
from spotwise.studies.fastserve.studies import CHATS
from tests.unit.simulator.runs.kept import forget


@pytest.fixture(autouse=True)
def _other_process() -> None:
    """Make each test read files and code as a new process does."""
    forget()


class Counting:
    """Simulates, and counts."""

    def __init__(self) -> None:
        self.runs: list[JobCase] = []

    def __call__(self, case: JobCase) -> JobSummary:
        """Run a case."""
        self.runs.append(case)
        return simulate_jobs(case)


@pytest.mark.parametrize("sizes", [ZipfSizes(20, 5, 1.0), CHATS, AzureSizes("conv", None, 64)])
def test_runs_of_jobs_are_kept_as_well(tmp_path: Path, sizes: JobSizes) -> None:
    path, run = tmp_path / "runs", Counting()
    case = JobCase(OPT_ON_80GB.name, Scheduler.FASTSERVE, sizes, 2.0, 5, queues=Queues(starve_limit_s=None))

    first = KeptRuns(path, run, JobSummary)(case)
    forget()
    assert KeptRuns(path, run, JobSummary)(case) == first
    assert run.runs == [case]
    KeptRuns(path, run, JobSummary)(replace(case, queues=Queues()))
    assert len(run.runs) == 2


def test_the_code_of_a_study_is_part_of_its_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is kept until the code changes that made it, which is the study's as well as the simulator's."""
    path, run, changed = tmp_path / "runs", Counting(), tmp_path / "studies"
    case = JobCase(OPT_ON_80GB.name, Scheduler.FASTSERVE, ZipfSizes(20, 5, 1.0), 2.0, 5)
    KeptRuns(path, run, JobSummary)(case)
    changed.mkdir()
    (changed / "job_runs.py").write_text("# made otherwise")
    monkeypatch.setattr(spotwise.studies, "__path__", [*spotwise.studies.__path__, str(changed)])
    forget()
    KeptRuns(path, run, JobSummary)(case)
    assert run.runs == [case, case]
