"""Sizes without the traces' files."""

from __future__ import annotations

import numpy as np
import pytest

from spotwise.simulator.loads.workload import SYNTHETIC

#: p50, p90, p99, smallest and largest, as published; and the mean, of which the quantiles do not know.
PUBLISHED = {
    ("code", "prompt"): (1469, 5188, 7436, 3, 7437, 2047.8),
    ("code", "output"): (13, 55, 251, 6, 1899, 27.9),
    ("conv", "prompt"): (1020, 2735, 4142, 2, 14050, 1154.7),
    ("conv", "output"): (129, 424, 601, 7, 1000, 211.1),
}


@pytest.mark.parametrize(("workload", "column"), PUBLISHED)
def test_percentiles_are_the_published_ones(workload: str, column: str) -> None:
    """A large sample has the published percentiles and mean, and no size outside the published range."""
    sizes = dict(zip(("prompt", "output"), SYNTHETIC[workload].draw(200_000, np.random.default_rng(5)), strict=True))
    p50, p90, p99, smallest, largest, mean = PUBLISHED[workload, column]
    drawn = sizes[column]
    assert np.percentile(drawn, [50, 90, 99]) == pytest.approx([p50, p90, p99], rel=0.03)
    assert smallest <= drawn.min() <= drawn.max() <= largest
    assert drawn.mean() == pytest.approx(mean, rel=0.03)


def test_answers_of_a_conversation_have_two_peaks() -> None:
    """About a hundred tokens and about four hundred; between them there are fewer (Splitwise, figure 3b)."""
    _, outputs = SYNTHETIC["conv"].draw(100_000, np.random.default_rng(5))
    low, between, high = (np.count_nonzero((outputs >= a) & (outputs < a + 50)) for a in (70, 260, 380))
    assert between < low / 4
    assert between < high / 4


def test_prompts_and_answers_are_independent() -> None:
    """Drawn prompt and answer sizes are uncorrelated, as in the paper's simulator."""
    prompts, outputs = SYNTHETIC["code"].draw(100_000, np.random.default_rng(5))
    assert abs(np.corrcoef(prompts, outputs)[0, 1]) < 0.02
