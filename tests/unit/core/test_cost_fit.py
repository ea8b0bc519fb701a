"""From times to costs."""

from __future__ import annotations

import random

import pytest

from spotwise.core.costs.cost_fit import fit_iterations, fit_link
from spotwise.core.costs.cost_model import BatchShape, IterationTime, LinkCost, PiecewiseLinear, TableIterationCost

COST = TableIterationCost(
    PiecewiseLinear((16.0, 64.0, 128.0, 2048.0), (0.01, 0.03, 0.06, 0.8)),
    PiecewiseLinear((1.0, 4.0, 32.0), (0.012, 0.014, 0.05)),
    3e-8,
    2e-6,
)


def shapes() -> list[BatchShape]:
    """Prompts, alone and behind others' tokens, decodes, and both together."""
    prompts = [
        BatchShape(tokens, tokens * (behind + tokens / 2), 0, 0)
        for tokens in (16, 32, 64, 128, 256, 512, 1024, 2048)
        for behind in (0, 512)
    ]
    decodes = [BatchShape(0, 0.0, rows, rows * context) for rows in (1, 4, 16, 32) for context in (32, 512, 1024)]
    return prompts + decodes + [BatchShape(64, 64 * 32.0, 4, 400)]


def test_costs_are_found_again() -> None:
    """From noiseless times the fit finds the cost of each size, bends included, and of attention."""
    fit = fit_iterations([IterationTime(shape, COST.iteration_s(shape)) for shape in shapes()])
    for shape in shapes():
        assert fit.cost.iteration_s(shape) == pytest.approx(COST.iteration_s(shape), rel=1e-3), shape
    assert fit.cost.prompt_context_s == pytest.approx(COST.prompt_context_s, rel=1e-3)
    assert fit.cost.decode_context_s == pytest.approx(COST.decode_context_s, rel=1e-3)
    assert fit.mape < 1e-3
    assert set(fit.mape_of) == {"prompt", "decode", "mixed"}


def test_many_iterations_of_one_size_do_not_outweigh_the_others() -> None:
    """A mixed worker cuts most prompts to one size: those of twice that are fitted as well."""
    often = [IterationTime(BatchShape(64 + number % 3, 2e3, 2, 100), 0.031) for number in range(300)]
    others = [IterationTime(shape, COST.iteration_s(shape)) for shape in shapes()]
    cost = fit_iterations(often + others).cost
    assert cost.prompt(128) == pytest.approx(COST.prompt(128), rel=0.1)


def test_a_few_iterations_that_were_held_up_count_little() -> None:
    """One in ten took five times as long, the others vary by some per cent."""
    rng = random.Random(5)
    times = [
        IterationTime(shape, COST.iteration_s(shape) * (5.0 if number % 10 == 0 else rng.uniform(0.97, 1.03)))
        for number, shape in enumerate(shapes() * 20)
    ]
    fit = fit_iterations(times)
    for shape in shapes():
        assert fit.cost.iteration_s(shape) == pytest.approx(COST.iteration_s(shape), rel=0.05)


def test_no_part_costs_less_than_nothing() -> None:
    """A context with lower measured times costs 0, not less."""
    times = [IterationTime(BatchShape(0, 0.0, 4, context), 0.02 - context * 1e-7) for context in (100, 1000, 10_000)]
    cost = fit_iterations([*times, IterationTime(BatchShape(9, 40.0), 0.01)]).cost
    assert cost.decode_context_s == 0.0
    assert cost.iteration_s(BatchShape(0, 0.0, 4, 1000)) == pytest.approx(0.02, rel=0.1)


def test_nothing_measured_is_no_fit() -> None:
    """A fit without any iteration or hand-off is refused."""
    for seconds in (0.0, 1.0):
        with pytest.raises(ValueError, match="no iteration"):
            fit_iterations([IterationTime(BatchShape(1, 0.5, 0, 0), seconds)])
    with pytest.raises(ValueError, match="no hand-off"):
        fit_link([(0, 1.0)])


def test_a_link_is_found_again() -> None:
    """Latency and bandwidth; where all hand-offs were of one size, the bandwidth that explains them."""
    link = LinkCost(0.002, 1e9)
    sizes = [10_000 * 2**step for step in range(12)]
    fit = fit_link([(size, link.transfer_s(size)) for size in sizes])
    assert fit.cost.latency_s == pytest.approx(link.latency_s, rel=1e-3)
    assert fit.cost.bytes_per_s == pytest.approx(link.bytes_per_s, rel=1e-3)
    assert (fit.handoffs, fit.mape) == (12, pytest.approx(0.0, abs=1e-3))
    alike = fit_link([(1_000_000, 0.01), (1_000_000, 0.01)]).cost
    assert alike.transfer_s(1_000_000) == pytest.approx(0.01, rel=0.01)


def test_what_larger_hand_offs_cost_no_more_is_latency() -> None:
    """Where larger hand-offs take no longer, their time is latency, since all but the last layers overlap with the prompt."""
    taken = [(size, 0.004 + 0.0001 * (number % 2)) for number, size in enumerate((10**6, 3 * 10**6, 10**7) * 5)]
    cost = fit_link([*taken, (10**7, 0.07)]).cost
    assert cost.transfer_s(10**6) == pytest.approx(0.004, rel=0.05)
    assert cost.transfer_s(10**7) == pytest.approx(0.004, rel=0.05)
