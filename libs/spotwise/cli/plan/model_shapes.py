"""Models to plan for: those of papers, by name, and any model's folder. A folder's shape comes from config.json and the headers
of its safetensors files, without loading: numbered tensors are layers, the head has its name, others count to the embedding.
Where the engine can serve the folder's model, stages and shards have what the engine's have; papers' models are cut as there.

The models of SpotServe's paper have single-precision weights: 12 x hidden^2 a layer, and an embedding of about 50,000 rows
copied by the last stage (Table 1, section 6.1). The artifact's "30B" has 48 layers of 7,168, LLaMA-30B 60 of 6,656.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from spotwise.cli.errors import OptionError
from spotwise.core.parallel.model_partition import ModelDimensions
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.engine.model.errors import ModelError
from spotwise.files.user_folders import NoHomeError, expanded
from spotwise.simulator.costs.hardware import LANGUAGE_MODELS, LanguageModel

_VOCABULARY = 50_304
_FLOAT32_BYTES = 4

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks?)\.(\d+)\.")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out)\.")
_VALUE_BYTES = {"float32": 4, "float64": 8}
_HEADER_LENGTH = struct.Struct("<Q")


def _shape(name: str, layers: int, hidden_size: int) -> ModelShape:
    embedding_bytes = _VOCABULARY * hidden_size * _FLOAT32_BYTES
    return ModelShape(
        name,
        layers,
        hidden_size,
        layer_bytes=12 * hidden_size**2 * _FLOAT32_BYTES,
        embedding_bytes=embedding_bytes,
        head_bytes=embedding_bytes,
        kv_layer_token_bytes=2 * hidden_size * _FLOAT32_BYTES,
        value_bytes=_FLOAT32_BYTES,
    )


OPT_6_7B_SHAPE = _shape("OPT-6.7B", 32, 4096)
GPT_20B_SHAPE = _shape("GPT-20B", 44, 6144)
LLAMA_30B_SHAPE = _shape("LLaMA-30B", 48, 7168)
PAPER_SHAPES = (OPT_6_7B_SHAPE, GPT_20B_SHAPE, LLAMA_30B_SHAPE)


def named_shapes() -> dict[str, ModelShape]:
    """Return the shapes of the named models."""
    shapes = [*PAPER_SHAPES, *map(_of_language_model, LANGUAGE_MODELS.values())]
    return {shape.name.lower(): shape for shape in shapes}


def parse_model_shape(model: str, warn: Callable[[str], object]) -> ModelShape:
    """Return the shape of a named model or of the one in a folder, and warn of a folder that the engine cannot serve.
    Neither, or an incomplete folder, raises `OptionError`.
    """
    named = named_shapes()
    if (shape := named.get(model.lower())) is not None:
        return shape
    try:
        folder = expanded(model)
    except NoHomeError as error:
        raise OptionError(f"--model {error}") from error
    if not folder.is_dir():
        raise OptionError(
            f"--model {model!r} is no folder and none of {', '.join(sorted(named))}; "
            "give one of these, or a folder with config.json and *.safetensors"
        )
    shape = _of_folder(folder)
    try:
        return replace(shape, partition=_partition(folder))
    except ModelError as error:
        warn(f"{shape.name} is planned as the papers cut models; spotwise cannot serve it: {error}")
        return shape


def _partition(folder: Path) -> ModelDimensions:
    from spotwise.engine.model.loading import EngineConfig  # torch takes seconds to import
    from spotwise.engine.parts.part_sizes import model_partition

    return model_partition(EngineConfig(model_dir=folder))


def _of_language_model(model: LanguageModel) -> ModelShape:
    layer_bytes = model.weight_bytes // model.layers
    rest = model.weight_bytes - layer_bytes * model.layers
    kv = model.kv_token_bytes // model.layers
    return ModelShape(model.name, model.layers, model.hidden_size, layer_bytes, rest, 0, kv, model.value_bytes)


def _of_folder(folder: Path) -> ModelShape:
    config = _config(folder)
    layers = _number(config, "num_hidden_layers", folder)
    heads = _number(config, "num_attention_heads", folder)
    hidden = _number(config, "hidden_size", folder)
    kv_heads = config.get("num_key_value_heads") or heads
    head_size = config.get("head_dim") or hidden // heads
    value_bytes = _VALUE_BYTES.get(str(config.get("dtype") or config.get("torch_dtype")), 2)
    layer_bytes, embedding_bytes, head_bytes = _weights(folder, layers)
    if config.get("tie_word_embeddings", False) and not head_bytes:
        head_bytes = embedding_bytes  # the last stage has a copy of its own
    return ModelShape(
        folder.resolve().name,
        layers,
        hidden,
        layer_bytes,
        embedding_bytes,
        head_bytes,
        2 * kv_heads * head_size * value_bytes,
        value_bytes,
    )


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = orjson.loads((folder / "config.json").read_bytes())
    except OSError as error:
        raise OptionError(f"--model {folder}: it has no config.json that can be read ({error.strerror})") from error
    except orjson.JSONDecodeError as error:
        raise OptionError(f"--model {folder}: config.json is no JSON ({error})") from error
    if not isinstance(config, dict):
        raise OptionError(f"--model {folder}: config.json is no object")
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, dict) else config


def _number(config: Mapping[str, Any], name: str, folder: Path) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise OptionError(f"--model {folder}: config.json has no {name}")
    return value


def _weights(folder: Path, layers: int) -> tuple[int, int, int]:
    by_layer = [0] * layers
    embedding_bytes = head_bytes = 0
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise OptionError(f"--model {folder}: it has no *.safetensors; save the model with save_pretrained()")
    for file in files:
        for name, num_bytes in _tensors(file):
            layer = _LAYER.search(name)
            if layer is not None and int(layer[1]) < layers:
                by_layer[int(layer[1])] += num_bytes
            elif _HEAD.search(name):
                head_bytes += num_bytes
            else:
                embedding_bytes += num_bytes
    if not all(by_layer):
        missing = by_layer.index(0)
        raise OptionError(f"--model {folder}: its *.safetensors have nothing of layer {missing} of {layers}")
    return max(by_layer), embedding_bytes, head_bytes


def _tensors(file: Path) -> list[tuple[str, int]]:
    try:
        with file.open("rb") as stream:
            (length,) = _HEADER_LENGTH.unpack(stream.read(_HEADER_LENGTH.size))
            header = orjson.loads(stream.read(length))
        return [
            (name, tensor["data_offsets"][1] - tensor["data_offsets"][0])
            for name, tensor in header.items()
            if name != "__metadata__"
        ]
    except (OSError, struct.error, orjson.JSONDecodeError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise OptionError(f"--model: {file} is no safetensors file ({error})") from error
