"""Kinds of quantised weights that the kernels read as they are: GGUF's blocks of numbers with a scale, and maybe a minimum.

A weight's row is a row of blocks. Its value is that of the `gguf` package, whose arithmetic is exact but for one rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

#: The kernels' code of panels that are not quantised.
PLAIN = 0
#: Output columns of a panel.
_PANEL = 32


@dataclass(frozen=True, slots=True)
class BlockKind:
    """A kind of blocks.

    Attributes:
        name: as GGUF calls it.
        code: its number in the kernels (`Kind` of quantised.h).
        inputs: weights of a block.
        row_block_bytes: bytes of a block in a row.
        panel_block_bytes: bytes of a block and column in a panel, where 6-bit scales take 8 bits.
    """

    name: str
    code: int
    inputs: int
    row_block_bytes: int
    panel_block_bytes: int

    def row_bytes(self, inputs: int) -> int:
        """Return the bytes of a row of `inputs` weights, a multiple of the block's."""
        return inputs // self.inputs * self.row_block_bytes

    def panel_bytes(self, inputs: int) -> int:
        """Return the bytes of a panel of 32 such rows."""
        return inputs // self.inputs * self.panel_block_bytes * _PANEL

    def widened(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the weights `[rows, inputs]`, in float32, of rows of blocks `[rows, bytes]`."""
        from gguf import GGMLQuantizationType, dequantize  # only where weights are widened outside of the kernels

        return torch.from_numpy(dequantize(rows.numpy(), GGMLQuantizationType[self.name]))


#: All kinds that the kernels read, by name.
BLOCK_KINDS: Mapping[str, BlockKind] = {
    kind.name: kind
    for kind in (
        BlockKind("Q8_0", 1, 32, 34, 34),
        BlockKind("Q4_0", 2, 32, 18, 18),
        BlockKind("Q4_1", 3, 32, 20, 20),
        BlockKind("Q4_K", 4, 256, 144, 148),
        BlockKind("Q5_K", 5, 256, 176, 180),
        BlockKind("Q6_K", 6, 256, 210, 210),
    )
}


def kinds_of_stack(
    kinds: Sequence[BlockKind | None], rows: Sequence[int], *, interleaves: bool = False
) -> tuple[BlockKind, ...]:
    """Return the kinds in which several weights can be stacked in one matrix; empty where it has to be widened: one of them is
    not quantised, or two kinds would share a panel.

    Args:
        kinds: kind of each weight's blocks.
        rows: rows of each weight.
        interleaves: a panel has columns of each of them.
    """
    known = [kind for kind in kinds if kind is not None]
    is_mixed = len({kind.name for kind in known}) > 1
    if len(known) < len(kinds) or (is_mixed and (interleaves or any(count % _PANEL for count in rows))):
        return ()
    return tuple(known)
