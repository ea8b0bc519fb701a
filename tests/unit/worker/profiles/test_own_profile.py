"""What is measured of an engine before it serves, and profiles in files, believed only where they are of the same thing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from spotwise.cli.profile_files import read_profile
from spotwise.core.costs.batching import Batch
from spotwise.core.costs.cost_fit import fit_iterations
from spotwise.core.costs.cost_model import (
    BatchShape,
    IterationCost,
    LinearIterationCost,
    PiecewiseLinear,
    TableIterationCost,
    pairs,
)
from spotwise.core.costs.cost_profile import BUILT_IN
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.sampling import SampledToken
from spotwise.worker.profiles.own_profile import KeptProfiles, ProfiledEngine
from spotwise.worker.profiles.start_profile import MeasuredIterations, measure_iterations, profile_sections
from spotwise.worker.worker_engine import WorkerEngine


class TimedEngine:
    """A `WorkerEngine` and its clock; it refuses rows that an engine would refuse.

    Attributes:
        now_s: its clock.
        batches: that ran, in order.
        written: blocks that a prompt was computed in.
        first_run_s: what the first iteration of each shape takes beside its cost.
        most_tokens: of an iteration that it has memory for.
    """

    num_layers = 2
    kv_bytes_per_token = 4
    computes_with = "a clock"

    def __init__(self, cost: IterationCost, num_blocks: int = 512, block_size: int = 16) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.now_s = 100.0
        self.batches: list[Batch] = []
        self.written: set[int] = set()
        self.first_run_s = 0.0
        self.most_tokens = 1 << 30
        self._cost = cost
        self._lengths: dict[str, int] = {}
        self._sizes_seen: set[tuple[int, int]] = set()

    def clock(self) -> float:
        return self.now_s

    @property
    def num_sequences(self) -> int:
        return len(self._lengths)

    async def prepare(self, record: RequestRecord) -> None:
        """Nothing is needed."""

    async def add_sequence(self, record: RequestRecord, prepared: None = None) -> None:
        assert record.sequence_id not in self._lengths
        assert record.prompt_token_ids
        self._lengths[record.sequence_id] = len(record.prompt_token_ids)

    def append_token(self, sequence_id: str, token_id: int) -> None:
        self._lengths[sequence_id] += 1

    def drop_sequence(self, sequence_id: str) -> None:
        self._lengths.pop(sequence_id, None)

    def run_iteration(
        self,
        batch: Batch,
        on_finished: Callable[[tuple[SampledToken, ...]], None],
        on_failed: Callable[[Exception], None],
        on_layers: Callable[[int], None] | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        if batch.num_tokens > self.most_tokens:
            loop.call_soon(on_failed, MemoryError("too many tokens"))
            return
        for row in batch.rows:
            end = row.first_position + row.num_tokens
            assert end == self._lengths[row.sequence_id], "each row computes all that is left"
            assert len(row.block_ids) * self.block_size >= end
            assert all(0 <= block < self.num_blocks for block in row.block_ids)
            self._lengths[row.sequence_id] += 1
            if not row.is_decode:
                self.written.update(row.block_ids[row.first_position // self.block_size :])
        self.batches.append(batch)
        shape = BatchShape.of(batch)
        size = (shape.prompt_tokens, shape.decodes)
        self.now_s += self._cost.iteration_s(shape) + (0.0 if size in self._sizes_seen else self.first_run_s)
        self._sizes_seen.add(size)
        loop.call_soon(on_finished, ())


ENGINE = ProfiledEngine(
    model="org/tiny model",
    weights="0123",
    dtype="float32",
    device="cpu",
    kernels="native generic, 3 fused layers",
    decode_graphs=True,
    threads=2,
    block_size=16,
    machine="2 cores of a processor",
    versions="torch 1",
)
PROFILE = replace(BUILT_IN, link=None)


def write(folder: Path, engine: ProfiledEngine = ENGINE) -> Path:
    kept = KeptProfiles(folder)
    kept.write(engine, PROFILE, {"mape": 0.1}, {"seconds": 3.0})
    path = kept.path_of(engine)
    assert path is not None
    return path


def test_what_was_kept_is_read_again(tmp_path: Path) -> None:
    """The file is a cost profile as any other, and nothing lies beside it."""
    path = write(tmp_path / "profiles")
    assert KeptProfiles(tmp_path / "profiles").read(ENGINE) == PROFILE
    assert read_profile(path, "--profile") == PROFILE
    assert json.loads(path.read_text())["measured"]["of"]["threads"] == 2
    assert list(path.parent.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"weights": "4567"},
        {"dtype": "bfloat16"},
        {"device": "cuda:0"},
        {"kernels": "no native kernels"},
        {"decode_graphs": False},
        {"threads": None},
        {"block_size": 32},
        {"machine": "64 cores of a processor"},
        {"versions": "torch 2"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_profile_of_something_else_is_none(tmp_path: Path, change: dict[str, object]) -> None:
    write(tmp_path)
    other = replace(ENGINE, **change)  # type: ignore[arg-type]
    assert KeptProfiles(tmp_path).read(other) is None
    write(tmp_path, other)
    assert KeptProfiles(tmp_path).read(ENGINE) == PROFILE


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "spotwise-cost-profile/0"}', '{"measured": 3}'])
def test_what_is_damaged_or_of_another_format_is_measured_anew(tmp_path: Path, text: str) -> None:
    write(tmp_path).write_text(text)
    with capture_logs() as logs:
        assert KeptProfiles(tmp_path).read(ENGINE) is None
    assert [line["event"] for line in logs] == ["cost_profile_outdated"]


@pytest.mark.parametrize(("field", "value"), [("version", 0), ("of", {"model": "another, of the same name"})])
def test_what_was_measured_otherwise_is_measured_anew(tmp_path: Path, field: str, value: object) -> None:
    path = write(tmp_path)
    document = json.loads(path.read_text())
    document["measured"][field] = value
    path.write_text(json.dumps(document))
    assert KeptProfiles(tmp_path).read(ENGINE) is None


def test_without_a_folder_nothing_is_kept() -> None:
    kept = KeptProfiles(None)
    kept.write(ENGINE, PROFILE, {}, {})
    assert kept.path_of(ENGINE) is None
    assert kept.read(ENGINE) is None


async def test_an_unwritable_folder_is_logged_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = KeptProfiles(tmp_path / "file" / "profiles")
    with capture_logs() as logs:
        async with kept.turn(ENGINE, 1.0):
            kept.write(ENGINE, PROFILE, {}, {})
    assert [line["event"] for line in logs] == ["cost_profile_not_kept"] * 2


async def test_one_measures_at_a_time(tmp_path: Path) -> None:
    kept, order = KeptProfiles(tmp_path), []
    measures, may_end = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        async with kept.turn(ENGINE, 60.0):
            measures.set()
            await may_end.wait()
            order.append("first")

    async def second() -> None:
        await measures.wait()
        async with KeptProfiles(tmp_path).turn(ENGINE, 60.0):
            order.append("second")

    tasks = asyncio.create_task(first()), asyncio.create_task(second())
    await measures.wait()
    async with kept.turn(replace(ENGINE, dtype="bfloat16"), 60.0):
        order.append("other")
    may_end.set()
    await asyncio.gather(*tasks)
    assert order == ["other", "first", "second"]


async def test_no_lock_is_waited_for_for_ever(tmp_path: Path) -> None:
    kept = KeptProfiles(tmp_path)
    async with kept.turn(ENGINE, 60.0):
        with capture_logs() as logs:
            async with KeptProfiles(tmp_path).turn(ENGINE, 0.05):
                pass
    assert [line["event"] for line in logs] == ["cost_profile_not_kept"]


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


async def test_the_first_run_of_a_step_does_not_count() -> None:
    engine = TimedEngine(COST)
    engine.first_run_s = 0.5
    found = await measured(engine, allowed_s=100.0)
    fit = fit_iterations(found.times)
    assert fit.mape < 1e-3
    assert found.longest_prompt == 2048


async def test_decodes_attend_to_what_prompts_have_written() -> None:
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
    engine = TimedEngine(COST)
    engine.most_tokens = 600
    found = await measured(engine)
    assert found.longest_prompt == 512
    assert found.widest == 32
    assert engine.num_sequences == 0


@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 16), (2, 8), (13, 1), (40, 8), (3, 256), (512, 16)])
@pytest.mark.parametrize("max_num_seqs", [1, 3, 256])
async def test_every_step_fits_into_the_engine(num_blocks: int, block_size: int, max_num_seqs: int) -> None:
    engine = TimedEngine(COST, num_blocks, block_size)
    found = await measured(engine, 10.0, max_num_seqs)
    assert max(len(batch.rows) for batch in engine.batches) <= max_num_seqs
    assert found.longest_prompt >= min(8, num_blocks * block_size - 1)
    assert found.widest >= 1


def test_an_engine_without_room_is_refused() -> None:
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
