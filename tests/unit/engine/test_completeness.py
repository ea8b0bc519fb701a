"""Checkpoints that lack something: refused by name where transformers would draw random numbers, and nothing is kept."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from spotwise.engine.model.errors import ModelError
from spotwise.engine.model.loading import EngineConfig, load_model
from spotwise.engine.model.model_store import resolve_model
from tests.unit.engine.sharing import load
from tests.unit.engine.tiny_models import VOCAB_SIZE, llama_config, load_engine, save_model

UP = "model.layers.1.mlp.up_proj.weight"
Tensors = dict[str, torch.Tensor]


def change(folder: Path, damage: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    damage(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


DAMAGE: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "one is missing": (lambda tensors: tensors.pop(UP), f"it lacks {UP};"),
    "many are missing": (
        lambda tensors: [tensors.pop(name) for name in list(tensors)[:9]],
        r"it lacks \S+, \S+, \S+ and 6 more;",
    ),
    "one is surplus": (lambda tensors: tensors.update(extra=torch.zeros(3)), "the model has no extra;"),
    "one has another shape": (
        lambda tensors: tensors.update({UP: torch.zeros(3, 2)}),
        f"{UP} is 3 x 2 instead of 96 x 96;",
    ),
    "there are none": (lambda tensors: tensors.clear(), r"it lacks lm_head\.weight, .* and \d+ more"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_folder_without_all_tensors_is_refused_by_name(name: str, folder: Path, cache: Path) -> None:
    """The folder is refused in one line, before packed weights are written for other workers."""
    damage, line = DAMAGE[name]
    change(folder, damage)
    with pytest.raises(ModelError, match=line) as refusal:
        load(folder, cache)
    assert "\n" not in str(refusal.value)
    assert str(folder) in str(refusal.value)
    assert not cache.exists()


@pytest.mark.parametrize("tied", [False, True])
def test_what_may_be_absent_is_not_missed(tied: bool, tmp_path: Path) -> None:
    """The head of a model that shares it with its embedding; and buffers that old checkpoints have may be there."""
    folder = save_model(llama_config(tie_word_embeddings=tied), tmp_path)
    assert ("lm_head.weight" in load_file(folder / "model.safetensors")) is not tied
    change(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}))
    assert load_engine(folder).vocab_size == VOCAB_SIZE


def test_a_shared_embedding_that_is_missing_altogether_is_missed(tmp_path: Path) -> None:
    """A tied embedding is reported missing when the checkpoint has neither of its two names."""
    folder = save_model(llama_config(tie_word_embeddings=True), tmp_path)
    change(folder, lambda tensors: tensors.pop("model.embed_tokens.weight"))
    with pytest.raises(ModelError, match=r"lacks lm_head\.weight, model\.embed_tokens\.weight;"):
        load_engine(folder)


EXPERTS: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 96,
    "intermediate_size": 64,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe"])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_experts_that_are_joined_as_they_are_loaded_are_named(model_type: str, part: int, tmp_path: Path) -> None:
    """One matrix of one expert is missing, or has another shape: what would be made of it is in the line."""
    config = transformers.AutoConfig.for_model(model_type, **EXPERTS)
    for damage in ("missing", "shape"):
        folder = save_model(config, tmp_path / damage)
        name = [name for name in load_file(folder / "model.safetensors") if ".experts.1." in name][part]
        if damage == "missing":
            change(folder, operator.methodcaller("pop", name))
        else:
            change(folder, operator.methodcaller("update", {name: torch.zeros(2, 2)}))
        with pytest.raises(ModelError, match=r"model\.layers\.0\.mlp\.experts\.\w+") as refusal:
            load_engine(folder)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"hidden_size": "abc"}, "'hidden_size' expected int"),
        ({"num_attention_heads": 0}, "cannot read the config"),
        ({"hidden_act": "nope"}, "nope"),
        ({"model_type": "nope"}, "model type `nope`"),
        ({"num_hidden_layers": 2}, r"the model has no model\.layers\.2\.\S+,"),
        ({"vocab_size": 100}, "is 211 x 96 instead of 100 x 96"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_in_one_line(changes: dict[str, Any], part: str, folder: Path) -> None:
    """Whatever it is that transformers raises then; a layer more than the config counts is not left out."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(ModelError, match=part) as refusal:
        load_engine(folder)
    assert "\n" not in str(refusal.value)


