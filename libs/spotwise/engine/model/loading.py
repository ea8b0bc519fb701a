"""Loads a model from its folder, with this engine's attention.

Nothing is fetched from a network, and no code of a model folder is run. A model with missing or surplus tensors is refused.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from spotwise.core.messages.numerics import Numerics
from spotwise.engine.model.attention_interface import ATTENTION_NAME, register_attention
from spotwise.engine.model.bloom import adapt_bloom
from spotwise.engine.model.checkpoint import read_checkpoint, read_config
from spotwise.engine.model.compatibility import ModelFacts, inspect_model
from spotwise.engine.model.completeness import named_conversion_errors, one_line, require_complete
from spotwise.engine.model.errors import ModelError, UnsupportedModelError
from spotwise.engine.model.kv_size import AutoKvSize
from spotwise.engine.model.model_digest import model_digest
from spotwise.engine.model.quantization import Quantization, require_known_formats
from spotwise.engine.native.library import FORMATS, load_kernels
from spotwise.engine.native.numerics import numerics_of

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_WEIGHTS = ("keep", "widen")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How to load a model.

    Attributes:
        model_dir: folder in Hugging Face layout.
        dtype: `float32`, `bfloat16`, `float16`, or `auto`: bfloat16 where the hardware multiplies it, else float32.
        device: `cpu`, `cuda`, `cuda:N`, or `auto`: CUDA if available.
        kv_cache_bytes: limit of the KV cache, which holds whole blocks; or how it is measured once the model is loaded.
        block_size: tokens of a KV block.
        threads: threads of a CPU operation; `None`: torch's default.
        native: use the native CPU kernels where they can be compiled and support the model's dtype.
        decode_graphs: record decodes and replay them, on a CUDA device.
        shared_weights: folder of packed weights that all processes of this machine map; `None`: each process keeps a copy.
        storage_bytes_per_s: at which parts of a model are read from the folder, at most; `None`: as fast as storage is.
        adapters: names and folders of LoRA adapters, which sequences may choose.
        weights: `keep`: weights that are stored in blocks (of a GGUF file) stay so in memory, where the native kernels read
            them; `widen`: they take the dtype's bytes. Tokens are the same.
    """

    model_dir: Path
    dtype: str = "auto"
    device: str = "auto"
    kv_cache_bytes: int | AutoKvSize = 1 << 30
    block_size: int = 16
    threads: int | None = None
    native: bool = True
    decode_graphs: bool = True
    shared_weights: Path | None = None
    storage_bytes_per_s: float | None = None
    adapters: tuple[tuple[str, Path], ...] = ()
    weights: str = "keep"

    def __post_init__(self) -> None:
        if self.weights not in _WEIGHTS:
            raise ValueError(f"weights is {self.weights!r}; it must be {' or '.join(_WEIGHTS)}")
        if self.dtype != "auto" and self.dtype not in _DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}; it must be auto, {', '.join(_DTYPES)}")
        if self.block_size < 1:
            raise ValueError("block_size must be at least 1")
        if self.threads is not None and self.threads < 1:
            raise ValueError("threads must be at least 1")


def resolve(config: EngineConfig) -> tuple[torch.device, torch.dtype]:
    """Return the device and the dtype that a config names; raises `ValueError` where the device does not exist."""
    device = _device(config.device)
    return device, _dtype(config.dtype, device)


def expected_numerics(config: EngineConfig) -> Numerics:
    """Return the numerics that an engine will have, as far as they are known before its model is loaded; raises `ValueError`
    where the device does not exist, or `SPOTWISE_KERNEL_ORDER` names no order.
    """
    device, dtype = resolve(config)
    is_native = computes_natively(config, device, dtype)
    try:
        quantisation = Quantization(read_config(config.model_dir)).format
    except ModelError:  # which loading will raise
        quantisation = ""
    return numerics_of(torch.empty(0, dtype=dtype, device=device), 1 if is_native else None, 1, quantisation)


def computes_natively(config: EngineConfig, device: torch.device, dtype: torch.dtype) -> bool:
    """Tell whether the native kernels compute a model on a device in a dtype, if they support its attention."""
    return config.native and device.type == "cpu" and dtype in FORMATS and load_kernels() is not None


