from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from spotwise.engine.engine import Engine
from spotwise.engine.model.errors import ModelError, UnsupportedModelError
from spotwise.engine.model.loading import EngineConfig
from tests.unit.engine.tiny_models import llama_config, load_engine, save_model

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
    """No config, or a config without weights."""
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
    """Types, devices and thread counts that do not exist."""
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
