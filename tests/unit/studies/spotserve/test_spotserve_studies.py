"""The SpotServe paper's questions, and what is made of the answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from spotwise.simulator.runs.plots import save
from spotwise.simulator.spotserve.systems import SPOTSERVE
from spotwise.studies.spotserve.cases import HISTOGRAM_S, Availability, SpotCase, SpotSummary, simulate_spot
from spotwise.studies.spotserve.claims import LATENCY_S
from spotwise.studies.spotserve.findings import SpotFinding, SpotFindings, headline, headlines, is_close, within
from spotwise.studies.spotserve.plots import plot_study
from spotwise.studies.spotserve.studies import (
    APART,
    AS_PUBLISHED,
    BURSTY,
    SEGMENTS,
    SpotScope,
    SpotStudy,
    studies,
)
from spotwise.studies.study import Study, StudyPoint, findings_of
from tests.unit.studies.spotserve.spot_artifact import write_arrivals, write_profiles, write_segment

SCOPE = SpotScope(Path("data"))
STUDIES = {study.name: study for study in studies(SCOPE)}


def summary(case: SpotCase, latency_s: float) -> SpotSummary:
    """Mean is the latency, P99 twice that; the artifact counts half of both."""
    figures = {"mean": latency_s, "p50": latency_s, "p90": latency_s, "p99": 2 * latency_s, "max": 3 * latency_s}
    counted = {name: value / 2 for name, value in figures.items()}
    none = tuple(0 for _ in range(len(HISTOGRAM_S) + 1))
    changes = ((60.0, "2,3,4,4", 1.5),)
    return SpotSummary(
        case, 100, figures, 90, counted, 80, 43.0, 5, 1000, changes, 10**9, 0, 1200.0, 3600.0, 0.0, 2.0, none, 0.1
    )


def answered(study: SpotStudy, spotserve_s: float = 10.0, others_s: float = 20.0) -> SpotFindings:
    """SpotServe takes some seconds, all else others; every further seed adds one."""
    cases = [(point.line, case) for point in study.points for case in point.cases]
    runs = {
        case: summary(case, (spotserve_s if line.startswith("SpotServe") else others_s) + case.load.seed)
        for line, case in cases
    }
    return findings_of(study, runs, SpotFinding)


class TestStudies:
    """The studies and their points."""

    def test_lines_of_a_study_are_different_runs(self) -> None:
        for study in STUDIES.values():
            cases = [case for point in study.points for case in point.cases]
            assert len(set(cases)) == len(cases), study.name

    def test_what_is_compared_has_the_same_requests(self) -> None:
        """On one trace under one load all systems get the same, seed for seed."""
        for study in STUDIES.values():
            for place in {point.place for point in study.points}:
                loads = {
                    tuple((case.availability, case.load, case.required_rate) for case in point.cases)
                    for point in study.points
                    if point.place == place
                }
                assert len(loads) == 1, (study.name, place)

    def test_bursty_requests_are_drawn_with_every_seed(self) -> None:
        for point in STUDIES["gpt-20b"].points:
            assert len(point.cases) == (1 if point.place[1] == AS_PUBLISHED else len(SCOPE.seeds))
            assert all((case.load.cv == 6.0) is (point.place[1] == BURSTY) for case in point.cases)

    def test_every_latency_of_the_paper_is_looked_at(self) -> None:
        looked_at = {
            (point.cases[0].model, point.place[0], point.line) for study in STUDIES.values() for point in study.points
        }
        assert set(LATENCY_S) <= looked_at

    def test_a_case_names_what_it_reads(self) -> None:
        """A case has the files that it reads, so that a run is not reused after a file has changed."""
        point = STUDIES["llama-30b"].points[0]
        assert [path and path.name for path in point.cases[0].files] == [
            SEGMENTS["A_S"],
            "query_tpt0.2_cv6.txt",
            "megatron_h7168_profile.json",
        ]
        fixed = STUDIES["on-demand"].points[-1].cases[0]
        assert fixed.files[:2] == (None, None)


class TestFindings:
    """The figures made of runs."""

    def test_figures_are_means_over_seeds(self) -> None:
        findings = answered(STUDIES["gpt-20b"])
        bursty = findings.line("SpotServe")["A_S", BURSTY]
        assert bursty.latency_s["mean"] == 11.0
        assert bursty.counted_latency_s["p99"] == 11.0
        assert bursty.goodput_per_dollar == 40.0
        assert bursty.mean_changes == 1.0

    def test_ours_is_put_beside_the_papers(self) -> None:
        """Each printed number of the paper has ours beside it, close within 15%."""
        finding = answered(STUDIES["gpt-20b"]).line("SpotServe")["A_S", AS_PUBLISHED]
        assert finding.ratio("mean") == pytest.approx(10.0 / 23.5)
        assert finding.ratio("p99", counted=True) == pytest.approx(10.0 / 46.1)
        assert finding.ratio("p50") is None
        assert finding.ratio("p50", counted=True) is None
        assert [is_close(ratio) for ratio in (0.84, 0.86, 1.14, 1.16)] == [False, True, True, False]

    def test_how_many_of_the_papers_latencies_are_found_again(self) -> None:
        """24 on segments; the mean of SpotServe on B_S+O is 20.7 s, and so are others' means about as long."""
        found = {"gpt-20b": answered(STUDIES["gpt-20b"], 20.7, 30.0)}
        close, count = within(found)
        assert count == 24
        ratios = [
            finding.latency_s[figure] / finding.paper_s[figure]
            for finding in found["gpt-20b"].points
            if finding.load == AS_PUBLISHED
            for figure in ("mean", "p99")
        ]
        assert close == sum(0.85 <= ratio <= 1.15 for ratio in ratios) > 0
        assert within(found, counted=True)[0] < close
        assert within(found | {"ablation": answered(STUDIES["ablation"], 20.7, 30.0)})[1] == 24
        assert within({}) == (0, 0)

    def test_headlines_are_the_papers_ratios(self) -> None:
        found = {name: answered(study) for name, study in STUDIES.items()}
        rows = {row.name: row for row in headlines(found)}
        assert rows["LLaMA-30B: P99 of Rerouting over SpotServe's"].ours == (2.0, 2.0)
        assert rows["GPT-20B, B_S: P99 without the controller over SpotServe's"].ours == (2.0, 2.0)
        assert rows["GPT-20B: P99 without the planner besides, over with it"].ours == (1.0, 1.0)
        (spared,) = [row for name, row in rows.items() if "spared" in name]
        assert spared.ours == (0.0, 0.0)  # as dear, and as many answered
        assert all(row.why for row in rows.values())
        assert headlines({}) == []

    def test_a_headline_is_close_if_both_ends_are(self) -> None:
        """One of them is not enough."""
        assert headline("", (1.0, 2.0), (1.1, 2.2), "").is_close
        assert not headline("", (1.0, 2.0), (1.0, 3.0), "").is_close

    @pytest.mark.parametrize("name", ["on-demand", "whole"])
    def test_a_study_is_drawn(self, tmp_path: Path, name: str) -> None:
        pytest.importorskip("matplotlib")
        save(plot_study(answered(STUDIES[name])), tmp_path / "figure.png")
        assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


