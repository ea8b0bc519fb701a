"""What is put in the place of a module computes the same; a layer that only looks like the common form stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from spotwise.engine.engine import Engine
from spotwise.engine.kv.cache import PagedKvCache
from spotwise.engine.model.loading import EngineConfig, load_model
from spotwise.engine.native.library import Kernels
from spotwise.engine.native.packed import PackedLinear
from tests.unit.engine.tiny_models import Driver, load_engine, record


class ScaledResidual(LlamaDecoderLayer):
    """Has the modules of the common form, and adds a tenth more than they compute."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        output: torch.Tensor = super().forward(hidden_states, *args, **kwargs)
        return output + 0.1 * (output - hidden_states)


def clipped_mlp(layer: Any) -> None:
    """An MLP of the same modules that bounds its output (as some models' clip their activations)."""
    mlp = layer.mlp
    plain = mlp.forward
    mlp.forward = lambda x: plain(x).clamp(-0.05, 0.05)


def scaled_residual(layer: Any) -> None:
    layer.__class__ = ScaledResidual


def no_norm(layer: Any) -> None:
    """A norm of the same shape that does not divide."""
    norm = layer.input_layernorm
    norm.forward = lambda x: x * norm.weight


def engine_with(folder: Path, change: Callable[[Any], None], kernels: Kernels | None, dtype: str = "float32") -> Engine:
    """Return an engine whose second layer was changed after loading."""
    model, facts = load_model(EngineConfig(folder, dtype, "cpu", threads=1))
    change(model.model.layers[1])
    return Engine(model, facts, PagedKvCache(facts.geometry, 64, 16, facts.kv_dtype, model.device), kernels)


def tokens(engine: Engine) -> list[list[int]]:
    driver = Driver(engine, chunk_tokens=20)
    for index in range(3):
        driver.add(record(str(index), list(range(1, 30 * index + 10)), max_new_tokens=12))
        driver.step()
    return list(driver.finish().values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("change", [clipped_mlp, scaled_residual, no_norm])
def test_a_layer_that_computes_something_else_stays_as_it_was(
    change: Callable[[Any], None], dtype: str, llama_folder: Path, best_kernels: Kernels
) -> None:
    """The differing layer is logged and stays in torch; its neighbours are fused, and its linear layers packed."""
    with capture_logs() as logs:
        engine = engine_with(llama_folder, change, best_kernels, dtype)
    assert engine.is_native and engine.fused_layers == 2
    (line,) = logs
    assert (line["event"], line["log_level"], line["layer"]) == ("layer_not_fused", "warning", 1)
    assert line["difference"] > 0.02
    assert isinstance(engine._model.model.layers[1].mlp.down_proj, PackedLinear)


@pytest.mark.parametrize("change", [clipped_mlp, scaled_residual, no_norm])
def test_a_model_with_a_layer_of_its_own_keeps_its_tokens(
    change: Callable[[Any], None], llama_folder: Path, best_kernels: Kernels
) -> None:
    """A model with a custom layer keeps that layer in torch, with the tokens of the changed model."""
    expected = tokens(engine_with(llama_folder, change, None))
    assert tokens(engine_with(llama_folder, change, best_kernels)) == expected
    assert tokens(load_engine(llama_folder)) != expected


def test_trying_layers_leaves_nothing_behind(llama_folder: Path, best_kernels: Kernels) -> None:
    """The trial of layers leaves no hook and no plan; a model whose layers are all fused logs nothing."""
    with capture_logs() as logs:
        engine = load_engine(llama_folder)
    assert logs == [] and engine.fused_layers == 3
    assert engine._attention.plan is None
    assert not [module for module in engine._model.modules() if module._forward_hooks]
    assert engine.num_sequences == 0


def test_original_weights_are_given_up(llama_folder: Path, best_kernels: Kernels) -> None:
    """No linear layer keeps the weights that were packed: they would be resident twice."""
    engine = load_engine(llama_folder)
    left = {name for name, _ in engine._model.named_parameters()}
    assert left == {"model.embed_tokens.weight", "model.norm.weight"}
