"""Inputs of recorded decodes, and the interface of attention that can be recorded; see `decode_graphs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from spotwise.engine.kv_cache import KvPlaces


@dataclass(frozen=True, slots=True)
class Bucket:
    """A size of batch.

    Attributes:
        rows: with padding.
        blocks: columns of the block tables, with padding; 0 where attention does not read them from the input buffer.
    """

    rows: int
    blocks: int


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """What a recorded decode reads, on the device, in the bucket's shape: views of one buffer.

    Attributes:
        bucket: its size.
        token_ids: `[rows]`.
        positions: `[rows]`: of these tokens.
        places: where their keys and values go.
        tables: `[rows, blocks]`: block tables, padded with the scratch block.
    """

    bucket: Bucket
    token_ids: torch.Tensor
    positions: torch.Tensor
    places: KvPlaces
    tables: torch.Tensor


@dataclass(frozen=True, slots=True)
class DecodeTables:
    """The same on the host: where each row of the bucket is.

    Attributes:
        positions: `[rows]`.
        tables: by row, just the blocks that hold its positions.
    """

    positions: NDArray[np.int64]
    tables: list[NDArray[np.int64]]


class GraphedAttention(Protocol):
    """An attention context whose decodes can be recorded.

    Attributes:
        max_padded_positions: positions that it may gather for all rows together; `None` where it needs no padded tables.
    """

    max_padded_positions: int | None

    def prepare_decodes(self, bucket: Bucket, rows: DecodeTables) -> None:
        """Do on the host what an iteration of this bucket needs, before it is computed, recorded or replayed."""

    def decode_plan(self, inputs: DecodeInputs) -> Any:
        """Return the plan of a decode; called while it is recorded, and computes only from `inputs`."""
