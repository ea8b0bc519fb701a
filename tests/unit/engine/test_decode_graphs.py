from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.core.requests.sampling import SamplingParams
from spotwise.engine.engine import Engine
from spotwise.engine.forward.decode_graphs import MAX_ROWS, DataDependentError, operations_do_not_depend
from spotwise.engine.kv.cache import KvOrder, PagedKvCache
from spotwise.engine.model.loading import EngineConfig, load_model
from tests.unit.engine.tape_capture import TapeCapture
from tests.unit.engine.tiny_models import VOCAB_SIZE, Driver, record

CPU = torch.device("cpu")


def engine_of(
    folder: Path, capture: Callable[[Callable[[], None]], Callable[[], None]] | None, block_size: int = 16
) -> Engine:
    model, facts = load_model(EngineConfig(folder, "float32", "cpu", threads=1))
    cache = PagedKvCache(facts.geometry, 300, block_size, torch.float32, CPU, scratch=capture is not None)
    return Engine(model, facts, cache, capture=capture)


def prompt(seed: int, length: int) -> list[int]:
    return torch.randint(VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def finished(engine: Engine, lengths: list[int], new_tokens: int = 12, **options: Any) -> dict[str, list[int]]:
    driver = Driver(engine, **options)
    for index, length in enumerate(lengths):
        driver.add(record(str(index), prompt(index, length), max_new_tokens=new_tokens + 3 * index))
        driver.step()
    return driver.finish()


@pytest.mark.parametrize("block_size", [16, 4], ids=["tiled", "plain"])
def test_replayed_decodes_give_the_tokens_of_computed_ones(llama_folder: Path, block_size: int) -> None:
    """Sequences that come and go: batches shrink from bucket to bucket, contexts grow from one to the next."""
    capture = TapeCapture()
    replayed, computed = engine_of(llama_folder, capture, block_size), engine_of(llama_folder, None, block_size)
    assert replayed.kv.order is (KvOrder.TILED if block_size == 16 else KvOrder.PLAIN)
    lengths = [3, 120, 30, 75, 10, 128]
    assert finished(replayed, lengths) == finished(computed, lengths)
    assert replayed.graphs is not None and not replayed.graphs.off
    assert replayed.graphs.recorded >= 4  # of 8, 4, 2 and 1 rows
    assert capture.replays > replayed.graphs.recorded


def test_the_replays_leave_the_same_kv_and_padding_writes_its_own_block(llama_folder: Path) -> None:
    """Three rows in a bucket of four: no block but padding's differs from a computation without padding."""
    replayed, computed = engine_of(llama_folder, TapeCapture()), engine_of(llama_folder, None)
    for engine in (replayed, computed):
        finished(engine, [20, 40, 33])
    blocks = computed.num_blocks
    assert torch.allclose(replayed.kv.keys[:, :, :blocks], computed.kv.keys, atol=1e-5)
    assert torch.allclose(replayed.kv.values[:, :, :blocks], computed.kv.values, atol=1e-5)
    assert replayed.kv.scratch_block == blocks and replayed.kv.keys[:, :, blocks].any()
    assert replayed.num_blocks == blocks


def test_seeded_sampling_and_log_probabilities_are_those_of_computed_decodes(llama_folder: Path) -> None:
    """Whatever is done with logits is done with replayed ones."""
    sampling = SamplingParams(temperature=0.8, top_p=0.9, seed=5, logprobs=2, repetition_penalty=1.2)
    results = []
    for capture in (TapeCapture(), None):
        driver = Driver(engine_of(llama_folder, capture))
        for index in range(3):
            driver.add(record(str(index), prompt(index, 20), sampling, max_new_tokens=10))
        driver.finish()
        results.append(driver.results)
    for replayed, computed in zip(*(result.values() for result in results), strict=True):
        assert [token.token_id for token in replayed] == [token.token_id for token in computed]
        for mine, theirs in zip(replayed, computed, strict=True):
            assert mine.logprobs is not None and theirs.logprobs is not None
            assert mine.logprobs.logprob == pytest.approx(theirs.logprobs.logprob, abs=1e-4)


def test_a_row_that_does_not_reach_its_end_samples_nothing(llama_folder: Path) -> None:
    """One token of a prompt, computed as a decode is, beside a row that samples."""
    results = []
    for capture in (TapeCapture(), None):
        engine = engine_of(llama_folder, capture)
        for name, length in (("a", 9), ("b", 6)):
            engine.add_sequence(record(name, prompt(1, length)))
        engine.run_iteration(Batch((BatchRow("a@1", 0, 5, (0,)), BatchRow("b@1", 0, 5, (1,)))))
        results.append(engine.run_iteration(Batch((BatchRow("a@1", 5, 1, (0,)), BatchRow("b@1", 5, 1, (1,))))))
        assert [token.sequence_id for token in results[-1]] == ["b@1"]
        assert engine.run_iteration(Batch((BatchRow("a@1", 6, 1, (0,)),))) == ()
    assert results[0] == results[1]


def test_what_is_beyond_the_bounds_is_computed(llama_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("rows", "positions"):
        capture = TapeCapture()
        engine = engine_of(llama_folder, capture)
        if bound == "positions":
            monkeypatch.setattr(engine._attention, "max_padded_positions", 4 * 8 * 16 - 1)
        lengths = [3] * (MAX_ROWS + 1) if bound == "rows" else [3] * 3
        driver, other = Driver(engine), Driver(engine_of(llama_folder, None))
        for each in (driver, other):
            for index, length in enumerate(lengths):
                each.add(record(str(index), prompt(index, length), max_new_tokens=3))
        assert driver.finish() == other.finish()
        assert capture.replays == 0


def test_prefills_and_mixed_batches_are_not_replayed(llama_folder: Path) -> None:
    capture = TapeCapture()
    engine = engine_of(llama_folder, capture)
    engine.add_sequence(record("a", prompt(0, 5)))
    engine.add_sequence(record("b", prompt(1, 5)))
    engine.run_iteration(Batch((BatchRow("a@1", 0, 5, (0,)),)))
    engine.run_iteration(Batch((BatchRow("a@1", 5, 1, (0,)), BatchRow("b@1", 0, 5, (1,)))))
    assert capture.replays == 0
    engine.run_iteration(Batch((BatchRow("a@1", 6, 1, (0,)), BatchRow("b@1", 5, 1, (1,)))))
    assert capture.replays == 1


def test_what_is_recorded_lives_as_long_as_its_recording(llama_folder: Path) -> None:
    """A CUDA graph holds addresses only: memory of a tensor that nothing else holds would be another's when it is replayed."""
    recorded: list[weakref.ref[Callable[[], None]]] = []

    def capture(run: Callable[[], None]) -> Callable[[], None]:
        recorded.append(weakref.ref(run))
        run()  # else the buffers that a replay leaves as they are hold what was in their memory, and no token
        return lambda: None

    engine = engine_of(llama_folder, capture)
    with torch.inference_mode():
        finished(engine, [3])
    gc.collect()
    assert recorded and all(run() is not None for run in recorded)


@pytest.mark.parametrize("block", [300, -1])
def test_a_block_that_is_not_there_is_refused(llama_folder: Path, block: int) -> None:
    engine = engine_of(llama_folder, TapeCapture())
    engine.add_sequence(record("a", prompt(0, 5)))
    engine.run_iteration(Batch((BatchRow("a@1", 0, 5, (0,)),)))
    with pytest.raises(ValueError, match=r"outside 0\.\.299"):
        engine.run_iteration(Batch((BatchRow("a@1", 5, 1, (block,)),)))
    assert len(engine.run_iteration(Batch((BatchRow("a@1", 5, 1, (0,)),)))) == 1


def test_a_model_that_cannot_be_recorded_is_computed(llama_folder: Path) -> None:
    attempts = []

    def refuse(run: Callable[[], None]) -> Callable[[], None]:
        attempts.append(run)
        raise RuntimeError("operation not permitted when stream is capturing")

    engine = engine_of(llama_folder, refuse)
    assert finished(engine, [3, 40]) == finished(engine_of(llama_folder, None), [3, 40])
    assert engine.graphs is not None and engine.graphs.off
    assert len(attempts) == 1


def test_a_cache_without_a_block_for_padding_is_refused(llama_folder: Path) -> None:
    """Padding must not write a block that a sequence may own."""
    model, facts = load_model(EngineConfig(llama_folder, "float32", "cpu", threads=1))
    with pytest.raises(ValueError, match="scratch block"):
        Engine(model, facts, PagedKvCache(facts.geometry, 4, 16, torch.float32, CPU), capture=TapeCapture())


@pytest.mark.parametrize(
    "depends",
    [
        lambda values: values.nonzero(),
        lambda values: float(values[0]),
        lambda values: values.tolist(),
        lambda values: values if values[0] > 0 else -values,
        lambda values: values[values > 0],
        lambda values: values.masked_select(values > 0),
        lambda values: values.index_put_((values > 0,), torch.zeros(1)),
        lambda values: torch.arange(3).repeat_interleave(torch.tensor([1, 2, 3])),
    ],
)
def test_operations_that_depend_on_values_are_found(depends: Callable[[torch.Tensor], object]) -> None:
    with (
        torch.inference_mode(),
        pytest.raises(DataDependentError, match="depends on values"),
        operations_do_not_depend(),
    ):
        depends(torch.tensor([1.0, 0.0, 2.0]))


def test_operations_of_one_shape_are_let_through() -> None:
    """Indices that are numbers, masks that are filled: what attention and models use."""
    values = torch.tensor([1.0, 0.0, 2.0])
    with torch.inference_mode(), operations_do_not_depend():
        picked = values[torch.tensor([2, 0])]
        values.index_put_((torch.tensor([1]),), torch.tensor([5.0]))
        filled = values.masked_fill(values > 3, -1.0)
    assert picked.tolist() == [2.0, 1.0] and filled.tolist() == [1.0, -1.0, 2.0]