def read_model_config(config: EngineConfig) -> Any:
    """Return the config of a model that transformers can make, and prepare transformers to make it.

    Raises:
        ModelError: the folder cannot be read.
        UnsupportedModelError: transformers has no causal language model of this type.
    """
    register_attention()
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if not config.model_dir.is_dir():
        raise ModelError(f"cannot read the config of {config.model_dir}: there is no such folder")
    try:
        model_config = AutoConfig.from_pretrained(config.model_dir, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a config class's own validation may raise anything
        raise ModelError(f"cannot read the config of {config.model_dir}: {one_line(error)}") from error
    if type(model_config) not in AutoModelForCausalLM._model_mapping:
        raise UnsupportedModelError(
            f"{model_config.model_type!r} has no causal language model in transformers; only decoder-only models can be served"
        )
    return model_config


def load_model(config: EngineConfig) -> tuple[Any, ModelFacts]:
    """Return the model, ready for inference, and its facts.

    Raises:
        ModelError: the folder cannot be loaded, or lacks tensors of the model.
        UnsupportedModelError: the model would not be computed exactly.
        ValueError: the device does not exist.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device, dtype = resolve(config)
    model_config = read_model_config(config)
    # Read before the weights are loaded, so that loading finds their pages in memory.
    checkpoint = read_checkpoint(config.model_dir)
    digest = model_digest(checkpoint)
    quantization = Quantization(checkpoint.config)
    quantization.require_known_float8(config.model_dir)
    if (
        quantization.is_float8
    ):  # widened on a GPU that could multiply it, too: groups and other machines compute the same
        model_config.quantization_config = {**checkpoint.config["quantization_config"], "dequantize": True}
    auto: Any = AutoModelForCausalLM
    try:
        with named_conversion_errors():
            model, loading_info = auto.from_pretrained(
                config.model_dir,
                config=model_config,
                dtype=dtype,
                attn_implementation=ATTENTION_NAME,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                device_map=None if device.type == "cpu" else {"": device},
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported in loading_info, and refused below by name
            )
    except ModelError:
        raise
    except Exception as error:  # any model's code and files may raise anything
        if isinstance(error, KeyError) and error.args == (ATTENTION_NAME,):  # older models choose a class by this name
            raise UnsupportedModelError(
                f"the layers of {model_config.model_type!r} have an attention of their own; this model cannot be served"
            ) from error
        raise ModelError(f"cannot load {config.model_dir}: {one_line(error)}") from error
    require_complete(config.model_dir, loading_info)
    if quantization.name is None:
        names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        own = [stored for stored in checkpoint.tensors if stored.name in names or stored.dtype.startswith("F8")]
        require_known_formats(config.model_dir, own, ())
    elif not quantization.is_float8 and getattr(model, "hf_quantizer", None) is None:
        raise UnsupportedModelError(
            f"the weights in {config.model_dir} are quantized ({quantization.name}), which transformers does not know; use the "
            "model in bfloat16"
        )
    elif quantization.is_float8:
        model.to(dtype)  # what was not in FP8 has the checkpoint's dtype yet
    model.eval().requires_grad_(False)
    adapt_bloom(model)
    facts = replace(inspect_model(model), digest=digest, quantisation=quantization.format)
    warn_of_limits(facts)
    return model, facts


def warn_of_limits(facts: ModelFacts) -> None:
    """Log why the context is shorter than the model's own, where it is."""
    if facts.context_limit is not None:
        _log.warning("context limited to %d tokens by %s", facts.context_length, facts.context_limit)


def device_name(device: str) -> str | None:
    """Return a GPU's product name; `None` for a CPU."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else None


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device is {name!r}; it must be auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device is {name!r}, and this torch sees no CUDA device; use --device cpu")
        if (device.index or 0) >= torch.cuda.device_count():
            raise ValueError(f"device is {name!r}; there are {torch.cuda.device_count()} CUDA devices")
        return torch.device("cuda", device.index or 0)
    if device.type != "cpu":
        raise ValueError(f"device is {name!r}; it must be auto, cpu, cuda or cuda:N")
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name != "auto":
        return _DTYPES[name]
    if device.type == "cuda":
        return torch.bfloat16
    capabilities = torch.cpu.get_capabilities()
    multiplies_bfloat16 = any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "arm_bf16", "bf16"))
    return torch.bfloat16 if multiplies_bfloat16 else torch.float32
