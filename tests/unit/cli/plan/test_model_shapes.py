"""Where the shapes of models come from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from spotwise.cli.errors import OptionError
from spotwise.cli.plan.model_shapes import named_shapes, parse_model_shape
from spotwise.engine.model.loading import EngineConfig
from spotwise.engine.native.shard import Shard
from spotwise.engine.parts.group_place import GroupPlace
from spotwise.engine.parts.sketch import sketch_model
from tests.unit.engine.tiny_models import llama_config, save_model

CONFIG: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "torch_dtype": "bfloat16",
}


def _folder(folder: Path, config: dict[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in tensors.items()},
        folder / "model.safetensors",
    )
    return folder


LAYERS = {f"model.layers.{layer}.mlp.weight": (8, 10) for layer in range(2)}
EMBEDDING = {"model.embed_tokens.weight": (50, 8)}


def test_a_folder_has_its_shape_and_bytes(tmp_path: Path) -> None:
    folder = _folder(
        tmp_path / "mine", CONFIG, LAYERS | EMBEDDING | {"lm_head.weight": (50, 8), "model.norm.weight": (8,)}
    )
    shape = parse_model_shape(str(folder), print)
    assert (shape.name, shape.layers, shape.hidden_size, shape.value_bytes) == ("mine", 2, 8, 2)
    assert (shape.layer_bytes, shape.embedding_bytes, shape.head_bytes) == (160, 816, 800)
    assert shape.kv_layer_token_bytes == 2 * 2 * 2 * 2  # keys and values of two heads of two numbers of two bytes


def test_a_tied_head_is_a_copy(tmp_path: Path) -> None:
    """The last stage needs one of its own."""
    shape = parse_model_shape(
        str(_folder(tmp_path / "tied", CONFIG | {"tie_word_embeddings": True}, LAYERS | EMBEDDING)), print
    )
    assert shape.head_bytes == shape.embedding_bytes == 800


def test_a_model_that_the_engine_serves_is_cut_as_the_engine_cuts_it(tmp_path: Path) -> None:
    """The head costs layers, three shards have three heads, and two cannot have them."""
    config = llama_config(num_attention_heads=3, num_key_value_heads=3, head_dim=32)
    folder, said = save_model(config, tmp_path / "llama"), list[str]()
    shape = parse_model_shape(str(folder), said.append)
    assert not said
    place = GroupPlace(Shard(1, 3, 0), 1)
    share = place.share_of(sketch_model(EngineConfig(folder, dtype="float32")))
    assert shape.partition == share.dimensions
    assert shape.shard_degrees == (1, 3)
    assert "do not divide its 3 KV heads" in (shape.why_not(1, 2) or "")
    matrices = sum(matrix.columns * matrix.inputs for matrix in share.dimensions.matrices)
    norms = 2 * config.hidden_size
    assert shape.layer_bytes == 4 * (matrices + norms)


def test_a_model_that_the_engine_cannot_serve_is_planned_with_a_warning(tmp_path: Path) -> None:
    said: list[str] = []
    shape = parse_model_shape(str(_folder(tmp_path / "strange", CONFIG, LAYERS | EMBEDDING)), said.append)
    assert shape.partition is None
    assert said and "spotwise cannot serve it" in said[0]


def test_named_models_have_their_published_sizes() -> None:
    """20 billion numbers of four bytes, for instance."""
    shapes = named_shapes()
    assert set(shapes) == {"gpt-20b", "opt-6.7b", "llama-30b", "bloom-176b", "llama2-70b"}
    assert shapes["gpt-20b"].weight_bytes == pytest.approx(4 * 20.5e9, rel=0.03)
    assert shapes["opt-6.7b"].weight_bytes == pytest.approx(4 * 6.7e9, rel=0.05)
    assert shapes["bloom-176b"].weight_bytes == 329 * 2**30
    assert parse_model_shape("GPT-20B", print) == shapes["gpt-20b"]


@pytest.mark.parametrize(
    ("config", "tensors", "said"),
    [
        ("{", LAYERS, "config.json is no JSON"),
        ("[]", LAYERS, "config.json is no object"),
        (json.dumps({**CONFIG, "hidden_size": None}), LAYERS, "hidden_size"),
        (json.dumps(CONFIG), {"model.layers.1.mlp.weight": (8, 10)}, "nothing of layer 0"),
        (json.dumps(CONFIG), None, "no *.safetensors"),
    ],
)
def test_a_folder_without_the_necessary_fields_is_refused(
    tmp_path: Path, config: str, tensors: dict[str, tuple[int, ...]] | None, said: str
) -> None:
    folder = _folder(tmp_path / "wrong", CONFIG, tensors or LAYERS)
    (folder / "config.json").write_text(config)
    if tensors is None:
        (folder / "model.safetensors").unlink()
    with pytest.raises(OptionError, match="--model") as raised:
        parse_model_shape(str(folder), print)
    assert said in str(raised.value)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "damaged", CONFIG, LAYERS)
    (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0nonsense")
    with pytest.raises(OptionError, match="no safetensors file"):
        parse_model_shape(str(folder), print)
