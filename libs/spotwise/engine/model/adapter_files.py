"""Reads an adapter's folder in PEFT's layout, and refuses what is not a plain LoRA adapter of linear layers.

Does not import torch: `spotwise up` and the gateway read adapters with it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotwise.engine.model.checkpoint import Checkpoint, StoredTensor, json_object, stored_tensors
from spotwise.engine.model.errors import AdapterError, ModelError
from spotwise.engine.model.model_digest import model_digest

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
#: What PEFT's names begin with, before the path of a module in the model.
PREFIX = "base_model.model."
_TENSOR = re.compile(r"(?P<path>.+)\.lora_(?P<matrix>[AB])\.weight")
_FORMATS = ("F32", "F16", "BF16")
#: Entries of the config that change what is computed beyond a product of two matrices, where they are set.
_REFUSED = {
    "use_dora": "its weights are decomposed (DoRA)",
    "modules_to_save": "it has whole modules beside the low-rank matrices",
    "lora_bias": "its matrices have biases",
    "layer_replication": "it repeats layers of the model",
    "trainable_token_indices": "it has embeddings of its own",
    "target_parameters": "it adds to parameters that are no linear layer's",
    "alora_invocation_tokens": "it is active from some tokens on only",
    "use_qalora": "it pools the inputs of its matrices",
    "use_bdlora": "its matrices are block-diagonal",
    "arrow_config": "it routes tokens among adapters",
}
#: How its matrices may have been initialised: other ways change the model's weights, too.
_INITIALISED = (None, True, False, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True, slots=True)
class AdaptedModule:
    """The two matrices of one linear layer: `y += scale * (up @ (down @ x))`.

    Attributes:
        path: path of the layer in the model.
        down: `[rank, inputs]`.
        up: `[outputs, rank]`.
    """

    path: str
    down: StoredTensor
    up: StoredTensor
    scale: float

    @property
    def rank(self) -> int:
        """Columns between the two."""
        return self.down.shape[0]


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """An adapter as its folder has it.

    Attributes:
        name: in requests.
        modules: sorted by path, at least one.
        targets: names of modules that it was made for, each a module's own or the end of its path; none where the config
            has a pattern.
        is_partial: the config excludes some of the modules that `targets` name.
        digest: hash of weights and scales.
    """

    name: str
    modules: tuple[AdaptedModule, ...]
    targets: tuple[str, ...]
    is_partial: bool
    digest: str


def read_adapter(name: str, folder: Path) -> AdapterFiles:
    """Read an adapter's config and the headers of its weights, and all of them for the digest.

    Raises:
        AdapterError: a file is missing or broken, or the adapter is of another kind; says what.
    """
    try:
        return _read(name, folder)
    except AdapterError:
        raise
    except ModelError as error:
        raise AdapterError(name, str(error)) from error


def _read(name: str, folder: Path) -> AdapterFiles:
    for file in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / file).is_file():
            raise AdapterError(name, f"{folder} has no {file}; save it with PEFT's save_pretrained()")
    config = json_object(folder / CONFIG_FILE)
    _require_plain(name, config)
    tensors = tuple(sorted(stored_tensors(folder / WEIGHTS_FILE), key=lambda tensor: tensor.name))
    pairs: dict[str, dict[str, StoredTensor]] = {}
    for tensor in tensors:
        match = _TENSOR.fullmatch(tensor.name.removeprefix(PREFIX))
        if match is None or not tensor.name.startswith(PREFIX):
            raise AdapterError(name, f"{tensor.name} is no low-rank matrix of a linear layer")
        if tensor.dtype not in _FORMATS or len(tensor.shape) != 2 or not all(tensor.shape):
            raise AdapterError(name, f"{tensor.name} is {tensor.shape} of {tensor.dtype}, no matrix of {_FORMATS}")
        pairs.setdefault(match["path"], {})[match["matrix"]] = tensor
    if not pairs:
        raise AdapterError(name, f"{folder / WEIGHTS_FILE} has no tensors")
    modules = tuple(_module(name, config, path, pairs[path]) for path in sorted(pairs))
    targets = _names(config.get("target_modules"))
    is_partial = any(config.get(entry) is not None for entry in ("layers_to_transform", "exclude_modules"))
    digest = model_digest(Checkpoint({"scales": {module.path: module.scale for module in modules}}, tensors))
    return AdapterFiles(name, modules, targets, is_partial, digest)


def _require_plain(name: str, config: Mapping[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise AdapterError(name, f"its peft_type is {config.get('peft_type')!r}; only LORA is supported")
    for entry, meaning in _REFUSED.items():
        if config.get(entry):
            raise AdapterError(name, f"{meaning} ({entry} in {CONFIG_FILE}), which is not supported")
    if config.get("bias", "none") != "none":
        raise AdapterError(
            name, f"it changes biases (bias={config['bias']!r} in {CONFIG_FILE}), which is not supported"
        )
    if config.get("init_lora_weights") not in _INITIALISED:
        raise AdapterError(
            name,
            f"init_lora_weights={config['init_lora_weights']!r} changes the model's own weights, too; convert it as PEFT's "
            "save_pretrained(path_initial_model_for_weight_conversion=...) does",
        )


def _module(name: str, config: Mapping[str, Any], path: str, pair: Mapping[str, StoredTensor]) -> AdaptedModule:
    if len(pair) < 2:
        (present,) = pair
        raise AdapterError(name, f"{path} has lora_{present} alone")
    down, up = pair["A"], pair["B"]
    rank = _number(name, config, path, "r", "rank_pattern")
    alpha = _number(name, config, path, "lora_alpha", "alpha_pattern")
    if down.shape[0] != rank or up.shape[1] != rank:
        raise AdapterError(
            name, f"{path}: lora_A is {down.shape} and lora_B {up.shape}, and {CONFIG_FILE} gives the rank {rank:g}"
        )
    return AdaptedModule(path, down, up, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _number(name: str, config: Mapping[str, Any], path: str, entry: str, patterns: str) -> float:
    """Return a module's number: the first pattern's that fits the end of its path, as in PEFT, or the config's own."""
    found = config.get(entry)
    for pattern, value in (config.get(patterns) or {}).items():
        end = rf"({pattern[1:]})$" if pattern.startswith("^") else rf"(.*\.)?({pattern})$"
        try:
            fits = re.match(end, path)
        except re.error as error:
            raise AdapterError(name, f"{pattern!r} of {patterns} is no pattern: {error}") from error
        if fits:
            found = value
            break
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 < found < math.inf:
        raise AdapterError(name, f"{entry} in {CONFIG_FILE} is {found!r}, no number above 0")
    return found


def _names(targets: object) -> tuple[str, ...]:
    if not isinstance(targets, Iterable) or isinstance(targets, str):
        return ()
    return tuple(sorted(target for target in targets if isinstance(target, str)))
