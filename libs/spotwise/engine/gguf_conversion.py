"""A GGUF file made into a folder in Hugging Face layout, with transformers' own reader.

Law: the dequantized values are kept exactly, so weights are stored as float32 (a Q4_1 value is a product and a sum of float16
numbers and 4-bit integers: bfloat16 cannot hold it); the engine rounds to its own dtype at load. The chat template goes into
`tokenizer_config.json`, and the tokenizer's end-of-sequence id is one of the generation config's.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from spotwise.engine.errors import ModelError
from spotwise.engine.progress import ProgressHandler

_STAGES = ("reading the weights", "reading the tokenizer", "writing the model")


def convert_gguf(gguf: Path, target: Path, on_progress: ProgressHandler | None) -> None:
    """Write the model of file `gguf` into the folder `target`.

    Raises:
        ModelError: transformers cannot read this file or this architecture.
    """

    def report(done: int) -> None:
        if on_progress is not None:
            stage = _STAGES[min(done, len(_STAGES) - 1)]
            on_progress(stage, done, len(_STAGES))

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    report(0)
    folder, file_name = str(gguf.parent), gguf.name
    try:
        # transformers shows a bar of its own here, on the standard error, and no option turns it off
        with contextlib.redirect_stderr(io.StringIO()):
            model: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                gguf_file=file_name,
                quantization_config=GgufConfig(dequantize=True),
                dtype=torch.float32,
            )
        report(1)
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, gguf_file=file_name)
    except (ValueError, KeyError, ImportError, OSError) as error:
        raise ModelError(f"transformers cannot convert {gguf}: {error}") from error
    report(2)
    model.generation_config.eos_token_id = _with_tokenizer_eos(
        model.generation_config.eos_token_id, tokenizer.eos_token_id
    )
    model.config.name_or_path = ""  # the file's title, which says nothing about where the model is
    model.save_pretrained(target)
    tokenizer.save_pretrained(target, save_jinja_files=False)
    for file in target.iterdir():
        file.chmod(0o644)  # safetensors makes its files private; a cache may be shared
    report(3)


def _with_tokenizer_eos(eos_token_id: int | list[int] | None, tokenizer_eos: int | None) -> int | list[int] | None:
    """Return all ids that end a text: a chat model's turn ends with the tokenizer's `eos_token`."""
    known = [] if eos_token_id is None else [eos_token_id] if isinstance(eos_token_id, int) else list(eos_token_id)
    if tokenizer_eos is not None and tokenizer_eos not in known:
        known.append(tokenizer_eos)
    return known[0] if len(known) == 1 else known or None
