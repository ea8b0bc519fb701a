"""The scheduler on top of workers that only count."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from hatchling.builders.wheel import WheelBuilder

from spotwise.benchmarks.counting_fleet import CountingFleet
from spotwise.benchmarks.planning import changes, choices
from spotwise.benchmarks.scheduler import measure
from spotwise.core.messages import mesh as m
from spotwise.core.scheduler.role import SchedulerRole
from tests.unit.cli.command_line import CommandLine


def test_every_decision_is_timed_once() -> None:
    """One figure for each event that placed a request, however many it placed."""
    placed: list[int] = []
    taken = measure(20, 4096, 200, 1, placed.append)
    assert len(taken.answers_us) >= 200
    assert len(taken.decisions_us) == len(taken.answers_us)
    assert taken.waited == 0
    assert sum(placed) == len(taken.answers_us)


def test_a_fleet_that_is_full_lets_requests_wait() -> None:
    taken = measure(20, 300, 200, 1, lambda count: None)
    assert taken.waited > 0
    assert len(taken.answers_us) >= 200


@pytest.mark.parametrize("blocks", [300, 4096])
def test_the_fleet_reports_what_it_was_given_and_gives_it_back(blocks: int) -> None:
    """Heartbeats equal the scheduler's own estimates, and at the end no worker holds anything."""
    fleet, role = CountingFleet(10, blocks, seed=2), SchedulerRole("scheduler-0")
    for worker in fleet.workers.values():
        role.handle(worker.report(), 1000.0)
    for _ in range(40):
        for answer in fleet.take(role.handle(fleet.submission(), 1000.0)):
            fleet.take(role.handle(answer, 1000.0))
    assert fleet.serving > 0
    believed = {view.id: (view.remaining_tokens, view.free_tokens, view.is_off_pool) for view in role.pools}
    for beat in fleet.beats(10):
        role.handle(beat, 1000.0)
    reported = {view.id: (view.remaining_tokens, view.free_tokens, view.is_off_pool) for view in role.pools}
    assert reported == believed
    closed = fleet.work(0, 0)
    assert all(order.finished for order in closed)
    assert fleet.serving == 0
    loads = [worker.report().load or m.WorkerLoad() for worker in fleet.workers.values()]
    assert [(load.remaining_tokens, load.pending_prompt_tokens, load.kv_blocks_free) for load in loads] == [
        (0, 0, blocks)
    ] * 10


def test_with_lives_some_requests_pass_over_a_shorter_queue() -> None:
    """As often as fleets are reported: one report for as many decisions as workers."""
    taken = measure(80, 4096, 800, 1, lambda count: None, knows_lives=True)
    assert taken.by_life > 0
    assert len(taken.reports_us) == 10


def test_the_command_prints_figures_and_targets(spotwise: CommandLine) -> None:
    ended = spotwise("bench", "dev", "scheduler", "--quick")
    assert ended.status == 0, ended.stderr
    for name in ("with room: decision p50", "full: decision p99", "<= 1x"):
        assert name in ended.stdout
    assert "by life" not in ended.stdout


def test_the_command_repeats_each_run_with_lives(spotwise: CommandLine) -> None:
    ended = spotwise("bench", "dev", "scheduler", "--quick", "--lives")
    assert ended.status == 0, ended.stderr
    for name in ("with room, by life: decision p50", "full, by life: report of the fleet p50"):
        assert name in ended.stdout


def test_every_decision_is_measured(spotwise: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "planning.json"
    ended = spotwise(*f"bench dev planning --quick --json {file}".split())
    assert ended.status == 0, ended.stderr
    document = orjson.loads(file.read_bytes())
    assert document["environment"]["devices"] == 64
    rows = document["rows"]
    chosen = [row for row in rows if row["name"].startswith("configuration:")]
    assert len(chosen) == len(list(choices(64)))
    assert not any("nothing fits" in row["name"] for row in chosen)
    maps = [row for row in rows if row["name"].endswith("device map, s")]
    plans = [row for row in rows if "plan of" in row["name"]]
    assert len(maps) == len(plans) == len(list(changes(64)))
    assert not any("plan of 0 transfers" in row["name"] for row in plans)
    assert all(row["ours"] > 0 for row in rows)
    assert all(row["reference"] == 1.0 for row in (*chosen, *maps))


ROOT = Path(__file__).parents[3]


def test_the_wheel_has_no_developer_benchmark_and_no_study() -> None:
    """Developer benchmarks and papers' studies need a checkout; `spotwise bench load` and `simulate run` need none."""
    carried = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {"spotwise/cli/bench/load.py", "spotwise/cli/simulate/run.py"} <= carried
    left = ("spotwise/benchmarks/", "benchmarks/", "spotwise/studies/", "studies/", "tests/")
    assert [path for path in carried if path.startswith(left)] == []
