"""Folders of weights: every way to be incomplete, named in one line, and the digests of whole ones."""

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

from spotwise.engine.model.checkpoint import read_checkpoint
from spotwise.engine.model.errors import ModelError
from spotwise.engine.model.loading import EngineConfig, load_model
from spotwise.engine.model.model_digest import model_digest
from spotwise.engine.model.model_store import resolve_model
from tests.unit.engine.sharing import load
from tests.unit.engine.tiny_models import VOCAB_SIZE, llama_config, load_engine, save_model

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
UP = "model.layers.1.mlp.up_proj.weight"


Tensors = dict[str, torch.Tensor]


def change(folder: Path, damage: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    damage(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def shard(folder: Path, shards: int = 2) -> None:
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    files = [f"model-{number + 1:05}-of-{shards:05}.safetensors" for number in range(shards)]
    weight_map = {name: files[number % shards] for number, name in enumerate(sorted(tensors))}
    for file in files:
        save_file({name: tensors[name] for name, place in weight_map.items() if place == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def cut(name: str, bytes_left: int) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:bytes_left])


def lose_a_shard(folder: Path) -> None:
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def lose_a_tensor_of_a_shard(folder: Path) -> None:
    shard(folder)
    index = json.loads((folder / INDEX).read_text())
    file = folder / index["weight_map"][UP]
    save_file({name: tensor for name, tensor in load_file(file).items() if name != UP}, file)


def have_a_tensor_twice(folder: Path) -> None:
    shard(folder)
    for file in folder.glob("model-0*.safetensors"):
        save_file({**load_file(file), UP: torch.zeros(96, 96)}, file)


def have_no_map(folder: Path) -> None:
    shard(folder)
    (folder / INDEX).write_text("{}")


def rewritten(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda folder: (folder / WEIGHTS).write_bytes(change((folder / WEIGHTS).read_bytes()))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut within the last tensor": (
        cut(WEIGHTS, -5),
        rf"{WEIGHTS} is truncated: it has \d+ bytes, and model\.\S+ ends at",
    ),
    "cut within the header": (cut(WEIGHTS, 100), rf"{WEIGHTS} is truncated within its header"),
    "empty": (cut(WEIGHTS, 0), rf"{WEIGHTS} is truncated within its header"),
    "half a config": (cut("config.json", 40), r"config\.json is no JSON: "),
    "a list for a config": (lambda folder: (folder / "config.json").write_text("[]"), "is no JSON object"),
    "no config": (lambda folder: (folder / "config.json").unlink(), r"config\.json cannot be read: No such file"),
    "a lost shard": (lose_a_shard, r"model-00002-of-00002\.safetensors is missing; .* assigns \S+"),
    "a lost tensor": (lose_a_tensor_of_a_shard, rf"of-00002\.safetensors lacks {UP}, which {INDEX} assigns"),
    "a tensor twice": (have_a_tensor_twice, rf"{UP} is in \S+ and in \S+ as well"),
    "an index without a map": (have_no_map, "has no weight_map"),
    "another name": (
        lambda folder: (folder / WEIGHTS).rename(folder / "pytorch.safetensors"),
        rf"has neither {WEIGHTS} nor {INDEX}",
    ),
    "another shape": (
        rewritten(lambda raw: raw.replace(b"[96,96]", b"[96,95]", 1)),
        r"model\.\S+ is 96 x 95 numbers in F32, and 36864 bytes",
    ),
    "nonsense": (rewritten(lambda _: b"\xff" * 5000), "is no safetensors file"),
    "no JSON": (rewritten(lambda _: (8).to_bytes(8, "little") + b"{{{{{{{{"), "is no safetensors file"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_folder_that_is_not_whole_is_refused_in_one_line(name: str, folder: Path) -> None:
    damage, line = DAMAGE[name]
    damage(folder)
    with pytest.raises(ModelError, match=line) as refusal:
        read_checkpoint(folder)
    assert "\n" not in str(refusal.value)


def test_one_file_and_several_are_the_same_model(folder: Path) -> None:
    """The digest of a model does not depend on shards, folder, the order of the config's entries or the config's origin
    fields.
    """
    checkpoint = read_checkpoint(folder)
    assert [tensor.name for tensor in checkpoint.tensors] == sorted(load_file(folder / WEIGHTS))
    digest = model_digest(checkpoint)
    assert len(digest) == 16
    shard(folder, 3)
    config = json.loads((folder / "config.json").read_text())
    changed = {**config, "transformers_version": "0", "_name_or_path": "elsewhere", "use_cache": False}
    (folder / "config.json").write_text(json.dumps(dict(reversed(changed.items())), indent=7))
    assert model_digest(read_checkpoint(folder)) == digest


OTHER_UP = UP.replace("layers.1", "layers.0")
CHANGES: dict[str, Callable[[Tensors], object]] = {
    "one bit": lambda tensors: tensors[UP].view(torch.int32)[95, 95].bitwise_xor_(1),
    "another format": lambda tensors: tensors.update({UP: tensors[UP].to(torch.float64)}),
    "the same bits in another format": lambda tensors: tensors.update({UP: tensors[UP].view(torch.int32)}),
    "another name in its place": lambda tensors: tensors.update({f"{UP}s": tensors.pop(UP)}),
    "another shape": lambda tensors: tensors.update({UP: tensors[UP].reshape(48, 192)}),
    "swapped": lambda tensors: tensors.update({UP: tensors[OTHER_UP], OTHER_UP: tensors[UP]}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_other_weights_have_another_digest(name: str, folder: Path) -> None:
    """However little differs, and where time and size of the file stay as they were."""
    digest = model_digest(read_checkpoint(folder))
    change(folder, CHANGES[name])
    assert model_digest(read_checkpoint(folder)) != digest


@pytest.mark.parametrize("value", ["rms_norm_eps", "rope_theta"])
def test_a_config_that_computes_something_else_has_another_digest(value: str, folder: Path) -> None:
    digest = model_digest(read_checkpoint(folder))
    path = folder / "config.json"
    config = json.loads(path.read_text())
    place = config if value in config else config["rope_parameters"]
    place[value] *= 2
    path.write_text(json.dumps(config))
    assert model_digest(read_checkpoint(folder)) != digest


def test_a_file_that_shrinks_meanwhile_is_refused(folder: Path) -> None:
    """A file that shrinks meanwhile is refused without killing the process, as a mapped one would."""
    checkpoint = read_checkpoint(folder)
    cut(WEIGHTS, 5000)(folder)
    with pytest.raises(ModelError, match="was truncated while it was read, within "):
        model_digest(checkpoint)


TENSOR_DAMAGE: dict[str, tuple[Callable[[Tensors], object], str]] = {
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


@pytest.mark.parametrize("name", TENSOR_DAMAGE)
def test_a_folder_without_all_tensors_is_refused_by_name(name: str, folder: Path, cache: Path) -> None:
    """The folder is refused in one line, before packed weights are written for other workers."""
    damage, line = TENSOR_DAMAGE[name]
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
