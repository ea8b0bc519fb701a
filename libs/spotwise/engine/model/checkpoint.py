"""Reads the headers of a model folder's files, and finds missing or truncated ones before anything is loaded.

The folder is read as transformers reads it: `model.safetensors`, else the shards of `model.safetensors.index.json`. Does not
import torch: `spotwise up` checks models with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotwise.engine.model.errors import ModelError

CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
_WEIGHTS_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
_LENGTH_BYTES = 8
# The limit that the safetensors format sets.
_MAX_HEADER_BYTES = 100_000_000
_BITS_BY_NAMES = {8: "BOOL U8 I8", 16: "U16 I16 F16 BF16", 32: "U32 I32 F32", 64: "U64 I64 F64 C64"}
_BITS = {name: bits for bits, names in _BITS_BY_NAMES.items() for name in names.split()}
_ADVICE = "copy or save the model again"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Location and type of one tensor in a safetensors file.

    Attributes:
        dtype: as safetensors names it, e.g. `BF16`.
        start, end: byte offsets in the file.
    """

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Config and tensors of a model folder.

    Attributes:
        config: content of `config.json`.
        tensors: tensors of all its files, sorted by name.
    """

    config: dict[str, Any]
    tensors: tuple[StoredTensor, ...]


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the config and the tensor headers of a model folder.

    Raises:
        ModelError: a file is missing, truncated or unreadable, or files contradict one another; names file and tensor.
    """
    config = read_config(folder)
    by_name: dict[str, StoredTensor] = {}
    files, index = _weight_files(folder, config)
    for file in files:
        for tensor in stored_tensors(file):
            other = by_name.setdefault(tensor.name, tensor)
            if other is not tensor:
                raise ModelError(f"{tensor.name} is in {other.file} and in {file.name} as well; {_ADVICE}")
    for name, file_name in index.items():
        if name not in by_name:
            raise ModelError(f"{folder / file_name} lacks {name}, which {_INDEX_FILE} assigns to it; {_ADVICE}")
    return Checkpoint(config, tuple(by_name[name] for name in sorted(by_name)))


def read_config(folder: Path) -> dict[str, Any]:
    """Return a model's config.

    Raises:
        ModelError: the file is missing, or not a JSON object.
    """
    return json_object(folder / CONFIG_FILE)


def index_file(folder: Path, config: Mapping[str, Any]) -> list[Path]:
    """Return the index of a sharded model, in a list; an empty one: it is in one file. Raises `ModelError` where neither is."""
    _, shards = _weight_files(folder, config)
    named = config.get("transformers_weights")
    name = named if isinstance(named, str) and named.endswith(".json") else _INDEX_FILE
    return [folder / name] if shards else []


def _weight_files(folder: Path, config: Mapping[str, Any]) -> tuple[list[Path], Mapping[str, str]]:
    """Return the weight files and, for a sharded model, the index: file name by tensor name."""
    named = config.get("transformers_weights")  # a config may name the file or the index
    single, index = folder / _WEIGHTS_FILE, folder / _INDEX_FILE
    if isinstance(named, str):
        single, index = (folder / _WEIGHTS_FILE, folder / named) if named.endswith(".json") else (folder / named, index)
    if single.is_file() and not (isinstance(named, str) and named.endswith(".json")):
        return [single], {}
    if not index.is_file():
        raise ModelError(f"{folder} has neither {single.name} nor {index.name}; save the model with save_pretrained()")
    shards = json_object(index).get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(name, str) for name in shards.values()):
        raise ModelError(f"{index} has no weight_map; {_ADVICE}")
    files = [folder / name for name in sorted(set(shards.values()))]
    for file in files:
        if not file.is_file():
            first = next(name for name, shard in shards.items() if shard == file.name)
            raise ModelError(f"{file} is missing; {index.name} assigns {first} and others to it; {_ADVICE}")
    return files, shards


def stored_tensors(file: Path) -> Iterator[StoredTensor]:
    """Yield the tensors of a safetensors file; raises `ModelError` where it is none, or is truncated."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            if size < _LENGTH_BYTES + length or length > _MAX_HEADER_BYTES:
                what = "is truncated within its header" if length <= _MAX_HEADER_BYTES else "is no safetensors file"
                raise ModelError(f"{file} {what}; {_ADVICE}")
            header = json.loads(stream.read(length))
        begin = _LENGTH_BYTES + length
        tensors = [
            StoredTensor(name, file, entry["dtype"], tuple(entry["shape"]), begin + start, begin + end)
            for name, entry in header.items()
            if name != "__metadata__"
            for start, end in (entry["data_offsets"],)
        ]
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{file} is no safetensors file: its header cannot be read; {_ADVICE}") from error
    for tensor in tensors:
        if tensor.end > size:
            raise ModelError(
                f"{file} is truncated: it has {size} bytes, and {tensor.name} ends at byte {tensor.end}; {_ADVICE}"
            )
        bits = _BITS.get(tensor.dtype)
        if bits is not None and (tensor.end - tensor.start) * 8 != math.prod(tensor.shape) * bits:
            raise ModelError(
                f"{file}: {tensor.name} is {' x '.join(map(str, tensor.shape))} numbers in {tensor.dtype}, and "
                f"{tensor.end - tensor.start} bytes; {_ADVICE}"
            )
    yield from tensors


def json_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file; raises `ModelError` where there is none."""
    try:
        value = json.loads(file.read_bytes())
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # also raised for bytes that are not UTF-8
        raise ModelError(f"{file} is no JSON: {error}; {_ADVICE}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{file} is no JSON object; {_ADVICE}")
    return value
