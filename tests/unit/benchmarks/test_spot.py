"""`spotwise bench spot`: its built-in trace has what it must have, and its figures follow from what was seen."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from spotwise.benchmarks.spot import POLICY, SYSTEMS, parse_systems, poisson_load
from spotwise.benchmarks.spot_report import Alone, SpotFigures, compared_rows, plot_runs
from spotwise.benchmarks.spot_run import FleetSample, LostInstance, SpotAnswer, SpotRequest, SpotRunResult
from spotwise.benchmarks.spot_simulated import agreeing_share, agreement_rows, simulate_run
from spotwise.cli.errors import OptionError
from spotwise.cli.simulate.market_options import PurchaseOptions, purchase_terms
from spotwise.core.planner.group_choice import written
from spotwise.files.fleet_file import read_fleet
from spotwise.files.spot_traces import SpotEvent, SpotEventKind, SpotTrace, read_spot_trace
from spotwise.worker.simulated.groups.part import simulated_model

BUILT_IN = Path(__file__).parents[3] / "benchmarks" / "spotwise" / "benchmarks" / "spot_fleet"
#: Four tokens, the first after a second, then one each half second.
ALONE = [Alone((7, 8, 9, 10), (1.0, 1.5, 2.0, 2.5)), Alone((1, 2, 3, 4), (1.0, 1.5, 2.0, 2.5))]


def test_the_built_in_trace_has_all_kinds_of_events() -> None:
    """At least 20 events in less than six minutes: a second notice while the first one runs, no notice, and a whole pool."""
    trace = read_spot_trace(BUILT_IN / "trace.txt")
    removals = [event for event in trace.events if event.kind is SpotEventKind.REMOVE]
    assert len([event for event in trace.events if event.nodes]) >= 20
    assert trace.end_s <= 360
    notices = [(event.time_s - (event.notice_s or 0.0), event.time_s) for event in removals if event.notice_s]
    assert any(first < second < until for first, until in notices for second, _ in notices)
    assert any(event.notice_s == 0 for event in removals)
    counts = dict(trace.counts())
    assert {event.notice_s == 0 for event in removals if counts[event.time_s] == 0} == {True, False}
    assert max(counts.values()) <= (read_fleet(BUILT_IN / "fleet.toml").local or pytest.fail("no local fleet")).limit


def test_systems_are_some_of_the_known_ones() -> None:
    assert parse_systems("restart, spotwise") == ["restart", "spotwise"]
    for wrong in ("", "spotwise,spotwise", "vllm"):
        with pytest.raises(OptionError, match=", ".join(SYSTEMS)):
            parse_systems(wrong)


def test_a_load_is_poisson_and_the_same_for_a_seed() -> None:
    load = poisson_load(random.Random(3), 2.0, 1000.0, 64)
    assert load == poisson_load(random.Random(3), 2.0, 1000.0, 64)
    assert len(load) == pytest.approx(2000, rel=0.1)
    assert all(8 <= each.tokens <= 64 and 0 < each.at_s < 1000 for each in load)


def run(*answers: SpotAnswer, losses: tuple[LostInstance, ...] = (), spent: float = 0.5) -> SpotRunResult:
    samples = [FleetSample(0.0, 2, "1,1,1", "1,1,1", 0, 1.0), FleetSample(10.0, 1, "", "1,1,1", 1, 1.0 + spent)]
    return SpotRunResult("spotwise", 10.0, list(answers), samples, list(losses))


def answer(at_s: float, ended_s: float, *token_ids: int, prompt: int = 0, tokens: int = 4) -> SpotAnswer:
    return SpotAnswer(SpotRequest(at_s, prompt, tokens), ended_s, token_ids=list(token_ids))


def test_figures_count_what_was_lost_wrong_and_late() -> None:
    failed = answer(0.0, 1.0)
    failed.failure = "cut off"
    figures = SpotFigures.of(
        run(
            answer(0.0, 5.0, 7, 8, 9, 10),  # twice its 2.5 s alone: in time
            answer(1.0, 6.1, 1, 2, 3, 4, prompt=1),  # just not
            answer(2.0, 4.0, 7, 8, 0, tokens=3),  # its last token is wrong
            failed,
        ),
        ALONE,
        objective=2.0,
    )
    assert (figures.requests, figures.lost, figures.wrong_tokens, figures.in_time) == (4, 1, 1, 2)
    assert figures.p50_s == 5.0
    assert figures.dollars == pytest.approx(0.5)
    assert figures.per_1000 == pytest.approx(250.0)


def test_the_last_instance_has_nowhere_to_move_to() -> None:
    """What is computed again after its loss is not held against the notice, however long that was."""
    hit = answer(1.0, 9.0, 7, 8, 9, 10)
    hit.recomputed = [(5.0, 30)]
    for left, noticed in ((1, 30), (0, 0)):
        figures = SpotFigures.of(run(hit, losses=(LostInstance(4.0, "a", 60.0, left),)), ALONE, objective=2.0)
        assert (figures.recomputed_noticed, figures.recomputed_other) == (noticed, 30 - noticed)
        assert figures.losses_noticed == left


def test_tokens_computed_again_belong_to_the_losses_before_them() -> None:
    """A loss whose notice was less than five pauses of a move excuses them; one with more does not, nor does none at all."""
    moved = answer(0.0, 5.0, 7, 8, 9, 10)
    moved.moves, moved.move_s, moved.gap_s = 1, 0.5, 0.6
    again = answer(0.0, 5.0, 7, 8, 9, 10)
    again.recomputed = [(101.0, 30)]
    losses = (LostInstance(100.0, "i-1", 4.0),)
    figures = SpotFigures.of(run(moved, again, losses=losses), ALONE, 2.0)
    assert (figures.recomputed_noticed, figures.recomputed_other, figures.losses_noticed) == (30, 0, 1)
    figures = SpotFigures.of(run(moved, again, losses=(LostInstance(100.0, "i-1", 0.0),)), ALONE, 2.0)
    assert (figures.recomputed_noticed, figures.recomputed_other) == (0, 30)
    figures = SpotFigures.of(run(moved, again), ALONE, 2.0)
    assert (figures.recomputed_noticed, figures.recomputed_other) == (30, 0)


def test_systems_are_compared_with_the_first_one(tmp_path: Path) -> None:
    ours = run(answer(0.0, 5.0, 7, 8, 9, 10))
    theirs = run(answer(0.0, 20.0, 7, 8, 9, 10))
    theirs.system = "restart"
    rows = {
        row.name: row for row in compared_rows([SpotFigures.of(each, ALONE, 2.0) for each in (ours, theirs)], 600.0)
    }
    assert rows["p99 against restart, s"].ratio == pytest.approx(0.25)
    assert rows["p99 against restart, s"].holds
    assert rows["answers in time per dollar against restart"].ours == pytest.approx(2.0)
    plot_runs([ours, theirs], tmp_path / "runs.png")
    assert (tmp_path / "runs.png").stat().st_size > 10_000


def test_the_simulated_world_has_the_runs_load_trace_and_first_request() -> None:
    """It chooses as the run's planner did, and serves what clients requested; the request before the load is not measured."""
    trace = SpotTrace("steady", (SpotEvent(0.0, SpotEventKind.ADD, ("a", "b")), SpotEvent(60.0, SpotEventKind.DONE)))
    terms = purchase_terms(PurchaseOptions.model_validate({"fleet": BUILT_IN / "fleet.toml", **POLICY}))
    assert terms is not None
    load = [SpotAnswer(SpotRequest(5.0 * n, 0, 40), 5.0 * n + 0.4) for n in range(12)]
    live = run(*load)
    live.first_s, live.trace_s, live.starting_s = 1.0, 10.0, 2.0
    model = simulated_model("a model", terms.kind.profile.kv_bytes_per_token)
    simulated = simulate_run(live, [[1] * 50], trace, 1.0, 5.0, terms, model)
    assert len(simulated.outcome.requests) == 13 and len(simulated.latencies_s) == 12
    (first,) = [each for each in simulated.outcome.requests if each.arrived_s < 10.0]
    assert 2.0 < first.finished_s < 10.0
    chosen = simulated.outcome.chosen[-1][1]
    assert chosen is not None
    live.samples = [FleetSample(at_s, 2, "", written(chosen), 0, 0.0) for at_s in (50.0, 60.0)]
    assert agreeing_share(live, simulated) == 1.0
    rows = {row.name: row for row in agreement_rows(live, simulated)}
    assert rows["simulated p50, s"].reference == pytest.approx(0.4)
    assert 0.2 < rows["simulated p50, s"].ours < 1.0
