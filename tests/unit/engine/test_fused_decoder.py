"""Whole models without their own code: the same bits, and only where a trial gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from spotwise.engine.engine import Engine
from spotwise.engine.forward import fused_decoder
from spotwise.engine.forward.fused_decoder import FusedDecoder, ModelDecoder, RotaryTable
from spotwise.engine.native.library import Kernels
from tests.unit.engine.test_fused_layer import VARIETIES, tiny
from tests.unit.engine.tiny_models import Driver, llama_config, load_engine, record, save_model


def logits_of(engine: Engine) -> list[torch.Tensor]:
    """All logits of prompts in chunks and decodes, beside each other."""
    found: list[torch.Tensor] = []
    decoder = engine._decoder
    engine._decoder = lambda *args: found.append(decoder(*args)) or found[-1]  # type: ignore[assignment, func-returns-value]
    driver = Driver(engine, chunk_tokens=20)
    for index in range(3):
        driver.add(record(str(index), list(range(1, 30 * index + 10)), max_new_tokens=12))
        driver.step()
    driver.finish()
    engine._decoder = decoder
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variety", VARIETIES)
def test_logits_have_the_bits_of_the_models_own_code(
    variety: str, dtype: str, tmp_path: Path, best_kernels: Kernels
) -> None:
    folder = tiny(variety, tmp_path)
    engine, own = load_engine(folder, dtype), load_engine(folder, dtype)
    assert isinstance(engine._decoder, FusedDecoder)
    own._decoder = ModelDecoder(own._model, own._head_input)
    pairs = list(zip(logits_of(engine), logits_of(own), strict=True))
    assert len(pairs) > 12 and all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("granite", {"embedding_multiplier": 3.0, "residual_multiplier": 1.0}),
        ("granite", {"logits_scaling": 4.0, "residual_multiplier": 1.0}),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}),
    ],
    ids=["scaled embeddings", "scaled logits", "positions that depend on the context's length"],
)
def test_what_a_model_does_beside_its_layers_stays(
    model_type: str, changes: dict[str, Any], tmp_path: Path, best_kernels: Kernels
) -> None:
    """All its layers are of the common form; tokens are those without kernels."""
    shape = {**llama_config().to_dict(), "attention_multiplier": 0.25, **changes}
    folder = save_model(transformers.AutoConfig.for_model(**{**shape, "model_type": model_type}), tmp_path / "model")
    engine, plain = load_engine(folder), load_engine(folder, native=False)
    assert engine.fused_layers == 3 and isinstance(engine._decoder, ModelDecoder)
    prompt = list(range(1, 40))
    answers = []
    for each in (engine, plain):
        driver = Driver(each)
        driver.add(record("a", prompt, max_new_tokens=12))
        answers.append(driver.finish())
    assert answers[0] == answers[1]


def test_a_table_has_the_positions_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any that were asked for, in any order, also where it grows."""
    monkeypatch.setattr(fused_decoder, "_FEWEST_POSITIONS", 8)
    module = LlamaRotaryEmbedding(llama_config(max_position_embeddings=4096))
    for dtype in (torch.float32, torch.bfloat16):
        table = RotaryTable(module, dtype)
        for asked in ([0], [3, 2, 7], [8], [5, 4000, 5], [1]):
            positions = torch.tensor([asked])
            for found, expected in zip(
                table.at(positions), module(torch.empty(0, dtype=dtype), positions), strict=True
            ):
                assert torch.equal(found, expected) and found.dtype is dtype
