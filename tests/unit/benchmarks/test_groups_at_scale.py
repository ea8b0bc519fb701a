"""What `spotwise bench dev groups-at-scale` reports of a change, and how it reads the planner's counts."""

from __future__ import annotations

from collections import Counter

from prometheus_client import generate_latest

from spotwise.benchmarks.groups_at_scale import change_rows
from spotwise.benchmarks.moved_streams import Stream
from spotwise.benchmarks.planner_load import PlannerLoad, counts_of
from spotwise.benchmarks.scaled_changes import Carried, ScaledChange
from spotwise.core.messages.worker import SurveyWorker
from spotwise.migration_planner.metrics import PlannerMetrics
from tests.unit.core.builders import worker_member

AT_REST = PlannerLoad(10.0, 1.0, Counter(Member=1000), Counter())


def test_counts_are_those_of_the_planners_series() -> None:
    metrics = PlannerMetrics()
    for _ in range(3):
        metrics.received(worker_member("w"))
    metrics.sent(SurveyWorker("planner-0", 1))
    received, sent = counts_of(generate_latest(metrics.registry).decode())
    assert received == Counter(Member=3)
    assert sent == Counter(SurveyWorker=1)


def test_a_load_since_another_is_the_difference() -> None:
    later = PlannerLoad(14.0, 1.5, Counter(Member=1400, MoveEnded=2), Counter(MoveRequest=2))
    since = later.since(AT_REST)
    assert (since.seconds, since.cpu_s, since.cores) == (4.0, 0.5, 0.125)
    assert since.received == Counter(Member=400, MoveEnded=2)


def test_a_change_is_shown_beside_what_was_expected_of_it() -> None:
    """The pause against the planner's expectation, the planner's processor time against that at rest."""
    load = PlannerLoad(4.0, 0.6, Counter(Member=400, MoveEnded=2, WorkerSurveyed=3), Counter(MoveRequest=2))
    change = ScaledChange("c", Carried(0.2, 0.1), load, (0.3, 0.2), (0.15,), 0.1, (0.1, 0.12), 0, 0, 0)
    rows = {row.name: row for row in change_rows(change, AT_REST)}
    pause = rows["c: pause by the ledger, median ms"]
    assert (round(pause.ours), round(pause.reference or 0), pause.holds) == (110, 100, True)
    assert rows["c: planner CPU, s"].reference == 0.4
    assert rows["c: heartbeats to the planner"].ours == 400
    assert rows["c: other messages to the planner"].ours == 5
    assert rows["c: requests moved"].ours == 2
    assert "c: until new groups served, s" not in rows
    assert rows["c: longest gap of streams that stayed, max ms"].ours == 150


def test_gaps_after_a_change_are_none_of_it() -> None:
    stream = Stream([1], [1, 2, 3, 4], [(0.0, 1), (1.0, 2), (4.0, 3), (9.0, 4)])
    assert stream.longest_gap_s(0.5) == 5.0
    assert stream.longest_gap_s(0.5, until_s=2.0) == 3.0
