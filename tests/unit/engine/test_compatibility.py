"""Models that are computed exactly, and those that are refused with the reason: architectures, contexts, quantizations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from spotwise.engine.engine import Engine
from spotwise.engine.model.errors import ModelError, UnsupportedModelError
from spotwise.engine.model.loading import EngineConfig, load_model
from spotwise.engine.native.shard import Shard
from spotwise.engine.parts.group_place import GroupPlace
from spotwise.engine.parts.sketch import sketch_model
from spotwise.engine.parts.weight_store import WeightStore
from tests.unit.engine.tiny_models import VOCAB_SIZE, Driver, llama_config, load_engine, record, save_model

SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "bert": ({"is_decoder": False}, "both directions"),
    "bart": ({"d_model": 32, "decoder_layers": 3}, "more layers"),
    "falcon": ({"alibi": True}, "attention of their own"),
    "falcon_h1": ({"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8}, "recurrent"),
    "gemma4_text": (
        {
            "head_dim": 8,
            "global_head_dim": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0,
        },
        "keys and values of different shapes",
    ),
    "mamba": ({"state_size": 4}, "recurrent"),
    "qwen3_next": ({"head_dim": 8, "num_experts": 2, "num_experts_per_tok": 1}, "recurrent"),
    "xmod": ({"is_decoder": True}, "cannot compute three plain tokens: ValueError: Input language unknown"),
}


@pytest.mark.parametrize("model_type", UNSUPPORTED)
def test_a_model_that_would_be_computed_wrongly_is_refused_with_the_reason(model_type: str, tmp_path: Path) -> None:
    """Attention of its own, recurrent layers, two-way attention: one sentence each, at load."""
    changes, reason = UNSUPPORTED[model_type]
    config = transformers.AutoConfig.for_model(model_type, **{**SHAPE, **changes})
    with pytest.raises(UnsupportedModelError, match=reason):
        load_engine(save_model(config, tmp_path))


def test_an_encoder_decoder_model_is_refused(tmp_path: Path) -> None:
    transformers.T5Config(d_model=16, num_layers=1, num_heads=2).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="only decoder-only"):
        load_engine(tmp_path)


@pytest.mark.parametrize(
    ("config", "context_length"),
    [
        (transformers.MistralConfig(**SHAPE, sliding_window=48), 128),
        (
            transformers.Llama4TextConfig(
                **SHAPE, attention_chunk_size=40, num_local_experts=2, interleave_moe_layer_step=1
            ),
            40,
        ),
        (transformers.BloomConfig(**{**SHAPE, "max_position_embeddings": None}), 2048),
        (transformers.BloomConfig(**{**SHAPE, "max_position_embeddings": None, "seq_length": 96}), 96),
        (
            llama_config(
                rope_parameters={
                    "rope_type": "dynamic",
                    "rope_theta": 10000.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 64,
                }
            ),
            64,
        ),
    ],
)
def test_the_context_ends_where_exactness_would(config: Any, context_length: int, tmp_path: Path) -> None:
    """Chunks, a rotary scaling that follows the batch, and what BLOOM was trained on limit the context; a window does not."""
    assert load_engine(save_model(config, tmp_path)).context_length == context_length


def test_a_broken_folder_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="config"):
        load_engine(tmp_path)
    llama_config().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor"):
        load_engine(tmp_path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "int8"}, "dtype"),
        ({"device": "tpu"}, "device"),
        ({"device": "mps"}, "device"),
        ({"threads": 0}, "threads"),
    ],
)
def test_the_error_has_the_wrong_setting(llama_folder: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Engine.load(EngineConfig(**{"model_dir": llama_folder, "device": "cpu", **changes}))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_is_an_error(llama_folder: Path) -> None:
    with pytest.raises(ValueError, match="--device cpu"):
        Engine.load(EngineConfig(llama_folder, device="cuda"))


@pytest.mark.parametrize(
    ("config", "products"),
    [
        (transformers.LlamaConfig(**SHAPE), 4 * 32 * 32 + 3 * 32 * 32),
        (transformers.LlamaConfig(**SHAPE, tie_word_embeddings=True), 4 * 32 * 32 + 3 * 32 * 32),
        (
            transformers.MixtralConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2),
            4 * 32 * 32 + 4 * 32 + 2 * 3 * 32 * 32,
        ),
    ],
)
def test_what_a_context_costs_is_counted(config: Any, products: int, tmp_path: Path) -> None:
    """A layer's products for a token, of a mixture only the experts that it takes, over those for a token of its context."""
    engine = load_engine(save_model(config, tmp_path))
    assert engine.context_parity == products / (4 * (8 + 8))


#: Does not divide the sides of a matrix.
BLOCK = (40, 32)
DOWN = "model.layers.1.mlp.down_proj.weight"


def to_float8(folder: Path, block: tuple[int, int] | None, **entries: Any) -> None:
    """Store the projections of a model in FP8, with a scale a block or one a matrix, and the rest in bfloat16."""
    tensors = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if "proj" not in name:
            tensors[name] = weight.to(torch.bfloat16)
            continue
        rows, columns = block or tuple(weight.shape)
        scales = torch.empty(-(-weight.shape[0] // rows), -(-weight.shape[1] // columns))
        stored = torch.empty_like(weight, dtype=torch.float8_e4m3fn)
        for row in range(scales.shape[0]):
            for column in range(scales.shape[1]):
                part = (slice(row * rows, (row + 1) * rows), slice(column * columns, (column + 1) * columns))
                scales[row, column] = weight[part].abs().max() / 448
                stored[part] = (weight[part] / scales[row, column]).to(torch.float8_e4m3fn)
        tensors[name], tensors[f"{name}_scale_inv"] = stored, scales
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    set_config(folder, {"quant_method": "fp8", "weight_block_size": block, **entries})


def set_config(folder: Path, quantization: dict[str, Any]) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))


