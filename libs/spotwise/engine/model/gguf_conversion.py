"""Converts a GGUF file to a folder in Hugging Face layout, with transformers' reader.

transformers dequantizes, names and reorders the weights: what it gives is stored exactly, in float32 (bfloat16 cannot hold a
Q4_1 value). A matrix whose rows are rows of the file, of a kind of blocks that the kernels read, is then stored as those
blocks: found by its values, so that the folder has transformers' weights, bit for bit, whatever it did to them.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import structlog
import torch
import transformers
import xxhash
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFReader, Keys, get_tensor_name_map
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from spotwise.engine.block_kinds import BLOCK_KINDS, BlockKind
from spotwise.engine.model.checkpoint import CONFIG_FILE
from spotwise.engine.model.completeness import named_conversion_errors, one_line, require_complete
from spotwise.engine.model.errors import ModelError, ProgressHandler
from spotwise.engine.model.quantization import BLOCKS_ENTRY, BLOCKS_METHOD

_log = structlog.get_logger(__name__)
_STAGES = ("reading the weights", "reading the tokenizer", "writing the model")


def convert_gguf(gguf: Path, target: Path, on_progress: ProgressHandler | None, *, widens: bool = False) -> None:
    """Write the model of file `gguf` into the folder `target`.

    Args:
        gguf: the file.
        target: an empty folder.
        on_progress: receives the stages.
        widens: store all weights in float32, as other programs read them.

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
    if not widens:
        _restore_blocks(gguf, target)
    for file in target.iterdir():
        file.chmod(0o644)  # safetensors creates private files; a cache may be shared
    report(3)


class _FileBlocks:
    """A matrix of a GGUF file that consists of blocks, and a hash of the values of each of its rows."""

    def __init__(self, kind: BlockKind, data: NDArray[np.uint8]) -> None:
        self.kind = kind
        self.data = data
        self._hashes = _row_hashes(self.widened(slice(None)))
        self.key = (self._hashes.size, int(self._hashes.sum(dtype=np.uint64)))

    def widened(self, rows: slice | NDArray[np.int64]) -> torch.Tensor:
        return self.kind.widened(torch.from_numpy(self.data[rows].copy()))

    def ordered(self, weight: torch.Tensor, hashes: NDArray[np.uint64]) -> torch.Tensor | None:
        """Return the blocks of a weight `[rows, inputs]`, whose rows have these hashes; `None`: it has other values."""
        rows = np.empty(len(hashes), dtype=np.int64)
        rows[np.argsort(hashes, kind="stable")] = np.argsort(self._hashes, kind="stable")
        own = self.widened(rows)
        is_equal = own.shape == weight.shape and torch.equal(own.view(torch.int32), weight.view(torch.int32))
        return torch.from_numpy(self.data[rows]) if is_equal else None


def _restore_blocks(gguf: Path, folder: Path) -> None:
    """Store the matrices of a converted folder as the file's blocks, where they are that; the config says of which kind."""
    reader: Any = GGUFReader(gguf)
    others: Counter[str] = Counter()
    found: dict[tuple[int, int], _FileBlocks] = {}
    for tensor in reader.tensors:
        name = GGMLQuantizationType(tensor.tensor_type).name
        kind = BLOCK_KINDS.get(name)
        if kind is not None and len(tensor.shape) == 2:
            blocks = _FileBlocks(kind, tensor.data)
            found[blocks.key] = blocks
        elif name not in ("F32", "F16", "BF16"):
            others[name] += 1
    kinds: dict[str, str] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors: dict[str, torch.Tensor] = {}
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata()
            for name in opened.keys():  # noqa: SIM118 (it is no mapping)
                tensors[name] = opened.get_tensor(name)
                if (own := _blocks_of(tensors[name], found)) is not None:
                    kinds[name], tensors[name] = own
        rewritten = file.with_suffix(".blocks")
        save_file(tensors, rewritten, metadata)
        rewritten.replace(file)
    if kinds:
        config = json.loads((folder / CONFIG_FILE).read_text())
        config["quantization_config"] = {"quant_method": BLOCKS_METHOD, BLOCKS_ENTRY: kinds}
        (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    if others:
        _log.warning(
            "gguf_weights_widened",
            file=str(gguf),
            kinds=dict(others),
            reason=f"only matrices of {', '.join(BLOCK_KINDS)} stay quantised",
        )


def _blocks_of(weight: torch.Tensor, found: dict[tuple[int, int], _FileBlocks]) -> tuple[str, torch.Tensor] | None:
    """Return the kind and the blocks of a weight; `None`: it consists of none."""
    if weight.dim() != 2 or weight.dtype is not torch.float32:
        return None
    hashes = _row_hashes(weight)
    blocks = found.get((hashes.size, int(hashes.sum(dtype=np.uint64))))
    ordered = None if blocks is None else blocks.ordered(weight, hashes)
    return None if blocks is None or ordered is None else (blocks.kind.name, ordered)


def _row_hashes(weight: torch.Tensor) -> NDArray[np.uint64]:
    rows = np.ascontiguousarray(weight.numpy())
    return np.array([xxhash.xxh3_64_intdigest(row) for row in rows], dtype=np.uint64)


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
