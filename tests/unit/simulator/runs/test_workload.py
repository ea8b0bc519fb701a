"""The requests of a cluster."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spotwise.files.tables import TraceError
from spotwise.simulator.loads.workload import SYNTHETIC, ArrivalKind, ClusterWorkload, mean_rate
from spotwise.simulator.world.observation import Arrival

TRACE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:00:00,10,1\n2023-11-16 18:00:02,20,2\n2023-11-16 18:00:03,30,3\n2023-11-16 18:00:08,40,4\n"
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def test_a_traces_own_arrivals_keep_their_times(trace: Path) -> None:
    own = ClusterWorkload("trace", trace, ArrivalKind.TRACE)
    assert [arrival.at_s for arrival in own.arrivals(None, None, seed=0)] == [0.0, 2.0, 3.0, 8.0]
    assert [arrival.prompt_tokens for arrival in own.arrivals(None, 3.0, seed=0)] == [10, 20]


def test_a_rate_pushes_a_traces_arrivals_together(trace: Path) -> None:
    own = ClusterWorkload("trace", trace, ArrivalKind.TRACE)
    assert mean_rate(trace) == 0.5
    assert list(own.arrivals(1.0, None, seed=0)) == [
        Arrival(0.0, 10, 1),
        Arrival(1.0, 20, 2),
        Arrival(1.5, 30, 3),
        Arrival(4.0, 40, 4),
    ]


def test_random_arrivals_have_the_sizes_of_the_trace(trace: Path) -> None:
    arrivals = list(ClusterWorkload("trace", trace).arrivals(50.0, 10.0, seed=0))
    assert {arrival.prompt_tokens for arrival in arrivals} == {10, 20, 30, 40}
    assert arrivals != list(ClusterWorkload("trace", trace).arrivals(50.0, 10.0, seed=1))


def test_without_a_file_sizes_have_the_published_percentiles() -> None:
    outputs = sorted(arrival.output_tokens for arrival in ClusterWorkload("code").arrivals(100.0, 50.0, seed=0))
    assert outputs[len(outputs) // 2] == pytest.approx(13, abs=1)


def test_arrivals_can_be_drawn_as_the_published_runs_were(trace: Path) -> None:
    """One generator draws all gaps, then all prompts, then all outputs, of more requests than arrive in time."""
    workload = ClusterWorkload("trace", trace, ArrivalKind.PUBLISHED)
    arrivals = list(workload.arrivals(40.0, 10.0, seed=3))
    rng = np.random.default_rng(3)
    at_s = np.cumsum(rng.exponential(1 / 40.0, size=720))
    prompts, outputs = rng.choice([10, 20, 30, 40], 720), rng.choice([1, 2, 3, 4], 720)
    assert 300 < len(arrivals) < 500
    assert [arrival.at_s for arrival in arrivals] == at_s[at_s < 10.0].tolist()
    assert [arrival.prompt_tokens for arrival in arrivals] == prompts[: len(arrivals)].tolist()
    assert [arrival.output_tokens for arrival in arrivals] == outputs[: len(arrivals)].tolist()


def test_an_impossible_workload_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no workload 'poems'"):
        ClusterWorkload("poems")
    with pytest.raises(ValueError, match="need the path"):
        ClusterWorkload("conv", kind=ArrivalKind.TRACE)
    with pytest.raises(ValueError, match="need a rate"):
        ClusterWorkload("conv").arrivals(None, 10.0, seed=0)
    single = tmp_path / "single.csv"
    single.write_text("".join(TRACE.splitlines(keepends=True)[:2]))
    with pytest.raises(TraceError, match="has no rate"):
        mean_rate(single)


#: p50, p90, p99, smallest and largest, as published; and the mean, of which the quantiles do not know.
PUBLISHED = {
    ("code", "prompt"): (1469, 5188, 7436, 3, 7437, 2047.8),
    ("code", "output"): (13, 55, 251, 6, 1899, 27.9),
    ("conv", "prompt"): (1020, 2735, 4142, 2, 14050, 1154.7),
    ("conv", "output"): (129, 424, 601, 7, 1000, 211.1),
}


@pytest.mark.parametrize(("workload", "column"), PUBLISHED)
def test_percentiles_are_the_published_ones(workload: str, column: str) -> None:
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
