"""Layers computed by one native call: those of the common form in all its varieties, and those that only look like it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from structlog.testing import capture_logs
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.engine.engine import Engine
from spotwise.engine.forward.fused_decoder import FusedDecoder
from spotwise.engine.forward.fused_layer import find_parts
from spotwise.engine.kv.cache import PagedKvCache
from spotwise.engine.model.loading import EngineConfig, load_model
from spotwise.engine.native.library import Kernels
from spotwise.engine.native.packed import PackedLinear
from tests.unit.engine.tiny_models import VOCAB_SIZE, Driver, llama_config, load_engine, record
from tests.unit.engine.watched_engine import Watch

LAYERS = 3
VARIETIES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("llama", {}),
    "biases of all projections": ("llama", {"attention_bias": True}),
    "gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "an MLP of no whole panel": ("llama", {"intermediate_size": 80}),
    "one key head, heads wider than their share": ("llama", {"num_key_value_heads": 1, "head_dim": 32}),
    "all key heads": ("llama", {"num_key_value_heads": 6}),
    "a large epsilon": ("llama", {"rms_norm_eps": 0.1}),
    "window": ("mistral", {"sliding_window": 20}),
    "biases of query, key and value": ("qwen2", {}),
    "norms of query and key": ("qwen3", {"head_dim": 16}),
}


def tiny(variety: str, folder: Path) -> Path:
    """Save a model of the variety whose biases and norms are not zeros and ones."""
    model_type, changes = VARIETIES[variety]
    shape = {**llama_config().to_dict(), **changes}
    shape.pop("model_type")
    if "head_dim" not in changes:
        shape.pop("head_dim")
    config = transformers.AutoConfig.for_model(model_type, **shape)
    torch.manual_seed(0)
    model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    return folder


def first_logits(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """Return the logits after several prompts, which are computed together in chunks of 29."""
    rng = random.Random(2)
    with monkeypatch.context() as patched:
        watch = Watch(engine, patched, chunk_tokens=29)
        for length in (1, 12, 16, 45, 150):
            prompt = [rng.randrange(VOCAB_SIZE) for _ in range(length)]
            watch.add(record(str(length), prompt, max_new_tokens=1))
        watch.finish()
        logits = watch.logits
        for name in watch.results:
            engine.drop_sequence(name)
    return torch.stack([logits[key] for key in sorted(logits)]).float()


@pytest.mark.parametrize("variety", VARIETIES)
def test_a_fused_layer_computes_what_its_modules_do(
    variety: str, best_kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny(variety, tmp_path)
    logits = {}
    for dtype in ("float32", "bfloat16"):
        for native in (False, True):
            engine = load_engine(folder, dtype, native=native)
            assert engine.fused_layers == (LAYERS if native else 0)
            logits[dtype, native] = first_logits(engine, monkeypatch)
        for threads in (2, 3):
            best_kernels.set_threads(threads)
            assert torch.equal(first_logits(engine, monkeypatch), logits[dtype, True])
    exact = logits["float32", False]
    torch.testing.assert_close(logits["float32", True], exact, atol=1e-4, rtol=1e-4)
    errors = [float((logits["bfloat16", native] - exact).norm()) for native in (False, True)]
    assert errors[1] < 2 * errors[0]


@pytest.mark.parametrize(
    "changes",
    [{"hidden_act": "relu"}, {"mlp_bias": True}, {"intermediate_size": 90}, {"hidden_size": 90, "head_dim": 16}],
    ids=str,
)
def test_what_the_kernel_does_not_know_is_not_taken_for_the_common_form(changes: dict[str, Any]) -> None:
    """Another activation, biases in the MLP, widths that are no whole vectors."""
    for unlike, expected in (({}, True), (changes, False)):
        model = transformers.LlamaForCausalLM(llama_config(**unlike))
        assert [find_parts(layer) is not None for layer in model.model.layers] == [expected] * LAYERS


def test_a_fused_layer_wants_the_tokens_of_its_plan(llama_folder: Path, best_kernels: Kernels) -> None:
    """Outside an iteration there are none; with another number of them the kernel would read past its input."""
    engine = load_engine(llama_folder)
    layer = engine._model.model.layers[0]
    hidden, rotary = torch.zeros(1, 4, 96), (torch.zeros(1, 4, 16), torch.zeros(1, 4, 16))
    with pytest.raises(RuntimeError, match="outside an iteration"):
        layer(hidden, rotary)
    assert isinstance(engine._decoder, FusedDecoder)
    engine._decoder._embed.register_forward_hook(lambda _, args, output: output[:, :-1])
    engine.add_sequence(record("a", [1, 2, 3]))
    with pytest.raises(ValueError, match=r"\(1, 2, 96\) of torch.float32 given for 3 tokens"):
        engine.run_iteration(Batch((BatchRow("a@1", 0, 3, (0,)),)))


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


def tokens_of(engine: Engine) -> list[list[int]]:
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
    expected = tokens_of(engine_with(llama_folder, change, None))
    assert tokens_of(engine_with(llama_folder, change, best_kernels)) == expected
    assert tokens_of(load_engine(llama_folder)) != expected


def test_trying_layers_leaves_nothing_behind(llama_folder: Path, best_kernels: Kernels) -> None:
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
