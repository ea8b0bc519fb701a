from __future__ import annotations

from pathlib import Path

import pytest

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.engine.engine import Engine
from tests.unit.engine.tiny_models import VOCAB_SIZE, load_engine, record


def test_the_engine_describes_itself(engine: Engine) -> None:
    assert engine.context_length == 512
    assert engine.vocab_size == VOCAB_SIZE
    assert engine.dtype == "float32"
    assert engine.device == "cpu"
    assert engine.kv_bytes_per_token == 3 * 2 * (16 + 16) * 4
    assert engine.num_blocks == (4 << 20) // (16 * engine.kv_bytes_per_token)
    assert engine.kv.layer_block_bytes * engine.kv.num_layers == 16 * engine.kv_bytes_per_token


def test_a_cache_too_small_for_a_block_is_refused(llama_folder: Path) -> None:
    with pytest.raises(ValueError, match="one block of this model takes 12288"):
        load_engine(llama_folder, kv_cache_bytes=12287)


@pytest.mark.parametrize(
    ("prompt", "reason"), [([], "empty"), ([1] * 513, "513 tokens"), ([VOCAB_SIZE], "outside"), ([-1], "outside")]
)
def test_a_sequence_that_cannot_run_is_refused(engine: Engine, prompt: list[int], reason: str) -> None:
    """Empty, too long, or of tokens that the model does not have."""
    with pytest.raises(ValueError, match=reason):
        engine.add_sequence(record("a", prompt))
    assert engine.num_sequences == 0


def test_sequences_are_known_by_attempt_and_dropped_for_good(engine: Engine) -> None:
    """The same attempt twice is refused; dropping is idempotent; a dropped one takes no tokens."""
    engine.add_sequence(record("a", [1, 2]))
    with pytest.raises(ValueError, match="already"):
        engine.add_sequence(record("a", [3]))
    engine.append_token("a@1", 5)
    with pytest.raises(ValueError, match="outside"):
        engine.append_token("a@1", VOCAB_SIZE)
    engine.drop_sequence("a@1")
    engine.drop_sequence("a@1")
    assert engine.num_sequences == 0
    with pytest.raises(ValueError, match="not here"):
        engine.append_token("a@1", 5)


@pytest.mark.parametrize(
    "row",
    [
        BatchRow("b@1", 0, 1, (0,)),
        BatchRow("a@1", 0, 4, (0,)),
        BatchRow("a@1", 0, 0, (0,)),
        BatchRow("a@1", -1, 1, (0,)),
        BatchRow("a@1", 0, 3, ()),
        BatchRow("a@1", 0, 3, (1 << 20,)),
        BatchRow("a@1", 2, 1, (1 << 20,)),
        BatchRow("a@1", 0, 3, (-1,)),
    ],
)
def test_a_row_that_names_what_does_not_exist_changes_nothing(engine: Engine, row: BatchRow) -> None:
    """Unknown sequences, unknown tokens, missing or impossible blocks raise; the engine keeps working."""
    engine.add_sequence(record("a", [1, 2, 3]))
    with pytest.raises(ValueError):
        engine.run_iteration(Batch((row,)))
    (token,) = engine.run_iteration(Batch((BatchRow("a@1", 0, 3, (0,)),)))
    assert token.sequence_id == "a@1"


def test_tokens_come_in_the_order_of_the_rows(engine: Engine) -> None:
    """Prefills and decodes are computed in another order than they are answered in."""
    blocks = {name: (index,) for index, name in enumerate("abcd")}
    for name in "abcd":
        engine.add_sequence(record(name, [1, 2, 3]))
    engine.run_iteration(Batch(tuple(BatchRow(f"{name}@1", 0, 3, blocks[name]) for name in "bd")))
    rows = [("a", 0, 3), ("b", 3, 1), ("c", 0, 3), ("d", 3, 1)]
    batch = Batch(tuple(BatchRow(f"{name}@1", first, count, blocks[name]) for name, first, count in rows))
    assert [token.sequence_id for token in engine.run_iteration(batch)] == ["a@1", "b@1", "c@1", "d@1"]


def test_an_empty_batch_gives_nothing(engine: Engine) -> None:
    assert engine.run_iteration(Batch(())) == ()
