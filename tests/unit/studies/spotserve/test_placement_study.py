"""Requests that are placed by how long instances will live."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from spotwise.core.lives.survival import Life, PiecewiseHazard
from spotwise.studies.spotserve.placement_study import Interval, PlacementFinding, lives_until, study_placements
from spotwise.studies.spotserve.placement_world import (
    NodeEvent,
    PlacementOutcome,
    PlacementRule,
    PlacementSetting,
    place_requests,
)
from tests.unit.core.product_limit import kaplan_meier

#: Every request has 1,000 tokens and an iteration takes 0.1 s, so that one takes 100 s.
ALIKE = PlacementSetting(0.01, 0, 1_000.0, 0.0, 1_000, 0.0, 0.1, 0.0, 0.0, notice_s=0.0)
NEVER = PiecewiseHazard((0.0,), (0.0,))
HOUR_S = 3_600.0


def churning(hours: int, old: int = 4) -> list[NodeEvent]:
    """A fleet in which newcomers end after ten minutes, and older instances stay."""
    events: list[NodeEvent] = [(0.0, "add", f"old{i}") for i in range(old)]
    for minute in range(0, hours * 60, 5):
        events.append((minute * 60.0, "add", f"new{minute}"))
        events.append((minute * 60.0 + 600.0, "remove", f"new{minute}"))
    return sorted(events, key=lambda event: event[0])


def interruptions(outcomes: Sequence[PlacementOutcome]) -> int:
    return sum(outcome.interruptions for outcome in outcomes)


class TestWorld:
    """Instances that go, and requests on them."""

    @pytest.mark.parametrize("placement", PlacementRule)
    def test_undisturbed_a_request_takes_its_prompt_and_its_iterations(self, placement: PlacementRule) -> None:
        """Alone on a machine: 1,000 x (0.1 + 0.01) s and 100 x 0.02 s x 0.11 / 0.1."""
        setting = replace(
            ALIKE, rate_per_s=1e-4, request_step_s=0.01, prompt_tokens=100, prompt_token_s=0.02, steady=40
        )
        events: list[NodeEvent] = [(0.0, "add", "a"), (5 * HOUR_S, "add", "b")]
        outcome = place_requests(events, 0.0, NEVER, setting, placement, 1)
        assert outcome.requests > 0
        assert outcome.interruptions == outcome.recomputed_tokens == 0
        assert outcome.mean_latency_s == pytest.approx(112.2, rel=0.1 if placement is PlacementRule.RANDOM else 1e-6)

    @pytest.mark.parametrize("placement", PlacementRule)
    def test_all_of_an_instance_that_goes_are_interrupted_and_end_elsewhere(self, placement: PlacementRule) -> None:
        """The tokens so far are computed again: 512 of the prompt, and one per iteration."""
        events: list[NodeEvent] = [(0.0, "add", "a"), (150.0, "remove", "a"), (150.0, "add", "b"), (200.0, "add", "c")]
        setting = replace(ALIKE, rate_per_s=0.1, prompt_tokens=512)
        outcome = place_requests(events, 0.0, NEVER, setting, placement, 3)
        assert outcome.requests > 10
        assert 0 < outcome.interruptions < outcome.requests
        decoded = outcome.recomputed_tokens - 512 * outcome.interruptions
        assert 0 < decoded < 1_000 * outcome.interruptions

    def test_what_was_decoded_is_not_decoded_again(self) -> None:
        setting = replace(ALIKE, rate_per_s=0.1)
        whole: list[NodeEvent] = [(0.0, "add", "a"), (200.0, "add", "c")]
        broken: list[NodeEvent] = [(0.0, "add", "a0")]
        for turn in range(8):
            at_s = 25.0 * (turn + 1)
            broken += [(at_s, "add", f"a{turn + 1}"), (at_s, "remove", f"a{turn}")]
        undisturbed = place_requests(whole, 0.0, NEVER, setting, PlacementRule.RANDOM, 3)
        interrupted = place_requests(broken, 0.0, NEVER, setting, PlacementRule.RANDOM, 3)
        assert interrupted.interruptions > interrupted.requests, "some twice"
        assert interrupted.mean_latency_s == pytest.approx(undisturbed.mean_latency_s, abs=0.2)

    def test_no_request_is_placed_where_a_notice_was_given(self) -> None:
        events: list[NodeEvent] = [(0.0, "add", "a"), (400.0, "remove", "a"), (400.0, "add", "b"), (500.0, "add", "c")]
        hasty = place_requests(events, 0.0, NEVER, replace(ALIKE, rate_per_s=0.1), PlacementRule.RANDOM, 2)
        noticed = place_requests(
            events, 0.0, NEVER, replace(ALIKE, rate_per_s=0.1, notice_s=101.0), PlacementRule.RANDOM, 2
        )
        assert hasty.interruptions > 0
        assert noticed.interruptions == 0
        assert noticed.mean_latency_s > hasty.mean_latency_s

    def test_aware_placement_prefers_instances_that_stay(self) -> None:
        """With an hour's weight on an interruption, aware placement uses the instances that stay, and no request
        is interrupted.
        """
        hazard = PiecewiseHazard((0.0, 700.0), (1e-4, 1e-2))  # young ones would look better
        setting = replace(ALIKE, rate_per_s=0.01, interruption_s=HOUR_S, steady=2)
        aware, least = (
            place_requests(churning(2), 0.0, hazard, setting, placement, 1)
            for placement in (PlacementRule.AWARE, PlacementRule.LEAST_LOADED)
        )
        assert aware.interruptions == 0 < least.interruptions

    def test_a_full_fleet_makes_requests_wait(self) -> None:
        events: list[NodeEvent] = [(0.0, "add", "a"), (HOUR_S, "add", "b")]
        few = place_requests(events, 0.0, NEVER, replace(ALIKE, slots=1, rate_per_s=0.02), PlacementRule.RANDOM, 1)
        many = place_requests(events, 0.0, NEVER, replace(ALIKE, rate_per_s=0.02), PlacementRule.RANDOM, 1)
        assert many.mean_latency_s == pytest.approx(100.0)
        assert few.mean_latency_s > 150.0

    def test_a_fleet_that_ends_empty_is_refused(self) -> None:
        events: list[NodeEvent] = [(0.0, "add", "a"), (HOUR_S, "remove", "a")]
        with pytest.raises(RuntimeError, match="steady"):
            place_requests(events, 0.0, NEVER, replace(ALIKE, rate_per_s=0.1), PlacementRule.RANDOM, 1)

    def test_the_same_seed_is_the_same_run(self) -> None:
        events = churning(1)
        setting = PlacementSetting(rate_per_s=0.2)
        one, again, other = (
            place_requests(events, 0.0, NEVER, setting, PlacementRule.RANDOM, seed) for seed in (1, 1, 2)
        )
        assert one == again != other


class TestFit:
    """The fit of the lives known when the first request comes."""

    EVENTS: Sequence[NodeEvent] = [
        (0.0, "add", "a"),
        (10.0, "add", "b"),
        (30.0, "remove", "a"),
        (50.0, "remove", "b"),
        (60.0, "add", "c"),
    ]

    def test_a_running_life_is_censored(self) -> None:
        """b was 30 s old at 40 s, the end of the observation."""
        assert lives_until(self.EVENTS, 40.0) == [Life(30.0, True), Life(30.0, False)]

    def test_what_comes_later_has_no_part(self) -> None:
        other = [*self.EVENTS[:3], (41.0, "remove", "b"), (42.0, "add", "z")]
        assert lives_until(other, 40.0) == lives_until(self.EVENTS, 40.0)

    def test_the_second_half_has_no_part_in_what_a_trace_is_fitted_on(self) -> None:
        """Findings differ by what happens there, and not by what is believed: the hazard is the same."""
        seen: list[PiecewiseHazard] = []

        def spy(*arguments: object) -> PlacementOutcome:
            assert isinstance(arguments[2], PiecewiseHazard)
            seen.append(arguments[2])
            return PlacementOutcome(1, 0, 0, 1.0)

        early = churning(2)
        late: list[NodeEvent] = [(3 * HOUR_S, "remove", "old0"), (5 * HOUR_S, "add", "x")]
        later: list[NodeEvent] = [(4 * HOUR_S, "remove", "old1"), (5 * HOUR_S, "add", "x")]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("spotwise.studies.spotserve.placement_study.place_requests", spy)
            for end in (late, later):
                list(study_placements({"t": [*early, *end]}, ALIKE, [1, 2]))
        assert len(set(seen)) == 1


class TestFindings:
    """Ways of placing beside one another."""

    def test_where_newcomers_go_and_old_ones_stay_interruptions_are_spared(self) -> None:
        """The hazard of the first half separates them; load and latency stay about the same."""
        setting = PlacementSetting(rate_per_s=0.05, median_tokens=2_000.0, spread=0.8)
        found = next(study_placements({"churning": churning(6)}, setting, range(4)))
        assert found.fitted_on == "churning, first half"
        assert found.spared(PlacementRule.LEAST_LOADED).low > 0.3
        assert found.spared(PlacementRule.RANDOM, "recomputed_tokens").low > 0.3
        aware, least = (
            found.interval(way, "mean_latency_s") for way in (PlacementRule.AWARE, PlacementRule.LEAST_LOADED)
        )
        assert aware.mean < least.mean * 1.1

    def test_each_trace_is_served_on_by_its_own_lives_and_by_others(self) -> None:
        traces = {"one": churning(2), "two": churning(2, old=3)}
        found = list(study_placements(traces, replace(ALIKE, rate_per_s=1e-3), [1, 2], steady=3))
        assert [(each.trace, each.fitted_on, each.steady) for each in found] == [
            ("one", "one, first half", 0),
            ("one", "one, first half", 3),
            ("one", "two", 0),
            ("two", "two, first half", 0),
            ("two", "two, first half", 3),
            ("two", "one", 0),
        ]

    def test_an_interval_is_students(self) -> None:
        interval = Interval.of([1.0, 2.0, 3.0])
        assert interval.mean == 2.0
        assert [interval.low, interval.high] == pytest.approx([2 - 2.4841, 2 + 2.4841], abs=1e-3)
        with pytest.raises(ValueError, match="two seeds"):
            Interval.of([1.0])

    def test_what_is_spared_is_compared_seed_by_seed(self) -> None:
        """Half of 10 and half of 100 are half."""
        finding = PlacementFinding(
            "t",
            "t",
            0,
            {
                PlacementRule.AWARE: (PlacementOutcome(200, 5, 50, 1.0), PlacementOutcome(200, 50, 500, 1.0)),
                PlacementRule.RANDOM: (PlacementOutcome(200, 10, 200, 1.0), PlacementOutcome(200, 100, 2_000, 1.0)),
            },
        )
        assert finding.spared(PlacementRule.RANDOM) == Interval(0.5, 0.5, 0.5)
        assert finding.spared(PlacementRule.RANDOM, "recomputed_tokens") == Interval(0.75, 0.75, 0.75)


@pytest.mark.skipif("SPOTWISE_DATA" not in os.environ, reason="SPOTWISE_DATA names no folder with the data")
class TestPublished:
    """The recorded fleets."""

    @staticmethod
    def events(name: str) -> list[NodeEvent]:
        path = Path(os.environ["SPOTWISE_DATA"]) / "spot-traces" / "bamboo" / f"{name}-trace.csv"
        with path.open() as lines:
            return [
                (int(ms) / 1_000, "add" if kind == "add" else "remove", node) for ms, kind, node in csv.reader(lines)
            ]

    @pytest.mark.parametrize(("name", "ended", "alive"), [("g4dn", 74, 5), ("p3", 167, 10)])
    def test_their_lives_are_as_counted(self, name: str, ended: int, alive: int) -> None:
        events = self.events(name)
        lives = lives_until(events, events[-1][0])
        assert sum(life.ended for life in lives) == ended
        assert sum(not life.ended for life in lives) == alive
        median_s = kaplan_meier(lives).median_s
        assert median_s is not None
        assert 55 * 60 < median_s < 70 * 60

    def test_where_some_stay_interruptions_are_spared(self) -> None:
        setting = PlacementSetting(rate_per_s=0.05, median_tokens=3_000.0, spread=1.0)
        found = [each for each in study_placements({"p3": self.events("p3")}, setting, range(2)) if each.steady]
        aware, least = (found[0].outcomes[way] for way in (PlacementRule.AWARE, PlacementRule.LEAST_LOADED))
        assert interruptions(aware) < interruptions(least)
