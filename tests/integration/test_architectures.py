"""Every architecture that we name is served with transformers' own tokens, whatever its layers add to plain attention."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from spotwise.engine.engine import Engine
from spotwise.engine.kv.cache import PagedKvCache
from spotwise.engine.model.attention_interface import LayerAttention
from spotwise.engine.model.compatibility import ModelFacts
from spotwise.engine.model.loading import EngineConfig, load_model
from tests.integration.test_engine_equality import generate_alone
from tests.unit.engine.tape_capture import TapeCapture
from tests.unit.engine.tiny_models import VOCAB_SIZE, Driver, load_engine, record, save_model

NEW_TOKENS = 10
WINDOW = 12
CONTEXT_LENGTH = 256
# One shorter than any window, one that grows past it while decoding, several longer than it and than a tile of queries.
PROMPT_LENGTHS = (3, WINDOW - 4, 30, 75, 150)
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 96,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT_LENGTH,
    "seq_length": CONTEXT_LENGTH,
    "initializer_range": 0.5,
    "tie_word_embeddings": False,  # tied to random embeddings, a tiny model repeats its last token
    "init_std": 0.5,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
MIXED_LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

# Model type, config, and what its layers compute beside plain attention (scaling: where it is not the usual one).
MODELS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "llama": ("llama", {}, ()),
    "mistral": ("mistral", {"sliding_window": WINDOW}, ("window",)),
    "qwen2": ("qwen2", {}, ()),
    "qwen2 with windows": ("qwen2", {**MIXED_LAYERS, "use_sliding_window": True}, ("window",)),
    "qwen3": ("qwen3", {"head_dim": 16}, ()),
    "qwen3 with windows": ("qwen3", {**MIXED_LAYERS, "use_sliding_window": True, "head_dim": 16}, ("window",)),
    "phi3": ("phi3", {"sliding_window": WINDOW, "pad_token_id": 0}, ("window",)),
    "starcoder2": ("starcoder2", {"sliding_window": WINDOW}, ("window",)),
    "gemma2": (
        "gemma2",
        {**MIXED_LAYERS, "head_dim": 16, "query_pre_attn_scalar": 4, "attn_logit_softcapping": 3.0},
        ("window", "softcap", "scaling"),
    ),
    "gemma3": ("gemma3_text", {**MIXED_LAYERS, "head_dim": 16, "query_pre_attn_scalar": 4}, ("window", "scaling")),
    "opt": ("opt", {"ffn_dim": 64, "word_embed_proj_dim": 96}, ("scaling",)),
    "opt with projections": (
        "opt",
        {"ffn_dim": 64, "word_embed_proj_dim": 24, "do_layer_norm_before": False},
        ("scaling",),
    ),
    "gpt2": ("gpt2", {}, ()),
    "gpt2 scaled by layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, ("scaling",)),
    "gpt_neox": ("gpt_neox", {}, ()),
    "gpt_neox in sequence": ("gpt_neox", {"use_parallel_residual": False}, ()),
    "bloom": ("bloom", {}, ("alibi_slopes",)),
    "bloom after its norms": ("bloom", {"apply_residual_connection_post_layernorm": True}, ("alibi_slopes",)),
    "mixtral": ("mixtral", {"num_local_experts": 4, "sliding_window": WINDOW}, ("window",)),
    "olmoe": ("olmoe", EXPERTS, ()),
    "qwen2_moe": ("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 16}, ()),
    "qwen3_moe": ("qwen3_moe", {**EXPERTS, "head_dim": 16}, ()),
    "gpt_oss": (
        "gpt_oss",
        {**MIXED_LAYERS, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
        ("window", "sinks"),
    ),
}


#: Architectures that we do not name.
OTHERS: dict[str, dict[str, Any]] = {
    "cohere": {},
    "deepseek_v3": {
        "num_key_value_heads": 6,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 16,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 12,
        "first_k_dense_replace": 1,
    },
    "gemma": {"head_dim": 8},
    "granite": {"attention_multiplier": 0.3, "logits_scaling": 2.0, "residual_multiplier": 0.5},
    "olmo2": {},
    "phi": {},
    "stablelm": {},
}

#: Whose layers one native call computes.
FUSED = {"llama", "mistral", "qwen2", "qwen2 with windows", "qwen3", "qwen3 with windows"}


def tiny(name: str, folder: Path, **more: Any) -> Path:
    """A model with random weights: biases, norms and sinks too, which initialization leaves at zero or one."""
    model_type, changes, _ = MODELS[name]
    config = transformers.AutoConfig.for_model(model_type, **{**SHAPE, **changes, **more})
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    return folder


def prompts() -> list[list[int]]:
    rng = random.Random(3)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in PROMPT_LENGTHS]


def served(engine: Engine, chunk_tokens: int) -> list[list[int]]:
    """Run all prompts, arriving one by one: prefills, chunks and decodes share iterations."""
    driver = Driver(engine, chunk_tokens)
    for index, prompt in enumerate(prompts()):
        driver.add(record(str(index), prompt, max_new_tokens=NEW_TOKENS))
        driver.step()
    return list(driver.finish().values())


@pytest.mark.parametrize("name", MODELS)
def test_an_architecture_gives_transformers_tokens(name: str, tmp_path: Path) -> None:
    """Whole prompts and chunks of 29, contexts shorter and longer than a window, alone and beside others; also natively."""
    folder = tiny(name, tmp_path)
    expected = generate_alone(folder, prompts(), NEW_TOKENS)
    assert sum(len(set(tokens)) for tokens in expected) >= 20, "the model repeats itself: it proves little"
    for native in (False, True):
        engine = load_engine(folder, native=native)
        assert engine.context_length == CONTEXT_LENGTH
        assert engine.is_native is native
        assert engine.fused_layers == (SHAPE["num_hidden_layers"] if native and name in FUSED else 0)
        assert served(engine, 1 << 30) == expected
        assert served(load_engine(folder, native=native), 29) == expected


@pytest.mark.parametrize("model_type", OTHERS)
def test_other_decoder_only_architectures_give_transformers_tokens(model_type: str, tmp_path: Path) -> None:
    config = transformers.AutoConfig.for_model(model_type, **{**SHAPE, "initializer_range": 0.2, **OTHERS[model_type]})
    folder = save_model(config, tmp_path)
    expected = generate_alone(folder, prompts(), NEW_TOKENS)
    assert served(load_engine(folder), 13) == expected


@pytest.mark.parametrize("name", MODELS)
def test_an_architecture_gives_transformers_tokens_when_its_decodes_are_replayed(name: str, tmp_path: Path) -> None:
    """Replayed operation by operation from padded buckets, as CUDA graphs are, decodes give the tokens of transformers."""
    folder = tiny(name, tmp_path)
    engine, capture = recording(folder)
    assert served(engine, 29) == generate_alone(folder, prompts(), NEW_TOKENS)
    assert engine.graphs is not None and not engine.graphs.off
    assert capture.replays > engine.graphs.recorded > 0


def test_experts_that_run_one_by_one_are_computed_and_not_replayed(tmp_path: Path) -> None:
    """Experts selected by token values are detected before recording, and the tokens are still those of transformers."""
    folder = tiny("mixtral", tmp_path)
    engine, capture = recording(folder)
    engine._model.set_experts_implementation("eager")
    assert served(engine, 29) == generate_alone(folder, prompts(), NEW_TOKENS)
    assert engine.graphs is not None and engine.graphs.off
    assert capture.replays == 0


@pytest.mark.parametrize(("name", "term"), [(name, term) for name, (_, _, terms) in MODELS.items() for term in terms])
def test_every_term_of_a_layer_counts(name: str, term: str, tmp_path: Path) -> None:
    """The probe found it, and without it the tokens are others: the equality above is no accident."""
    folder = tiny(name, tmp_path)
    model, facts = load_model(EngineConfig(folder, "float32", "cpu", threads=1))
    usual = LayerAttention(scaling=facts.geometry.key_dim**-0.5)
    changed = tuple(replace(layer, **{term: getattr(usual, term)}) for layer in facts.layers)
    assert changed != facts.layers
    assert served(engine_of(model, replace(facts, layers=changed)), 29) != served(engine_of(model, facts), 29)


@pytest.mark.parametrize("name", MODELS)
def test_nothing_else_is_read_into_a_layer(name: str, tmp_path: Path) -> None:
    _, facts = load_model(EngineConfig(tiny(name, tmp_path), "float32", "cpu", threads=1))
    usual = LayerAttention(scaling=cast(float, pytest.approx(facts.geometry.key_dim**-0.5)))
    terms = {term: getattr(usual, term) for term in MODELS[name][2]}
    for layer in facts.layers:
        assert usual == replace(layer, **terms)


def recording(folder: Path) -> tuple[Engine, TapeCapture]:
    """An engine that replays its decodes, by torch alone."""
    model, facts = load_model(EngineConfig(folder, "float32", "cpu", threads=1))
    capture = TapeCapture()
    cache = PagedKvCache(facts.geometry, 64, 16, torch.float32, model.device, scratch=True)
    return Engine(model, facts, cache, capture=capture), capture


def engine_of(model: Any, facts: ModelFacts) -> Engine:
    return Engine(model, facts, PagedKvCache(facts.geometry, 64, 16, torch.float32, model.device))
