"""What an engine reports of its layers while an iteration runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.core.requests.sampling import SamplingParams
from spotwise.engine.engine import Engine
from spotwise.engine.model.attention_interface import reporting_layers
from tests.unit.engine.tiny_models import load_engine, record

PROMPT = [(7 * k) % 90 for k in range(40)]
BLOCKS = (3, 0, 5)


@pytest.fixture(params=[True, False], ids=["native", "torch"])
def reporting_engine(request: pytest.FixtureRequest, llama_folder: Path) -> Engine:
    """An engine with fused layers, and one with the layers of transformers."""
    return load_engine(llama_folder, native=request.param)


def test_a_reported_layer_is_written(reporting_engine: Engine) -> None:
    """Layers are reported once each, in order, and at its report a layer's KV is final."""
    engine = reporting_engine
    seen: list[int] = []
    early: list[np.ndarray] = []

    def listen(layers: int) -> None:
        seen.append(layers)
        early.append(engine.kv.export_layers(layers - 1, 1, BLOCKS))

    engine.add_sequence(record("a", PROMPT))
    engine.run_iteration(Batch((BatchRow("a@1", 0, 40, BLOCKS),)), listen)
    assert seen == list(range(1, engine.kv.num_layers + 1))
    for layer, cells in enumerate(early):
        assert cells.any()
        assert np.array_equal(cells, engine.kv.export_layers(layer, 1, BLOCKS))


def test_listening_changes_no_token(reporting_engine: Engine) -> None:
    engine = reporting_engine
    seen: list[int] = []
    tokens = []
    for name, listener in (("a", None), ("b", seen.append)):
        engine.add_sequence(record(name, PROMPT))
        (sampled,) = engine.run_iteration(Batch((BatchRow(f"{name}@1", 0, 40, BLOCKS),)), listener)
        tokens.append(sampled.token_id)
    assert tokens[0] == tokens[1]
    reported = len(seen)
    engine.run_iteration(Batch((BatchRow("b@1", 40, 1, BLOCKS),)))
    assert len(seen) == reported


def test_forwards_that_only_score_a_prompt_are_not_reported(engine: Engine) -> None:
    """Layers are counted for the iteration's own forward alone, which computes the last of the prompt."""
    seen: list[int] = []
    engine.add_sequence(record("a", PROMPT, SamplingParams(temperature=0.0, prompt_logprobs=0)))
    engine.run_iteration(Batch((BatchRow("a@1", 0, 40, BLOCKS),)), seen.append)
    assert seen == list(range(1, engine.kv.num_layers + 1))


def test_an_iteration_that_raises_reports_no_more(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one without a listener is silent."""
    seen: list[int] = []

    def fail(layers: int) -> None:
        seen.append(layers)
        raise RuntimeError("the listener's own mistake")

    engine.add_sequence(record("a", PROMPT))
    row = BatchRow("a@1", 0, 40, BLOCKS)
    with pytest.raises(RuntimeError, match="own mistake"):
        engine.run_iteration(Batch((row,)), fail)
    engine.run_iteration(Batch((row,)))
    assert seen == [1]


def test_layers_that_come_out_of_order_are_not_reported(engine: Engine) -> None:
    """A reported number of layers covers the first ones; layers left out count as written when the iteration ends."""

    class Attention:
        on_written = None

    attention: Any = Attention()
    seen: list[int] = []
    with reporting_layers(attention, engine.kv, seen.append):
        for layer in (1, 0, 2, 1, 1):
            attention.on_written(layer)  # type: ignore[misc]
    assert seen == [1, 2]
    assert attention.on_written is None


def test_a_cache_on_the_host_has_nothing_to_wait_for(engine: Engine) -> None:
    """A host cache has no events, since its writes are complete on return."""
    engine.kv.note_written(0)
    assert engine.kv.written_event(0) is None
    assert engine.kv.device == torch.device("cpu")