def config_of(folder: Path, dtype: str = "float32") -> EngineConfig:
    return EngineConfig(folder, dtype, "cpu", kv_cache_bytes=4 << 20, threads=1)


def tokens_of(engine: Engine) -> list[int]:
    driver = Driver(engine)
    driver.add(request := record("a", list(range(2, 40)), max_new_tokens=12))
    while driver.step():
        pass
    return [token.token_id for token in driver.results[request.sequence_id]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("block", [(32, 16), None], ids=["blocks", "one scale a matrix"])
def test_fp8_has_the_same_numbers_in_a_group_and_in_one_process(
    dtype: str, block: tuple[int, int] | None, folder: Path
) -> None:
    """Bit by bit, whole and by rows, near the weights that were quantized; and so does what is computed with them."""
    true = load_file(folder / "model.safetensors")[DOWN]
    to_float8(folder, block)
    model, facts = load_model(config_of(folder, dtype))
    sketch = sketch_model(config_of(folder, dtype))
    assert facts.digest == sketch.facts.digest
    for name, value in model.state_dict().items():
        assert torch.equal(sketch.tensors.read(name), value), name
    assert torch.equal(sketch.tensors.read(DOWN, slice(37, 71)), model.state_dict()[DOWN][37:71])
    assert torch.allclose(sketch.tensors.read(DOWN).float(), true, atol=0.05, rtol=0.1)
    group = Engine.load_part(WeightStore(config_of(folder, dtype)), GroupPlace(Shard(), 1))
    assert tokens_of(group) == tokens_of(Engine.load(config_of(folder, dtype)))


def test_blocks_that_do_not_divide_a_matrix_are_widened_in_a_group(folder: Path) -> None:
    true = load_file(folder / "model.safetensors")[DOWN]
    to_float8(folder, BLOCK)
    tensors = sketch_model(config_of(folder)).tensors
    assert torch.allclose(tensors.read(DOWN), true, atol=0.05, rtol=0.1)
    assert torch.equal(tensors.read(DOWN, slice(70, 96)), tensors.read(DOWN)[70:96])


@pytest.mark.parametrize(
    ("quantization", "name"),
    [
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "compressed-tensors"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8"),
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
    ],
)
def test_other_quantizations_are_refused_in_parts_by_name(
    quantization: dict[str, Any], name: str, folder: Path
) -> None:
    set_config(folder, quantization)
    with pytest.raises(ModelError, match=rf"quantized \({name}\).*without --parallel") as refusal:
        WeightStore(config_of(folder)).structure  # noqa: B018 - it is read on first use
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("loads", [sketch_model, load_model], ids=["group", "one process"])
@pytest.mark.parametrize(
    "quantization", [{"quant_method": "fp8", "activation_scheme": "static"}, {"quant_method": "new"}]
)
def test_what_would_be_loaded_without_its_scales_is_refused_by_name(
    quantization: dict[str, Any], loads: Any, folder: Path
) -> None:
    set_config(folder, quantization)
    with pytest.raises(UnsupportedModelError, match=rf"quantized \({quantization['quant_method']}\)"):
        loads(config_of(folder))


def test_scales_that_do_not_fit_are_refused(folder: Path) -> None:
    to_float8(folder, (32, 16))
    tensors = load_file(folder / "model.safetensors")
    tensors[f"{DOWN}_scale_inv"] = torch.ones(2, 2)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"scales of .*down_proj.* are \(2, 2\) instead of \(3, 6\)"):
        sketch_model(config_of(folder)).tensors.read(DOWN)


@pytest.mark.parametrize("loads", [sketch_model, load_model], ids=["group", "one process"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.float64])
def test_numbers_that_are_no_weights_are_refused(dtype: torch.dtype, loads: Any, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[DOWN] = tensors[DOWN].to(dtype)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=f"{DOWN} in .* is stored as"):
        loads(config_of(folder))


@pytest.mark.parametrize("name", ["extra", "model.layers.0.self_attn.q_proj.bias", f"{DOWN}_scale_inv"])
def test_a_group_refuses_tensors_that_the_model_lacks(name: str, folder: Path) -> None:
    """As one process does; a bias of which the config says nothing would be left out, and so would a scale."""
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, name: torch.ones(96)}, folder / "model.safetensors", {"format": "pt"})
    for loads in (sketch_model, load_model):
        with pytest.raises(ModelError, match=f"the model has no {name};"):
            loads(config_of(folder))  # type: ignore[operator]


def test_a_group_accepts_old_buffers(folder: Path) -> None:
    """What transformers leaves out on purpose, for one rotary frequencies of old checkpoints, harms no group."""
    tensors = load_file(folder / "model.safetensors")
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    save_file({**tensors, **old}, folder / "model.safetensors", {"format": "pt"})
    assert sketch_model(config_of(folder)).facts.vocab_size == VOCAB_SIZE


def test_a_group_reads_learned_buffers(tmp_path: Path) -> None:
    """The correction of a router is no parameter, and decides which experts compute a token."""
    config = transformers.AutoConfig.for_model(
        "glm4_moe",
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    folder = save_model(config, tmp_path)
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = torch.tensor([1.0, -2.0, 3.0, 0.5])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    sketch = sketch_model(config_of(folder))
    assert torch.equal(sketch.model.state_dict()[name], tensors[name])
    tensors.pop(name)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=f"lacks {name}"):
        sketch_model(config_of(folder))
