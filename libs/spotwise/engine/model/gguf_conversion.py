"""Converts a GGUF file to a folder in Hugging Face layout, with transformers' reader.

Dequantized values are stored exactly, in float32 (bfloat16 cannot hold a Q4_1 value); the engine rounds to its dtype at load.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import torch
import transformers
from gguf import MODEL_ARCH_NAMES, GGUFReader, Keys, get_tensor_name_map
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from spotwise.engine.model.completeness import named_conversion_errors, one_line, require_complete
from spotwise.engine.model.errors import ModelError, ProgressHandler

_STAGES = ("reading the weights", "reading the tokenizer", "writing the model")


def convert_gguf(gguf: Path, target: Path, on_progress: ProgressHandler | None) -> None:
    """Write the model of file `gguf` into the folder `target`.

    Raises:
        ModelError: transformers cannot read this file or this architecture, or tensors are missing.
    """

    def report(done: int) -> None:
        if on_progress is not None:
            stage = _STAGES[min(done, len(_STAGES) - 1)]
            on_progress(stage, done, len(_STAGES))

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    report(0)
    folder, file_name = str(gguf.parent), gguf.name
    auto: Any = AutoModelForCausalLM
    try:
        # transformers shows a progress bar on stderr here, which no option turns off
        with contextlib.redirect_stderr(io.StringIO()), named_conversion_errors():
            model, loading_info = auto.from_pretrained(
                folder,
                gguf_file=file_name,
                quantization_config=GgufConfig(dequantize=True),
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported in loading_info, and refused below by name
            )
        loading_info["unexpected_keys"] |= _surplus(gguf, model.config.num_hidden_layers)
        require_complete(gguf, loading_info)
        report(1)
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, gguf_file=file_name)
    except ModelError:
        raise
    except Exception as error:
        # gguf and transformers may raise anything for a damaged file.
        raise ModelError(
            f"transformers cannot convert {gguf}: {one_line(error)}; the file may be damaged: download it again"
        ) from error
    report(2)
    model.generation_config.eos_token_id = _with_tokenizer_eos(
        model.generation_config.eos_token_id, tokenizer.eos_token_id
    )
    model.config.name_or_path = ""  # here it is the file's title, not a location
    model.save_pretrained(target)
    tokenizer.save_pretrained(target, save_jinja_files=False)
    for file in target.iterdir():
        file.chmod(0o644)  # safetensors creates private files; a cache may be shared
    report(3)


def _surplus(gguf: Path, layers: int) -> set[str]:
    """Return the file's tensors that its architecture does not have, which transformers ignores silently."""
    reader: Any = GGUFReader(gguf)
    name = reader.get_field(Keys.General.ARCHITECTURE).contents()
    architecture = next((number for number, known in MODEL_ARCH_NAMES.items() if known == name), None)
    if architecture is None:
        return set()
    known = {tensor for _, tensor in get_tensor_name_map(architecture, layers).mapping.values()}
    names = {tensor.name for tensor in reader.tensors}
    return {name for name in names if not {name, name.removesuffix(".weight").removesuffix(".bias")} & known}


def _with_tokenizer_eos(eos_token_id: int | list[int] | None, tokenizer_eos: int | None) -> int | list[int] | None:
    """Return all end-of-sequence ids, including the tokenizer's `eos_token`, which ends a chat model's turn."""
    known = [] if eos_token_id is None else [eos_token_id] if isinstance(eos_token_id, int) else list(eos_token_id)
    if tokenizer_eos is not None and tokenizer_eos not in known:
        known.append(tokenizer_eos)
    return known[0] if len(known) == 1 else known or None
