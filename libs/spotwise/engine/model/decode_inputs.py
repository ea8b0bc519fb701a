"""Inputs of recorded decodes, and the interface of attention that can be recorded; see `decode_graphs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from spotwise.engine.kv.cache import KvPlaces


@dataclass(frozen=True, slots=True)
class Bucket:
    """A padded batch size that has its own recording.

    Attributes:
        rows: with padding.
        blocks: columns of the block tables, with padding; 0 where attention does not read them from the input buffer.
    """

    rows: int
    blocks: int


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """Inputs of a recorded decode on the device, in the bucket's shape: views of one buffer.

    Attributes:
        bucket: the padded size.
        token_ids: `[rows]`.
        positions: `[rows]`: of these tokens.
        places: where their keys and values are written.
        tables: `[rows, blocks]`: block tables, padded with the scratch block.
    """

    bucket: Bucket
    token_ids: torch.Tensor
    positions: torch.Tensor
    places: KvPlaces
    tables: torch.Tensor


@dataclass(frozen=True, slots=True)
class DecodeTables:
    """Positions and block tables of the bucket's rows on the host.

    Attributes:
        positions: `[rows]`.
        tables: blocks of each row, only those that hold its positions.
    """

    positions: NDArray[np.int64]
    tables: list[NDArray[np.int64]]


class GraphedAttention(Protocol):
    """An attention context whose decodes can be recorded.

    Attributes:
        max_padded_positions: limit of gathered positions over all rows; `None` where it needs no padded tables.
    """

    max_padded_positions: int | None

    def prepare_decodes(self, bucket: Bucket, rows: DecodeTables) -> None:
        """Do the host-side planning of an iteration before it is computed, recorded or replayed."""

    def decode_plan(self, inputs: DecodeInputs) -> Any:
        """Return the plan of a decode, computed from `inputs` alone, since the call itself is recorded."""