def test_a_loaded_model_knows_its_digest(folder: Path) -> None:
    """The same in every number format, and another after a change of one weight."""
    digests = {load_model(EngineConfig(folder, dtype, "cpu"))[1].digest for dtype in ("float32", "bfloat16")}
    assert len(digests) == 1
    change(folder, lambda tensors: tensors.update({UP: -tensors[UP]}))
    assert load_engine(folder).model_digest not in digests


# --- GGUF


def write_gguf(path: Path, damage: Callable[[Tensors], object] = lambda tensors: None) -> Path:
    """Write a Llama of two layers and 16 tokens, after `damage` had its tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(16)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([chr(ord("a") + number) for number in range(15)] + ["<e>"])
    writer.add_token_scores([-float(number) for number in range(16)])
    writer.add_token_types([gguf.TokenType.NORMAL] * 15 + [gguf.TokenType.CONTROL])
    writer.add_eos_token_id(15)
    tensors = {
        "token_embd.weight": torch.zeros(16, 32),
        "output_norm.weight": torch.ones(32),
        "output.weight": torch.ones(16, 32),
    }
    for layer in range(2):
        for name in ("attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            tensors[f"blk.{layer}.{name}.weight"] = torch.randn(32, 32)
        for name in ("attn_k", "attn_v"):
            tensors[f"blk.{layer}.{name}.weight"] = torch.randn(16, 32)
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{name}.weight"] = torch.ones(32)
    damage(tensors)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_whole_gguf_is_converted(tmp_path: Path) -> None:
    location = resolve_model(str(write_gguf(tmp_path / "whole.gguf")), tmp_path / "cache")
    assert load_engine(location.path).vocab_size == 16


GGUF_DAMAGE: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "no tensors": (lambda tensors: tensors.clear(), r"model\.embed_tokens\.weight"),
    "one is missing": (lambda tensors: tensors.pop("blk.1.ffn_up.weight"), r"model\.layers\.1\.mlp\.up_proj\.weight"),
    "one is surplus": (
        lambda tensors: tensors.update({"blk.7.ffn_up.weight": torch.ones(32, 32)}),
        r"no blk\.7\.ffn_up\.weight;",
    ),
    "one has another shape": (lambda tensors: tensors.update({"blk.1.ffn_up.weight": torch.ones(31, 32)}), r"up_proj"),
}


@pytest.mark.parametrize("name", GGUF_DAMAGE)
def test_a_gguf_without_all_tensors_is_refused_and_nothing_is_kept(name: str, tmp_path: Path) -> None:
    """A conversion with random numbers would be served at every later start."""
    damage, part = GGUF_DAMAGE[name]
    path = write_gguf(tmp_path / "hollow.gguf", damage)
    with pytest.raises(ModelError, match=part) as refusal:
        resolve_model(str(path), tmp_path / "cache")
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert [left for left in (tmp_path / "cache").rglob("*") if left.is_file() and left.suffix != ".lock"] == []


@pytest.mark.parametrize("bytes_left", [0, 3, 20, 200, 700, -1, -5000])
def test_a_gguf_that_was_cut_is_refused_in_one_line(bytes_left: int, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "cut.gguf")
    path.write_bytes(path.read_bytes()[:bytes_left])
    with pytest.raises(ModelError, match=r"cut\.gguf") as refusal:
        resolve_model(str(path), tmp_path / "cache")
    assert "\n" not in str(refusal.value)
    assert [left for left in (tmp_path / "cache").rglob("*") if left.is_file() and left.suffix != ".lock"] == []
