"""Loads a whole model for one process, whose weights may stay quantised.

A folder with blocks of a GGUF file is loaded as a sketch: the native kernels take its weights as they are (`rewrite`), a few at
a time; without kernels, or where it is configured so, all of them are widened.
"""

from __future__ import annotations

from typing import Any

import structlog
import torch

from spotwise.engine.model.checkpoint import read_config
from spotwise.engine.model.checkpoint_tensors import CheckpointTensors
from spotwise.engine.model.compatibility import ModelFacts
from spotwise.engine.model.loading import EngineConfig, computes_natively, load_model, resolve, warn_of_limits
from spotwise.engine.model.quantization import Quantization
from spotwise.engine.parts.sketch import sketch_model

_log = structlog.get_logger(__name__)


@torch.inference_mode()
def load_whole(config: EngineConfig) -> tuple[Any, ModelFacts, CheckpointTensors | None]:
    """Return the model, its facts, and the weights that it lacks yet, which `rewrite` takes; raises as `load_model`."""
    if not Quantization(read_config(config.model_dir)).is_blocks:
        return *load_model(config), None
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device, dtype = resolve(config)
    sketch = sketch_model(config)
    warn_of_limits(sketch.facts)
    if config.weights == "keep" and computes_natively(config, device, dtype):
        return sketch.model, sketch.facts, sketch.tensors
    if config.weights == "keep":
        _log.warning("weights_widened", reason="only the native kernels of CPUs, in float32 and bfloat16, read blocks")
    sketch.tensors.fill("", sketch.model)
    return sketch.model.to(device), sketch.facts, None
