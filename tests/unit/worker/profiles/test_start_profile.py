"""What is measured of an engine before it serves, and what is made of it."""

from __future__ import annotations

from typing import cast

import pytest

from spotwise.core.costs.cost_fit import fit_iterations
from spotwise.core.costs.cost_model import BatchShape, LinearIterationCost, PiecewiseLinear, TableIterationCost, pairs
from spotwise.worker.profiles.start_profile import MeasuredIterations, measure_iterations, profile_sections
from spotwise.worker.worker_engine import WorkerEngine
from tests.unit.worker.timed_engine import TimedEngine

COST = TableIterationCost(
    PiecewiseLinear((16.0, 64.0, 128.0, 2048.0), (0.001, 0.003, 0.006, 0.08)),
    PiecewiseLinear((1.0, 4.0, 32.0), (0.0012, 0.0014, 0.005)),
    3e-9,
    2e-7,
)
CONTEXT = 4096


async def measured(engine: TimedEngine, allowed_s: float = 10.0, max_num_seqs: int = 256) -> MeasuredIterations:
    sections = profile_sections(engine.num_blocks, engine.block_size, CONTEXT, max_num_seqs)
    return await measure_iterations(cast("WorkerEngine", engine), 1000, sections, allowed_s, engine.clock)


async def test_the_cost_behind_the_iterations_is_found() -> None:
    """The fit is right also for sizes and mixtures that were not measured."""
    engine = TimedEngine(COST)
    fit = fit_iterations((await measured(engine)).times)
    assert fit.mape < 1e-3
    assert set(fit.mape_of) == {"prompt", "decode", "mixed"}
    for shape in (
        BatchShape(100, pairs(0, 100)),
        BatchShape(200, pairs(700, 200)),
        BatchShape(1500, pairs(0, 1500)),
        BatchShape(decodes=3, decode_context=1200),
        BatchShape(decodes=24, decode_context=24 * 500),
        BatchShape(64, pairs(128, 64), 6, 900),
    ):
        assert fit.cost.iteration_s(shape) == pytest.approx(COST.iteration_s(shape), rel=0.02), shape


async def test_nothing_stays_behind() -> None:
    """The engine knows no sequence, and ran nothing but iterations."""
    engine = TimedEngine(COST)
    await measured(engine)
    assert engine.num_sequences == 0
    assert engine.batches


async def test_the_first_run_of_a_step_does_not_count() -> None:
    """A step's first run includes one-time costs."""
    engine = TimedEngine(COST)
    engine.first_run_s = 0.5
    found = await measured(engine, allowed_s=100.0)
    fit = fit_iterations(found.times)
    assert fit.mape < 1e-3
    assert found.longest_prompt == 2048


async def test_decodes_attend_to_what_prompts_have_written() -> None:
    """Profiled decodes attend to written blocks and write blocks of their own, which no two sequences share."""
    engine = TimedEngine(COST)
    found = await measured(engine)
    decodes = [batch for batch in engine.batches if all(row.is_decode for row in batch.rows)]
    assert max(len(batch.rows) for batch in decodes) == found.widest == 32
    for batch in decodes:
        for row in batch.rows:
            assert engine.written.issuperset(row.block_ids[: row.first_position // 16 - 1])
        own = [row.block_ids[row.first_position // 16] for row in batch.rows]
        assert len(set(own)) == len(own)


async def test_measuring_ends_when_its_time_is_spent() -> None:
    """Steps beyond the time are left out, except for the smallest prompt and the smallest decode."""
    slow = LinearIterationCost(0.05, 0.002, 0.0, 0.01, 0.0)
    found = await measured(TimedEngine(slow), allowed_s=10.0)
    assert found.seconds < 10.0
    assert 128 <= found.longest_prompt < 2048
    assert found.widest >= 8
    glacial = LinearIterationCost(30.0, 1.0, 0.0, 1.0, 0.0)
    found = await measured(TimedEngine(glacial), allowed_s=10.0)
    assert [(time.shape.prompt_tokens, time.shape.decodes) for time in found.times] == [(16, 0), (0, 1)]
    assert fit_iterations(found.times).cost.iteration_s(BatchShape(16, 128.0)) == pytest.approx(46.0)


async def test_a_step_that_the_engine_cannot_run_ends_its_kind() -> None:
    """A step that the engine cannot run, as for lack of memory, ends its kind; the others are measured."""
    engine = TimedEngine(COST)
    engine.most_tokens = 600
    found = await measured(engine)
    assert found.longest_prompt == 512
    assert found.widest == 32
    assert engine.num_sequences == 0


@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 16), (2, 8), (13, 1), (40, 8), (3, 256), (512, 16)])
@pytest.mark.parametrize("max_num_seqs", [1, 3, 256])
async def test_every_step_fits_into_the_engine(num_blocks: int, block_size: int, max_num_seqs: int) -> None:
    """Every step fits the engine's blocks, context and batch size, however small."""
    engine = TimedEngine(COST, num_blocks, block_size)
    found = await measured(engine, 10.0, max_num_seqs)
    assert max(len(batch.rows) for batch in engine.batches) <= max_num_seqs
    assert found.longest_prompt >= min(8, num_blocks * block_size - 1)
    assert found.widest >= 1


def test_an_engine_without_room_is_refused() -> None:
    """A profile is refused without KV blocks or context for a prompt and some tokens."""
    for num_blocks, context in ((1, 4096), (512, 10)):
        with pytest.raises(ValueError, match="too few to measure"):
            profile_sections(num_blocks, 4, context, 8)


async def test_what_is_measured_in_which_order_depends_on_sizes_alone() -> None:
    orders = []
    for cost in (COST, LinearIterationCost(1e-4, 1e-6, 0.0, 1e-5, 1e-9)):
        engine = TimedEngine(cost)
        await measured(engine, allowed_s=1000.0)
        orders.append([[row[1:] for row in batch.rows] for batch in engine.batches])
    assert orders[0] == orders[1]
