"""Reads single tensors of a model folder by the names of a model's parameters, so that a process loads what it computes with.

Files may name and divide tensors otherwise than the model does; transformers' own table says how (experts stacked, heads
renamed).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

from spotwise.engine.block_kinds import BlockKind
from spotwise.engine.model.checkpoint import Checkpoint, StoredTensor
from spotwise.engine.model.completeness import named_conversion_errors, one_line, require_complete
from spotwise.engine.model.errors import ModelError
from spotwise.engine.model.quantization import PLAIN_DTYPES, Quantization, require_known_formats
from spotwise.engine.model.sketch_folder import is_small, sketch_digest

_CACHE_LINE = 64

# The tensors of which a parameter is made, each with the pattern by which a converter knows it; `None`: it is the parameter.
_Sources = list[tuple[StoredTensor, str | None]]


class CheckpointTensors:
    """The tensors of a model folder by the names of a model's parameters.

    Args:
        folder: the model's folder, for messages.
        checkpoint: headers of the folder's files.
        model: whose parameters are read; they have their shapes, and need no memory.
        bytes_per_s: read no faster; `None`: as fast as storage is.

    Raises:
        ModelError: the folder has tensors that the model lacks, or stores weights in a way that is not read.
        UnsupportedModelError: they are quantized otherwise than `Quantization` widens.
    """

    def __init__(self, folder: Path, checkpoint: Checkpoint, model: Any, bytes_per_s: float | None = None) -> None:
        self._folder = folder
        #: Bytes of the folder's tensors.
        self.stored_bytes = sum(stored.end - stored.start for stored in checkpoint.tensors)
        self._has_small_only = sketch_digest(folder) is not None
        self._bytes_per_s = bytes_per_s
        self._config = model.config
        self._quantization = Quantization(checkpoint.config)
        self._quantization.require_widened(folder)
        self._scales = self._quantization.scales(checkpoint.tensors)
        kinds = {stored.name: self._quantization.kind(stored) for stored in checkpoint.tensors}
        self._kinds = {name: kind for name, kind in kinds.items() if kind is not None}
        # Buffers that a checkpoint stores are learned as well (a router's correction), and needed as parameters are.
        stored_buffers = model.state_dict(keep_vars=True)
        parameters = stored_buffers | dict(model.named_parameters(remove_duplicate=False))
        self._shapes = {name: (tuple(parameter.shape), parameter.dtype) for name, parameter in parameters.items()}
        self._tied = _tied_names(model)
        mapping = get_model_conversion_mapping(model)
        renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
        converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
        self._converters = {pattern: entry for entry in converters for pattern in entry.source_patterns}
        self._sources: dict[str, _Sources] = {}
        scales = {scale.name for scale in self._scales.values()}
        weights = [stored for stored in checkpoint.tensors if stored.name not in scales]
        for stored in sorted(weights, key=lambda tensor: dot_natural_key(tensor.name)):
            name, pattern = rename_source_key(stored.name, renamings, converters, model.base_model_prefix, parameters)
            if name not in parameters and stored.name in parameters:
                name, pattern = stored.name, None
            self._sources.setdefault(name, []).append((stored, pattern))
        self._require_explained(model, parameters)
        own = [stored for name, sources in self._sources.items() if name in parameters for stored, _ in sources]
        require_known_formats(folder, own, {*self._scales, *self._kinds})

    def read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        """Return a parameter's value, or some of its rows, in the model's dtype.

        Raises:
            ModelError: the folder does not have it in this shape, or it cannot be read.
        """
        sources = self._sources_of(name)
        if not sources:
            raise self._error(f"they lack {name}")
        shape, dtype = self._shapes[name]
        if len(sources) == 1 and sources[0][1] is None:
            stored = sources[0][0]
            self._require_shape(stored, shape)
            return self._read(stored, rows).to(dtype)
        value = self._converted(name, sources)
        if tuple(value.shape) != shape:
            raise self._error(f"{name} is made {tuple(value.shape)} instead of {shape}")
        return (value if rows is None else value[rows]).to(dtype)

    def kind(self, name: str) -> BlockKind | None:
        """Return the kind of a parameter's blocks; `None`: it is not stored in blocks, or is made of several tensors."""
        sources = self._sources_of(name)
        is_stored = len(sources) == 1 and sources[0][1] is None
        return self._kinds.get(sources[0][0].name) if is_stored else None

    def stored_name(self, name: str) -> str:
        """Return the name of the tensor that a parameter with blocks is: that of another one, where both are tied."""
        return self._sources_of(name)[0][0].name

    def read_blocks(self, name: str, rows: slice | None = None) -> torch.Tensor:
        """Return a parameter that has a kind, or some of its rows, as `[rows, bytes]`; raises `ModelError` as `read`."""
        stored = self._sources_of(name)[0][0]
        self._require_shape(stored, self._shapes[name][0])
        return self._stored(stored, rows)

    def alignment(self, name: str) -> int:
        """Return at how many bytes behind a cache line `read` returns a whole parameter, which may be mapped from its file."""
        sources = self._sources_of(name)
        if len(sources) != 1 or sources[0][1] is not None:
            return 0
        stored = sources[0][0]
        is_converted = PLAIN_DTYPES.get(stored.dtype) is not self._shapes[name][1]
        return 0 if is_converted else stored.start % _CACHE_LINE

    def fill(self, path: str, module: torch.nn.Module) -> None:
        """Give a module at `path` of the model, and all within it, its parameters on the CPU; raises `ModelError` as `read`."""
        for inner, part in module.named_modules():
            self.fill_own(".".join(filter(None, (path, inner))), part)

    @torch.inference_mode(mode=False)  # else a parameter could not be given a file's memory
    def fill_own(self, path: str, module: torch.nn.Module) -> None:
        """Do so without what is within it."""
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                value = self.read(f"{path}.{name}".lstrip("."))
                module._parameters[name] = torch.nn.Parameter(value, requires_grad=False)

    def _sources_of(self, name: str) -> _Sources:
        return self._sources.get(name) or self._sources.get(self._tied.get(name, "")) or []

    def _require_shape(self, stored: StoredTensor, shape: tuple[int, ...]) -> None:
        kind = self._kinds.get(stored.name)
        due = shape if kind is None else (shape[0], kind.row_bytes(shape[-1]))
        if stored.shape != due or (kind is not None and (len(shape) != 2 or shape[1] % kind.inputs)):
            raise self._error(f"{stored.name} is {stored.shape} instead of {due}")

    def _require_explained(self, model: Any, known: Mapping[str, Any]) -> None:
        """Refuse tensors that the model lacks and buffers that the folder lacks, by transformers' own rules for old and unused
        ones; parameters that are missing are refused as they are read.
        """
        parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        found = SimpleNamespace(
            missing_keys={name for name in known if name not in parameters and name not in self._sources},
            unexpected_keys={name for name in self._sources if name not in known},
        )
        model._adjust_missing_and_unexpected_keys(found)
        require_complete(self._folder, {**vars(found), "mismatched_keys": (), "error_msgs": ()})

    def _converted(self, name: str, sources: _Sources) -> torch.Tensor:
        pattern = sources[0][1]
        if pattern is None:
            raise self._error(f"{name} is stored more than once")
        converter: Any = deepcopy(self._converters[pattern])
        for stored, own_pattern in sources:
            converter.add_tensor(name, stored.name, own_pattern, self._read(stored, None))
        try:
            with named_conversion_errors():
                made = converter.convert(name, config=self._config)
        except Exception as error:  # conversions may raise anything
            raise self._error(f"{name} cannot be made from them: {one_line(error)}") from error
        if name not in made:
            raise self._error(f"{name} is not among what is made from them")
        value = made[name]
        tensor: torch.Tensor = value[0] if isinstance(value, list) else value
        return tensor

    def _read(self, stored: StoredTensor, rows: slice | None) -> torch.Tensor:
        """Return what is stored, or some of its rows; blocks, and 8-bit weights with their scales, in float32."""
        value = self._stored(stored, rows)
        if (kind := self._kinds.get(stored.name)) is not None:
            return kind.widened(value)
        scale = self._scales.get(stored.name)
        if scale is None:
            return value
        first_row = 0 if rows is None else rows.indices(stored.shape[0])[0]
        return self._quantization.widened(stored, value, self._stored(scale, None), first_row)

    def _stored(self, stored: StoredTensor, rows: slice | None) -> torch.Tensor:
        if self._has_small_only and not is_small(stored):
            raise ModelError(
                f"no process of the mesh has all of {stored.name}, and this one has no model folder; set SPOTWISE_MODEL_DIR, "
                "or start a process that has one"
            )
        began_s = time.monotonic()
        try:
            with safe_open(stored.file, framework="pt") as file:
                value: torch.Tensor = (
                    file.get_tensor(stored.name) if rows is None else file.get_slice(stored.name)[rows]
                )
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{stored.file} cannot be read: {error}") from error
        if self._bytes_per_s is not None:
            time.sleep(max(0.0, value.nbytes / self._bytes_per_s - (time.monotonic() - began_s)))
        return value

    def _error(self, problem: str) -> ModelError:
        return ModelError(
            f"the weights in {self._folder} are not those of the model that its config describes: {problem}; "
            "copy or save the model again"
        )


def _tied_names(model: Any) -> dict[str, str]:
    """Return, by parameter, another that has the same values, where a checkpoint may store only one of them."""
    if not model.config.get_text_config(decoder=True).tie_word_embeddings:
        return {}
    tied = model._tied_weights_keys
    return dict(tied) if isinstance(tied, dict) else {}
