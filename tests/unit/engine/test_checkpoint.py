"""Folders of weights: the contents of their headers, and every way to be incomplete, named in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from spotwise.engine.model.checkpoint import read_checkpoint
from spotwise.engine.model.errors import ModelError
from spotwise.engine.model.model_digest import model_digest

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
UP = "model.layers.1.mlp.up_proj.weight"


def shard(folder: Path, shards: int = 2) -> None:
    """Split the weights into files, with an index."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    files = [f"model-{number + 1:05}-of-{shards:05}.safetensors" for number in range(shards)]
    weight_map = {name: files[number % shards] for number, name in enumerate(sorted(tensors))}
    for file in files:
        save_file({name: tensors[name] for name, place in weight_map.items() if place == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def cut(name: str, bytes_left: int) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:bytes_left])

    return damage


def lose_a_shard(folder: Path) -> None:
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def lose_a_tensor_of_a_shard(folder: Path) -> None:
    shard(folder)
    index = json.loads((folder / INDEX).read_text())
    file = folder / index["weight_map"][UP]
    tensors = load_file(file)
    del tensors[UP]
    save_file(tensors, file)


def have_a_tensor_twice(folder: Path) -> None:
    shard(folder)
    for file in folder.glob("model-0*.safetensors"):
        save_file({**load_file(file), UP: torch.zeros(96, 96)}, file)


def have_no_map(folder: Path) -> None:
    shard(folder)
    (folder / INDEX).write_text("{}")


def have_another_name(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch.safetensors")


def write_another_shape(folder: Path) -> None:
    raw = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(raw.replace(b'"shape":[96,96]', b'"shape":[96,95]', 1))


def write_nonsense(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"\xff" * 5000)


def write_no_json(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((8).to_bytes(8, "little") + b"{{{{{{{{")


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut within the last tensor": (
        cut(WEIGHTS, -5),
        rf"{WEIGHTS} is truncated: it has \d+ bytes, and model\.\S+ ends at",
    ),
    "cut within the header": (cut(WEIGHTS, 100), rf"{WEIGHTS} is truncated within its header"),
    "empty": (cut(WEIGHTS, 0), rf"{WEIGHTS} is truncated within its header"),
    "half a config": (cut("config.json", 40), r"config\.json is no JSON: "),
    "a list for a config": (lambda folder: (folder / "config.json").write_text("[]") and None, "is no JSON object"),
    "no config": (lambda folder: (folder / "config.json").unlink(), r"config\.json cannot be read: No such file"),
    "a lost shard": (lose_a_shard, r"model-00002-of-00002\.safetensors is missing; .* assigns \S+"),
    "a lost tensor": (lose_a_tensor_of_a_shard, rf"of-00002\.safetensors lacks {UP}, which {INDEX} assigns"),
    "a tensor twice": (have_a_tensor_twice, rf"{UP} is in \S+ and in \S+ as well"),
    "an index without a map": (have_no_map, "has no weight_map"),
    "another name": (have_another_name, rf"has neither {WEIGHTS} nor {INDEX}"),
    "another shape": (write_another_shape, r"model\.\S+ is 96 x 95 numbers in F32, and 36864 bytes"),
    "nonsense": (write_nonsense, "is no safetensors file"),
    "no JSON": (write_no_json, "is no safetensors file"),
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


def one_bit(tensors: dict[str, torch.Tensor]) -> None:
    tensors[UP].view(torch.int32)[95, 95] ^= 1


def another_format(tensors: dict[str, torch.Tensor]) -> None:
    tensors[UP] = tensors[UP].to(torch.float64)


def another_shape(tensors: dict[str, torch.Tensor]) -> None:
    tensors[UP] = tensors[UP].reshape(48, 192)


def swapped(tensors: dict[str, torch.Tensor]) -> None:
    other = UP.replace("layers.1", "layers.0")
    tensors[UP], tensors[other] = tensors[other], tensors[UP]


@pytest.mark.parametrize(
    "change", [one_bit, another_format, another_shape, swapped], ids=lambda change: change.__name__
)
def test_other_weights_have_another_digest(change: Callable[[dict[str, torch.Tensor]], None], folder: Path) -> None:
    """However little differs, and where time and size of the file stay as they were."""
    digest = model_digest(read_checkpoint(folder))
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)
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