class TestRuns:
    """A case is run."""

    @pytest.fixture
    def case(self, tmp_path: Path) -> SpotCase:
        """GPT-20B on four instances, of which one goes and one comes; 40 requests."""
        (tmp_path / "spotserve" / "availability").mkdir(parents=True)
        (tmp_path / "spotserve" / "arrivals").mkdir()
        write_profiles(tmp_path / "spotserve" / "profiles")
        availability = tmp_path / "spotserve" / "availability" / SEGMENTS["A_S"]
        write_segment(availability, {0.0: 6, 120.0: 5, 240.0: 6}, 400.0)
        write_arrivals(tmp_path / "spotserve" / "arrivals" / "query_tpt0.35_cv6.txt", 0.1, 60)
        (point,) = [
            point
            for point in studies(SpotScope(tmp_path))[0].points
            if (point.place, point.line) == (("A_S", AS_PUBLISHED), SPOTSERVE.name)
        ]
        return point.cases[0]

    def test_every_request_that_comes_in_the_trace_is_counted(self, case: SpotCase) -> None:
        run = simulate_spot(case)
        assert run.requests == 39  # the fortieth comes at the very end
        assert sum(run.histogram) == run.requests
        assert run.counted <= run.requests
        assert run.latency_s["p50"] <= run.latency_s["p99"] <= run.latency_s["max"]
        assert run.trace_s == 400.0
        assert run.spot_s == 6 * 400.0 - 120.0
        assert run.cost_usd == pytest.approx(run.spot_s / 3600 * 1.9046)
        assert run == simulate_spot(case)

    def test_a_run_is_kept_as_json(self, case: SpotCase) -> None:
        run, adapter = simulate_spot(case), TypeAdapter(SpotSummary)
        assert adapter.validate_json(adapter.dump_json(run)) == run

    def test_a_fleet_that_stays_is_billed_as_on_demand(self, case: SpotCase) -> None:
        run = simulate_spot(replace(case, availability=Availability(fixed_nodes=4, fixed_s=90.0)))
        assert (run.spot_s, run.on_demand_s) == (0.0, 360.0)
        assert run.cost_usd == pytest.approx(0.1 * 3.912)

    def test_requests_in_time_are_those_within_the_deadline(self, case: SpotCase) -> None:
        run = simulate_spot(case)
        below = [bound for bound in HISTOGRAM_S if bound <= run.deadline_s]
        assert sum(run.histogram[: len(below)]) <= run.in_time <= sum(run.histogram[: len(below) + 1])
        assert run.goodput_per_dollar == pytest.approx(run.in_time / run.cost_usd)

    def test_a_part_of_a_trace_is_run(self, case: SpotCase) -> None:
        run = simulate_spot(replace(case, availability=replace(case.availability, from_s=100.0, until_s=200.0)))
        assert run.trace_s == 100.0
        assert run.spot_s == 6 * 100.0 - 80.0

    def test_a_trace_that_ends_with_too_few_machines_ends_with_a_report(self, case: SpotCase) -> None:
        path = case.data / "spotserve" / "availability" / SEGMENTS["A_S"]
        write_segment(path, {0.0: 4, 100.0: 2}, 400.0)
        run = simulate_spot(case)
        assert run.requests == 39 and 0 < run.unanswered < 39
        assert sum(run.histogram) == run.requests - run.unanswered
        assert run.why_unanswered == "no configuration of GPT-20B fits the 2 instances that are left"

    def test_phases_apart_on_four_machines_end(self, case: SpotCase) -> None:
        """Two pipelines of twelve devices do not fit sixteen: nothing is ever answered, and no claim is made of it."""
        write_segment(case.data / "spotserve" / "availability" / SEGMENTS["A_S"], {0.0: 4}, 400.0)
        apart = replace(case, system=APART)
        run = simulate_spot(apart)
        assert (run.requests, run.unanswered, run.latency_s) == (39, 39, {})
        assert run.why_unanswered == "no configuration of GPT-20B fits the 4 instances that are left"
        point = StudyPoint(("A_S", AS_PUBLISHED), SPOTSERVE.name, (apart,))
        study = Study("one", "one", ("trace", "requests"), (point,))
        finding = SpotFinding(study, point, (run,))
        assert (finding.unanswered, finding.ratio("p99")) == (39, None)

    def test_rates_of_every_minute_make_requests(self, case: SpotCase) -> None:
        (case.data / "spotserve" / "arrivals" / "rates.csv").write_text("0,2,0\n")
        load = replace(case.load, file=None, rates_file="rates.csv", cv=0.1)
        arrivals = load.arrivals(case.data, 180.0)
        assert len(arrivals) == pytest.approx(120, abs=3)
        assert all(60 <= time_s <= 120 for time_s in arrivals.times_s)


def test_a_point_without_runs_in_it_has_no_ratio() -> None:
    study = STUDIES["gpt-20b"]
    finding = SpotFinding(study, study.points[0], ())
    assert "mean" in finding.paper_s
    assert finding.ratio("mean") is None
    assert finding.ratio("mean", counted=True) is None
