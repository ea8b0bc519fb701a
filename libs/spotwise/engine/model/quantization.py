"""Weights that a checkpoint stores in fewer bits than its model computes with: which of them are read, and what they are.

Blocks of a GGUF file (`block_kinds.py`), in a folder that was converted from one, stay as they are where the kernels take them.

FP8 (E4M3) with one scale a block or a tensor is widened: a weight is its 8 bits times the scale of its block, multiplied in
float32 and rounded once, to the model's dtype. So does transformers; one process and a group get the same numbers.
Everything else is refused in parts, by the name of its kind: a weight without its scale is a wrong weight.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from spotwise.engine.block_kinds import BLOCK_KINDS, BlockKind
from spotwise.engine.model.checkpoint import StoredTensor
from spotwise.engine.model.errors import ModelError, UnsupportedModelError

#: Names that safetensors gives to the dtypes whose numbers are the weights themselves.
PLAIN_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_FLOAT8 = "F8_E4M3"
_SCALE = "_scale_inv"
#: Entries of a quantization config that would change what FP8's scales mean, with the values under which they do not.
_KNOWN_ENTRIES: Mapping[str, tuple[object, ...]] = {
    "activation_scheme": (None, "dynamic"),
    "scale_fmt": (None, "float"),
    "expert_dtype": (None, "fp8"),
    "fmt": (None, "e4m3"),
}

#: Name of the kind "blocks of a GGUF file", and the entry with each weight's kind of blocks.
BLOCKS_METHOD, BLOCKS_ENTRY = "gguf-blocks", "kinds"
_BYTES = "U8"


class Quantization:
    """What a checkpoint's config says of how its weights are stored.

    Args:
        config: content of `config.json`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        entry = config.get("quantization_config")
        self._entry: Mapping[str, Any] = entry if isinstance(entry, dict) else {}
        block = self._entry.get("weight_block_size")
        self._block = tuple(block) if isinstance(block, list | tuple) else None

    @property
    def name(self) -> str | None:
        """Its kind, as the config names it; `None`: the weights are stored as they are."""
        return str(self._entry.get("quant_method", "of an unnamed kind")) if self._entry else None

    @property
    def format(self) -> str:
        """Its kind, with the kinds of a GGUF file's blocks, e.g. `gguf:Q4_1+Q8_0`; empty where there is none."""
        if not self.is_blocks:
            return self.name or ""
        return "gguf:" + "+".join(sorted({*self._entry.get(BLOCKS_ENTRY, {}).values()}))

    @property
    def is_float8(self) -> bool:
        """Whether it is the FP8 that is widened here."""
        has_blocks = self._block is None or (
            len(self._block) == 2 and all(isinstance(size, int) for size in self._block)
        )
        known = all(self._entry.get(entry) in values for entry, values in _KNOWN_ENTRIES.items())
        return self.name == "fp8" and has_blocks and known

    @property
    def is_blocks(self) -> bool:
        """Whether weights are blocks of a GGUF file."""
        return self.name == BLOCKS_METHOD

    def kind(self, stored: StoredTensor) -> BlockKind | None:
        """Return the kind of a weight's blocks; `None`: it has none. Raises `ModelError` where it is not of that kind."""
        name = self._entry.get(BLOCKS_ENTRY, {}).get(stored.name) if self.is_blocks else None
        if name is None:
            return None
        kind = BLOCK_KINDS.get(name)
        if kind is None or stored.dtype != _BYTES or len(stored.shape) != 2 or stored.shape[1] % kind.row_block_bytes:
            raise ModelError(
                f"{stored.file}: {stored.name} does not consist of blocks of the kind {name}; convert the GGUF file again "
                "(delete this folder)"
            )
        return kind

    def require_known_float8(self, folder: Path) -> None:
        """Raise `UnsupportedModelError` where weights are FP8 of another form than the one that is widened here."""
        if self.name == "fp8" and not self.is_float8:
            raise UnsupportedModelError(
                f"the weights in {folder} are quantized (fp8) in a form whose scales are not read (static activations, for "
                "one); use the model in bfloat16, or in FP8 with scales of blocks"
            )

    def require_widened(self, folder: Path) -> None:
        """Raise `UnsupportedModelError` where the weights cannot be read one by one."""
        if self.name is not None and not self.is_float8 and not self.is_blocks:
            raise UnsupportedModelError(
                f"the weights in {folder} are quantized ({self.name}), which groups, fleets and --reshapable cannot load; use "
                "the model in bfloat16, or in FP8 with scales of blocks, or serve it with whole workers (without --parallel, "
                "--reshapable and a fleet)"
            )

    def scales(self, tensors: Iterable[StoredTensor]) -> dict[str, StoredTensor]:
        """Return the scales of 8-bit weights, by the names of these."""
        if not self.is_float8:
            return {}
        by_name = {tensor.name: tensor for tensor in tensors}
        names = [name for name in by_name if name.removesuffix(_SCALE) in by_name and name.endswith(_SCALE)]
        return {name.removesuffix(_SCALE): by_name[name] for name in names}

    def widened(
        self, stored: StoredTensor, value: torch.Tensor, scale: torch.Tensor, first_row: int = 0
    ) -> torch.Tensor:
        """Return rows of an 8-bit weight in float32, from `first_row` on.

        Args:
            stored: the weight.
            value: the rows, `[rows, columns]`.
            scale: scale of the whole weight: one number, or one a block.
        """
        if scale.numel() == 1:
            return value.float() * scale.float().reshape(())
        due = (
            None
            if self._block is None
            else tuple(-(-size // block) for size, block in zip(stored.shape, self._block, strict=False))
        )
        if self._block is None or len(stored.shape) != 2 or tuple(scale.shape) != due:
            raise ModelError(
                f"{stored.file}: the scales of {stored.name} are {tuple(scale.shape)} instead of {due or 'one number'}; "
                "copy or save the model again"
            )
        rows = torch.arange(first_row, first_row + len(value)) // self._block[0]
        columns = torch.arange(value.shape[1]) // self._block[1]
        return value.float() * scale.float()[rows][:, columns]


def require_known_formats(folder: Path, weights: Iterable[StoredTensor], quantized: Collection[str]) -> None:
    """Refuse weights whose stored numbers are not their values, and that are not among the `quantized` ones, which have a scale
    or are blocks; raises `ModelError`.
    """
    for stored in weights:
        if stored.dtype in PLAIN_DTYPES or (stored.dtype in (_FLOAT8, _BYTES) and stored.name in quantized):
            continue
        what = (
            "8-bit numbers without their scale"
            if stored.dtype.startswith("F8")
            else f"numbers of the format {stored.dtype}"
        )
        raise ModelError(
            f"{stored.name} in {folder} is stored as {what}; a weight is read from F32, BF16 or F16, or from FP8 that "
            "config.json describes (quantization_config): copy the model again, or use it in bfloat16"
        )
