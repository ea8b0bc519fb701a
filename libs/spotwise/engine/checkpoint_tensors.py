"""Reads single tensors of a model folder into a model's parameters, so that a process loads only what it computes with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from spotwise.engine.checkpoint import Checkpoint, StoredTensor
from spotwise.engine.errors import ModelError


class CheckpointTensors:
    """The tensors of a model folder by the names of a model's parameters.

    Args:
        folder: of the model, for messages.
        checkpoint: of the folder.
        model: whose parameters are read; they have their shapes, and need no memory.
    """

    def __init__(self, folder: Path, checkpoint: Checkpoint, model: Any) -> None:
        self._folder = folder
        self._stored = {tensor.name: tensor for tensor in checkpoint.tensors}
        self._prefix = f"{model.base_model_prefix}."
        self._shapes = {name: parameter.shape for name, parameter in model.named_parameters(remove_duplicate=False)}
        self._tied = _tied_names(model)
        self._dtypes = {name: p.dtype for name, p in model.named_parameters(remove_duplicate=False)}

    def read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        """Return a parameter's value, or some of its rows, in the model's dtype.

        Raises:
            ModelError: no file has it under this name, in this shape, or it cannot be read.
        """
        stored = self._find(name)
        try:
            with safe_open(stored.file, framework="pt") as file:
                value = file.get_slice(stored.name)[rows] if rows is not None else file.get_tensor(stored.name)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{stored.file} cannot be read: {error}") from error
        return value.to(self._dtypes[name])

    def fill(self, path: str, module: torch.nn.Module) -> None:
        """Give a module at `path` of the model, and all within it, its parameters on the CPU.

        Raises:
            ModelError: a tensor is missing, of another shape, or cannot be read.
        """
        for inner, part in module.named_modules():
            self.fill_own(".".join(filter(None, (path, inner))), part)

    def fill_own(self, path: str, module: torch.nn.Module) -> None:
        """Do so without what is within it."""
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                value = self.read(f"{path}.{name}".lstrip("."))
                module._parameters[name] = torch.nn.Parameter(value, requires_grad=False)

    def _find(self, name: str) -> StoredTensor:
        for candidate in (name, self._tied.get(name)):
            if candidate is None:
                continue
            for key in (candidate, candidate.removeprefix(self._prefix), f"{self._prefix}{candidate}"):
                if (stored := self._stored.get(key)) is not None:
                    if stored.shape != tuple(self._shapes[name]):
                        raise self._error(f"{stored.name} is {stored.shape} instead of {tuple(self._shapes[name])}")
                    return stored
        raise self._error(f"they lack {name}")

    def _error(self, problem: str) -> ModelError:
        return ModelError(
            f"the weights in {self._folder} are not stored as its model names them: {problem}; "
            "save the model again with save_pretrained(), or serve it with one stage and one shard"
        )


def _tied_names(model: Any) -> dict[str, str]:
    """Return, by parameter, another that has the same values, where a checkpoint may store only one of them."""
    if not model.config.get_text_config(decoder=True).tie_word_embeddings:
        return {}
    tied = model._tied_weights_keys or {}
    return dict(tied) if isinstance(tied, dict) else {}
