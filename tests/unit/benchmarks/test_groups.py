"""Groups of devices as the benchmarks read and report them: shapes, walks through shapes, lost processes, changes, streams."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest

from spotwise.benchmarks import group_faults
from spotwise.benchmarks.group_faults import Fault, fault_rows, prompts_of
from spotwise.benchmarks.groups import parse_shapes
from spotwise.benchmarks.groups_at_scale import change_rows
from spotwise.benchmarks.moved_streams import Interrupted, Stream
from spotwise.benchmarks.moves import _rows
from spotwise.benchmarks.planner_load import PlannerLoad, counts_of
from spotwise.benchmarks.reshape import all_pairs, parse_walk
from spotwise.benchmarks.scaled_changes import Carried, ScaledChange
from spotwise.cli.errors import OptionError
from spotwise.core.messages.worker import SurveyWorker
from spotwise.migration_planner.metrics import PlannerMetrics
from tests.unit.core.builders import worker_member


def _fault(**changes: Any) -> Fault:
    usual: dict[str, Any] = {"free_s": 0.7, "whole_s": 8.0, "gap_s": 9.0}
    usual |= dict.fromkeys(("lost", "doubled", "wrong", "blocks", "sequences"), 0)
    return Fault(1, 2, "SIGSTOP", **{**usual, **changes})


def test_shapes_are_stages_by_shards() -> None:
    assert parse_shapes("1x3, 2x1", "--shapes") == [(1, 3), (2, 1)]
    assert parse_shapes("", "--faults") == []


@pytest.mark.parametrize("text", ["1x1", "3", "0x3", "2x-1", "axb"])
def test_what_is_no_group_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--shapes"):
        parse_shapes(text, "--shapes")


def test_survivors_have_a_second() -> None:
    """The target is met by 700 ms and missed by 1,300; a fault whose end no process logged has no row."""
    fast, slow, unknown = (fault_rows("2x3", [_fault(free_s=free_s)]) for free_s in (0.7, 1.3, None))
    assert fast[0].name == "2x3: SIGSTOP of stage 1, shard 2: survivors free after ms"
    assert fast[0].holds and not slow[0].holds
    assert len(unknown) == len(fast) - 1


def test_losses_of_all_faults_add_up() -> None:
    rows = {row.name: row.ours for row in fault_rows("2x3", [_fault(lost=2, blocks=1), _fault(wrong=3, sequences=4)])}
    assert rows["2x3: tokens lost, all faults"] == 2
    assert rows["2x3: tokens wrong, all faults"] == 3
    assert rows["2x3: tokens doubled, all faults"] == 0
    assert rows["2x3: KV blocks and reservations left"] == 1
    assert rows["2x3: sequences left in engines"] == 4


def test_prompts_are_the_same_for_every_shape_and_differ_by_seed() -> None:
    assert prompts_of(2, 8, 1) == prompts_of(2, 8, 1) != prompts_of(2, 8, 2)


def test_the_end_of_a_group_is_read_from_a_members_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one after the loss; an earlier one was of another group."""
    log = tmp_path / "w.log"
    lines = [
        "12:00:00.000000Z [info] group_left",
        "12:00:05.250000Z [info] group_left",
        "12:00:09.000000Z [info] group_left",
    ]
    log.write_text("".join(f"2026-11-20T{line}\n" for line in lines))
    monkeypatch.setattr(group_faults, "run_folder", lambda _: SimpleNamespace(log_path=lambda _: log))
    lost_s = 1795176000.0 + 1.0  # 2026-11-20 12:00:01
    at_s = group_faults.left_at("mesh", "w", lost_s)
    assert at_s is not None and at_s - lost_s == pytest.approx(4.25)
    assert group_faults.left_at("mesh", "w", lost_s + 60.0) is None


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


@pytest.mark.parametrize("count", [2, 3, 6])
def test_a_walk_takes_every_ordered_pair_once(count: int) -> None:
    """And ends where it began, so that the mesh needs no change beside those that are measured."""
    shapes = [(number, 1) for number in range(1, count + 1)]
    walk = all_pairs(shapes)
    assert sorted(itertools.pairwise(walk)) == sorted(itertools.permutations(shapes, 2))
    assert walk[0] == walk[-1]


def test_pairs_are_read_in_their_order() -> None:
    assert parse_walk("1x1>2x1, 2x1>1x3") == [(1, 1), (2, 1), (1, 3)]
    assert len(parse_walk("all")) == 31


@pytest.mark.parametrize("text", ["", "1x1", "1x1>1x1", "1x1>2", "1x1>2x1,1x1>2x1", "1x0>1x1"])
def test_other_pairs_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--pairs"):
        parse_walk(text)


def stream(*arrivals: tuple[float, int]) -> Stream:
    return Stream([1, 2, 3], arrivals=[*arrivals])


def test_the_longest_gap_counts_from_the_last_token_before_the_notice() -> None:
    seen = stream((0.0, 1), (5.0, 2), (5.1, 3), (5.2, 4), (5.9, 5), (6.0, 6))
    assert seen.longest_gap_s(5.3) == pytest.approx(0.7)
    assert seen.longest_gap_s(5.95) == pytest.approx(0.1)
    assert seen.usual_gap_s(5.25) == pytest.approx(0.1)


def test_tokens_that_were_seen_before_end_no_gap() -> None:
    """A request sent anew brings the old tokens first."""
    seen = stream((0.0, 1), (0.1, 2), (1.0, 2), (1.1, 3))
    assert seen.longest_gap_s(0.1) == pytest.approx(1.0)


def test_moves_are_compared_with_recomputing_at_the_longest_prompt() -> None:
    """Only requests that moved; beyond 50 ms, in gaps of the time before."""
    moved = {"tokens": 100, "copied_before": 90, "kv_bytes": 10**6, "pause_s": 0.02}
    interrupted = [
        Interrupted("move", 1024, 0.08, 0.03, 0, moved),
        Interrupted("move", 64, 0.11, 0.03, 0, moved),
        Interrupted("move", 1024, 9.0, 0.03, 0, None),
        Interrupted("recompute", 1024, 0.8, 0.03, 1100, None),
    ]
    rows = {row.name: row for row in _rows(interrupted, ["move", "recompute"], 1024)}
    compared = rows["move against recompute, prompt of 1024, ms"]
    assert (compared.ours, compared.reference, compared.holds) == (pytest.approx(80.0), pytest.approx(800.0), True)
    beyond = rows["move: longest gap beyond 50 ms, in iterations of the time"]
    assert beyond.ratio == pytest.approx((95.0 - 50.0) / 30.0)
    assert rows["move: requests that moved"].ours == 2
    assert rows["recompute: tokens computed again"].ours == 1100
