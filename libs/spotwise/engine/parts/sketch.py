"""A model with its structure and none of its large weights, from which a group's member learns what it needs to load.

All matrices are zeros that take no memory, and the model can still run: the facts of a model depend on its structure, and on
its small parameters (norms, biases, sinks), which are real.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from spotwise.engine.kv.reserved_memory import reserved_zeros
from spotwise.engine.model.attention_interface import ATTENTION_NAME
from spotwise.engine.model.bloom import adapt_bloom
from spotwise.engine.model.checkpoint import read_checkpoint
from spotwise.engine.model.checkpoint_tensors import CheckpointTensors
from spotwise.engine.model.compatibility import ModelFacts, inspect_model
from spotwise.engine.model.completeness import one_line
from spotwise.engine.model.errors import ModelError, UnsupportedModelError
from spotwise.engine.model.loading import EngineConfig, read_model_config, resolve
from spotwise.engine.model.model_digest import model_digest
from spotwise.engine.model.quantization import Quantization
from spotwise.engine.model.sketch_folder import sketch_digest


@dataclass(frozen=True, slots=True)
class Sketch:
    """A model without its large weights.

    Attributes:
        model: its matrices are zero.
        facts: properties of the real model.
        tensors: the real weights.
    """

    model: Any
    facts: ModelFacts
    tensors: CheckpointTensors

    def copied(self, module: torch.nn.Module) -> Any:
        """Return a copy of the model, or of a module of it, whose modules may be replaced; it shares all parameters."""
        shared = (*self.model.parameters(), *self.model.buffers())
        return deepcopy(module, {id(tensor): tensor for tensor in shared})


@torch.inference_mode()
def sketch_model(config: EngineConfig) -> Sketch:
    """Return the sketch of the model in `config.model_dir`, on the CPU.

    Raises:
        ModelError: the folder cannot be loaded.
        UnsupportedModelError: the model would not be computed exactly, or not in parts.
    """
    _, dtype = resolve(config)
    model_config = read_model_config(config)
    checkpoint = read_checkpoint(config.model_dir)
    auto: Any = AutoModelForCausalLM
    try:
        with torch.device("meta"):
            model = auto.from_config(model_config, dtype=dtype, attn_implementation=ATTENTION_NAME)
    except Exception as error:  # any model's code may raise anything
        raise ModelError(f"cannot make the model of {config.model_dir}: {one_line(error)}") from error
    if dtype is not torch.float32 and (model._keep_in_fp32_modules or model._keep_in_fp32_modules_strict):
        raise UnsupportedModelError(
            f"{model_config.model_type!r} keeps some weights in float32; serve it in parts with --dtype float32 only"
        )
    tensors = CheckpointTensors(config.model_dir, checkpoint, model, config.storage_bytes_per_s)
    model.eval().requires_grad_(False)
    _fill_buffers(model, tensors)
    _fill_parameters(model, tensors)
    adapt_bloom(model)
    digest = sketch_digest(config.model_dir) or model_digest(checkpoint)
    quantisation = Quantization(checkpoint.config).format
    return Sketch(model, replace(inspect_model(model), digest=digest, quantisation=quantisation), tensors)


def _fill_buffers(model: Any, tensors: CheckpointTensors) -> None:
    """Compute the buffers that no checkpoint stores (rotary frequencies, masks), as transformers does after loading; read the
    others.
    """
    for path, module in model.named_modules():
        own = list(module._buffers)
        for name in own:
            if module._buffers[name] is not None:
                module._buffers[name] = torch.zeros_like(module._buffers[name], device="cpu")
        if own:
            model._init_weights(module)
        for name in own:
            if module._buffers[name] is not None and name not in module._non_persistent_buffers_set:
                module._buffers[name] = tensors.read(f"{path}.{name}".lstrip("."))


@torch.inference_mode(mode=False)  # as `CheckpointTensors.fill_own`
def _fill_parameters(model: Any, tensors: CheckpointTensors) -> None:
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        path, _, own = name.rpartition(".")
        is_small = parameter.dim() < 2
        value = tensors.read(name) if is_small else reserved_zeros(tuple(parameter.shape), parameter.dtype)
        model.get_submodule(path)._parameters[own] = torch.nn.Parameter(value, requires_grad=False)
