"""How long instances live."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.core.lives.survival import Life, PiecewiseHazard, first_end, fit_hazard
from tests.unit.core.product_limit import StepSurvival, kaplan_meier

AGES = st.floats(0.5, 1_000).map(lambda age: round(age, 1))
HAZARDS = st.lists(
    st.tuples(st.floats(1, 400), st.sampled_from([0.0, 1e-4, 0.003, 0.02])),
    min_size=0,
    max_size=5,
    unique_by=lambda p: p[0],
).map(
    lambda pieces: PiecewiseHazard(
        (0.0, *(bound for bound, _ in sorted(pieces))), (0.01, *(rate for _, rate in sorted(pieces)))
    )
)


class TestProductLimit:
    """Kaplan and Meier."""

    def test_a_running_life_is_at_risk_until_it_was_last_seen(self) -> None:
        """A table of a textbook: of 6, one ends at 6 of 6 at risk, one at 7 of 4, one at 10 of 3."""
        lives = [Life(6, True), Life(6, False), Life(7, True), Life(9, False), Life(10, True), Life(11, False)]
        curve = kaplan_meier(lives)
        assert curve.at_s == (6, 7, 10)
        assert curve.shares == pytest.approx((5 / 6, 5 / 6 * 3 / 4, 5 / 6 * 3 / 4 * 1 / 2))
        assert (curve(5.9), curve(6)) == (1.0, 5 / 6)
        assert curve(99) == curve(10)

    def test_a_life_first_seen_late_does_not_count_for_early_ends(self) -> None:
        """At age 10 only two lives were observed, of which one ended, so that half survive."""
        lives = [Life(10, True), Life(20, True), Life(30, True, first_seen_s=15), Life(40, True, first_seen_s=15)]
        assert kaplan_meier(lives)(10) == 0.5

    def test_the_median_is_the_age_that_half_pass(self) -> None:
        assert kaplan_meier([Life(10, True), Life(20, True)]).median_s == 10
        assert kaplan_meier([Life(10, True), Life(20, False), Life(20, False)]).median_s is None
        assert kaplan_meier([]) == StepSurvival((), ())


class TestHazard:
    """Constant between bounds."""

    HAZARD = PiecewiseHazard((0.0, 100.0), (0.01, 0.02))

    def test_chances_add_up_over_bounds(self) -> None:
        """50 s at 0.01, then 30 at 0.02."""
        assert self.HAZARD.survives(50, 80) == pytest.approx(math.exp(-0.5 - 0.6))
        assert self.HAZARD.ends(50, 80) == pytest.approx(1 - math.exp(-1.1))
        assert self.HAZARD.survives(500, 10) == pytest.approx(math.exp(-0.2))
        assert self.HAZARD.ends(7, 0) == 0.0

    def test_a_constant_hazard_forgets_its_age(self) -> None:
        constant = PiecewiseHazard((0.0, 50.0), (0.01, 0.01))
        assert constant.expected_s(0) == pytest.approx(100)
        assert constant.expected_s(49) == constant.expected_s(1_000) == pytest.approx(100)

    def test_without_a_last_hazard_the_expected_life_is_infinite(self) -> None:
        assert PiecewiseHazard((0.0, 9.0), (0.5, 0.0)).expected_s(0) == math.inf

    @settings(max_examples=20)
    @given(HAZARDS, st.floats(0, 600))
    def test_what_is_expected_is_the_area_under_survival(self, hazard: PiecewiseHazard, age: float) -> None:
        if hazard.per_s[-1] < 0.003:
            return
        slice_s, total, at = 2.0, 0.0, 1.0
        while (alive := hazard.survives(age, at)) > 1e-9 and at < 20_000:
            total += alive * slice_s
            at += slice_s
        assert hazard.expected_s(age) == pytest.approx(total, rel=2e-3)

    @given(HAZARDS, st.floats(0, 600), st.floats(0, 300), st.floats(0, 300))
    def test_to_live_two_spans_is_to_live_one_and_then_the_other(
        self, hazard: PiecewiseHazard, age: float, one: float, other: float
    ) -> None:
        both = hazard.survives(age, one) * hazard.survives(age + one, other)
        assert hazard.survives(age, one + other) == pytest.approx(both, rel=1e-9)
        assert hazard.survives(age, one) + hazard.ends(age, one) == pytest.approx(1)

    @given(HAZARDS, st.floats(0, 600), st.lists(st.floats(0, 300), min_size=1, max_size=5))
    def test_the_mean_chance_is_that_of_each_span(
        self, hazard: PiecewiseHazard, age: float, spans: list[float]
    ) -> None:
        """To the last bit, within a piece and over bounds: who is chosen must not depend on which of the two was called."""
        assert hazard.mean_ends(age, spans) == sum([hazard.ends(age, span) for span in spans]) / len(spans)

    def test_what_makes_no_sense_is_refused(self) -> None:
        for call in (
            lambda: self.HAZARD.ends(-1.0, 1.0),
            lambda: self.HAZARD.mean_ends(-1.0, [1.0]),
            lambda: self.HAZARD.mean_ends(1.0, [1.0, -1.0]),
        ):
            with pytest.raises(ValueError, match="at least 0"):
                call()


class TestFit:
    """The hazard that lives show."""

    def test_one_piece_is_ends_per_second_watched(self) -> None:
        """Survivors count with the time they were observed."""
        hazard = fit_hazard([Life(100, True), Life(300, False), Life(200, True, first_seen_s=100)], pieces=1)
        assert hazard.from_s == (0.0,)
        assert hazard.per_s == pytest.approx((2 / 500,))

    def test_ages_that_differ_are_distinguished(self) -> None:
        """A third go at once, the others late: with no prior, hazards are ends over the seconds in each piece."""
        lives = [*[Life(10, True)] * 10, *[Life(1_000, True)] * 20]
        hazard = fit_hazard(lives, pieces=3, prior_ends=0.0)
        assert hazard.from_s == (0.0, 10.0)
        assert hazard.per_s == pytest.approx((10 / 300, 20 / (20 * 990)))
        early_and_late = fit_hazard(
            [Life(10 + k, True) for k in range(30)] + [Life(900 + k, True) for k in range(30)], 2
        )
        assert early_and_late.ends(0, 60) > 2 * early_and_late.ends(400, 60)

    def test_a_prior_draws_pieces_to_the_mean(self) -> None:
        """A large prior makes the hazard independent of age, and none leaves the pieces apart."""
        lives = [Life(10 + k, True) for k in range(30)] + [Life(900 + k, True) for k in range(30)]
        loose, tight = fit_hazard(lives, 2, 0.0), fit_hazard(lives, 2, 1e9)
        assert max(loose.per_s) / min(loose.per_s) > 1.5
        assert max(tight.per_s) / min(tight.per_s) == pytest.approx(1, rel=1e-6)

    def test_no_ended_life_is_no_hazard(self) -> None:
        assert fit_hazard([Life(100, False)]).ends(0, 1e6) == 0.0

    def test_nothing_seen_is_nothing_to_fit(self) -> None:
        with pytest.raises(ValueError, match="observed lifetimes"):
            fit_hazard([])
        with pytest.raises(ValueError, match="pieces"):
            fit_hazard([Life(1, True)], pieces=0)

    @given(st.lists(st.tuples(AGES, st.booleans()), min_size=1, max_size=40), st.integers(1, 8))
    def test_without_a_prior_it_counts_every_end_once(self, seen: list[tuple[float, bool]], pieces: int) -> None:
        lives = [Life(age, ended) for age, ended in seen]
        hazard = fit_hazard(lives, pieces, prior_ends=0.0)
        expected = sum(-math.log(hazard.survives(0.0, life.age_s)) for life in lives)
        assert expected == pytest.approx(sum(life.ended for life in lives), rel=1e-6, abs=1e-9)


class TestFirstEnd:
    """The first end among instances."""

    def test_hazards_add_at_each_instances_age(self) -> None:
        """An instance that is 40 s old reaches the bound at 100 s in 60 s."""
        young_and_old = PiecewiseHazard((0.0, 100.0), (0.01, 0.002))
        found = first_end([(young_and_old, 40.0), (young_and_old, 500.0), (PiecewiseHazard((0.0,), (0.5,)), 7.0)])
        assert found.from_s == (0.0, 60.0)
        assert found.per_s == pytest.approx((0.512, 0.504))

    @given(
        st.lists(st.tuples(HAZARDS, st.floats(0, 600)), min_size=1, max_size=5), st.floats(0, 300), st.floats(0, 800)
    )
    def test_the_ends_of_a_group_are_those_of_its_instances(
        self, instances: list[tuple[PiecewiseHazard, float]], later_s: float, seconds: float
    ) -> None:
        each = sum(hazard.expected_ends(age_s + later_s, seconds) for hazard, age_s in instances)
        assert first_end(instances).expected_ends(later_s, seconds) == pytest.approx(each, abs=1e-9)
