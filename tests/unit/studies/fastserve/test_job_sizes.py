"""Jobs from distributions: bounds, means, burstiness, and the same again with the same seed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from spotwise.studies.fastserve.job_sizes import AzureSizes, LogNormalSizes, ZipfSizes, gamma_arrivals

MANY = 50_000


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


class TestZipf:
    """Lengths with a probability like a power of themselves."""

    @pytest.mark.parametrize("theta", [0.0, 0.5, 1.0, 1.5])
    def test_lengths_have_the_mean_of_their_distribution(self, theta: float) -> None:
        """The sum of k times k to the power of minus theta, over the sum of the powers."""
        prompts, outputs = ZipfSizes(1000, 100, theta).draw(MANY, rng())
        for drawn, longest in ((prompts, 1000), (outputs, 100)):
            lengths = np.arange(1, longest + 1)
            expected = (lengths ** (1 - theta)).sum() / (lengths**-theta).sum()
            assert drawn.mean() == pytest.approx(expected, rel=0.05)

    def test_all_lengths_within_the_bounds_come_and_no_others(self) -> None:
        prompts, outputs = ZipfSizes(7, 3, 0.5).draw(MANY, rng())
        assert set(prompts.tolist()) == set(range(1, 8))
        assert set(outputs.tolist()) == {1, 2, 3}

    def test_the_larger_theta_the_shorter(self) -> None:
        drawn = [ZipfSizes(1024, 1024, theta).draw(MANY, rng())[1] for theta in (0.5, 1.0, 1.5)]
        assert [each.mean() for each in drawn] == sorted((each.mean() for each in drawn), reverse=True)
        variations = [each.std() / each.mean() for each in drawn]
        assert variations == sorted(variations)

    @pytest.mark.parametrize("bounds", [(0, 5, 1.0), (5, 0, 1.0), (5, 5, -0.1)])
    def test_what_is_no_distribution_is_refused(self, bounds: tuple[int, int, float]) -> None:
        """No length below 1, no negative theta."""
        with pytest.raises(ValueError, match="at least"):
            ZipfSizes(*bounds)


def test_log_normal_lengths_have_their_medians_and_stay_within_bounds() -> None:
    prompts, outputs = LogNormalSizes(300, 1.5, 120, 1.5, 1024, 512).draw(MANY, rng())
    assert np.median(prompts) == pytest.approx(300, rel=0.03)
    assert np.median(outputs) == pytest.approx(120, rel=0.03)
    assert (prompts.min(), prompts.max(), outputs.min(), outputs.max()) == (4, 1024, 1, 512)


class TestAzure:
    """Sizes of a trace, cut to a context."""

    def test_a_line_is_drawn_whole(self, tmp_path: Path) -> None:
        """The prompt and the answer of a draw are from the same line of the trace."""
        path = tmp_path / "trace.csv"
        path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01,100,10\n2024-01-02,200,20\n")
        prompts, outputs = AzureSizes("conv", path, 2048).draw(100, rng())
        assert set(zip(prompts.tolist(), outputs.tolist(), strict=True)) == {(100, 10), (200, 20)}

    def test_what_is_too_long_loses_its_prompts_end(self) -> None:
        """Without a trace, percentiles come along."""
        prompts, outputs = AzureSizes("conv", None, 512).draw(MANY, rng())
        assert (prompts + outputs).max() == 512
        assert outputs.max() == 256
        assert prompts.min() >= 1


class TestGammaArrivals:
    """Gaps of a mean and a spread."""

    SIZES = ZipfSizes(100, 100, 1.0)

    @pytest.mark.parametrize("cv", [0.5, 1.0, 4.0])
    def test_gaps_have_the_requested_rate_and_variation(self, cv: float) -> None:
        times = [arrival.at_s for arrival in gamma_arrivals(self.SIZES, 5.0, cv, MANY, 0)]
        gaps = np.array([later - earlier for earlier, later in pairwise(times)])
        assert gaps.mean() == pytest.approx(0.2, rel=0.05)
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)

    def test_the_same_seed_is_the_same_jobs(self) -> None:
        once, again, other = (list(gamma_arrivals(self.SIZES, 5.0, 2.0, 50, seed)) for seed in (3, 3, 4))
        assert once == again
        assert once != other

    def test_another_rate_brings_the_same_jobs_at_other_times(self) -> None:
        slow, fast = (list(gamma_arrivals(self.SIZES, rate, 2.0, 50, 0)) for rate in (1.0, 2.0))
        for one, other in zip(slow, fast, strict=True):
            assert (one.prompt_tokens, one.output_tokens) == (other.prompt_tokens, other.output_tokens)
            assert one.at_s == pytest.approx(2 * other.at_s)

    @pytest.mark.parametrize(("rate", "cv"), [(0.0, 1.0), (1.0, 0.0)])
    def test_nothing_comes_without_a_rate_or_a_spread(self, rate: float, cv: float) -> None:
        with pytest.raises(ValueError, match="above 0"):
            list(gamma_arrivals(self.SIZES, rate, cv, 10, 0))
