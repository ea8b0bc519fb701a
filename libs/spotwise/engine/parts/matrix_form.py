"""Forms of a model's matrices, known before any is loaded, and their panels as the files of its folder have them.

A panel is 32 output columns (rows of the parameter), the unit by which matrices are cut, kept and moved.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from spotwise.core.parallel.model_partition import ModelShare
from spotwise.engine.block_kinds import BlockKind
from spotwise.engine.model.checkpoint_tensors import CheckpointTensors
from spotwise.engine.native.library import LANES, PANEL, Kernels
from spotwise.engine.native.packed import BlockRows, pack_block_rows, pack_rows, panel_stride


class FolderPanels:
    """Reads the rows of panels, and packs them where the matrix is packed.

    Args:
        tensors: tensors of the folder.
        kernels: pack; `None`: no matrix is packed.
    """

    def __init__(self, tensors: CheckpointTensors, kernels: Kernels | None) -> None:
        self._tensors = tensors
        self._kernels = kernels

    def write(self, form: MatrixForm, panels: range, into: torch.Tensor) -> None:
        """Write panels of a matrix to `into`, `[panels, numbers or bytes of one]`; raises `ModelError` where it cannot."""
        if form.kinds:
            self._write_blocks(form, panels, into)
            return
        stacked = form.rows(panels)
        row_of_column = np.empty_like(stacked)  # in the pieces that are read
        pieces, before, taken = [], 0, 0
        for rows in form.parameters:
            own = (stacked >= before) & (stacked < before + rows.count)
            if own.any():
                first, last = int(stacked[own].min()) - before, int(stacked[own].max()) - before
                pieces.append(self._read(form, rows, slice(first, last + 1)))
                row_of_column[own] = stacked[own] - before - first + taken
                taken += len(pieces[-1])
            before += rows.count
        weight = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
        if form.is_packed:
            assert self._kernels is not None  # no matrix is packed without
            pack_rows(self._kernels, weight, row_of_column, into)
        else:
            into.view(-1, form.inputs)[: len(weight)] = weight

    def _write_blocks(self, form: MatrixForm, panels: range, into: torch.Tensor) -> None:
        assert self._kernels is not None  # nothing stays quantised without
        stacked, before = form.rows(panels), 0
        pieces: list[BlockRows] = []
        places: list[NDArray[np.bool_]] = []
        row_of_column = np.empty_like(stacked)  # in each piece
        for rows, kind in zip(form.parameters, form.kinds, strict=True):
            own = (stacked >= before) & (stacked < before + rows.count)
            if own.any():
                first, last = int(stacked[own].min()) - before, int(stacked[own].max()) - before
                row_of_column[own] = stacked[own] - before - first
                data = self._tensors.read_blocks(rows.name, slice(first, last + 1))
                pieces.append(BlockRows(kind, data, form.inputs))
                places.append(own)
            before += rows.count
        if len({piece.kind.name for piece in pieces}) == 1:
            taken = 0
            for piece, own in zip(pieces, places, strict=True):
                row_of_column[own] += taken
                taken += len(piece.data)
            whole = BlockRows(pieces[0].kind, torch.cat([piece.data for piece in pieces]), form.inputs)
            pieces, places = [whole], [np.ones(len(stacked), dtype=bool)]
        for piece, own in zip(pieces, places, strict=True):  # a panel has one kind
            columns = np.flatnonzero(own)
            packed = into[columns[0] // PANEL : columns[-1] // PANEL + 1]
            pack_block_rows(self._kernels, piece, row_of_column[own], packed, form.panel_bytes, form.dtype)

    def _read(self, form: MatrixForm, rows: MatrixRows, own: slice) -> torch.Tensor:
        """Return some rows `[rows, inputs]` of a parameter."""
        if form.cut is not MatrixCut.WHOLE and not rows.is_transposed:
            return self._tensors.read(rows.name, own)
        whole = self._tensors.read(rows.name)
        return (whole.t() if rows.is_transposed else whole.reshape(-1, form.inputs))[own]


class MatrixCut(enum.Enum):
    """How the output columns of a matrix are divided among the shards of a stage."""

    WHOLE = "every shard has all"
    HEADS = "evenly, those of each parameter"
    COLUMNS = "at whole panels"


@dataclass(frozen=True, slots=True)
class MatrixRows:
    """A parameter of which a matrix is made.

    Attributes:
        name: in the model.
        count: its output columns.
        is_transposed: the parameter is stored as `[inputs, outputs]`.
    """

    name: str
    count: int
    is_transposed: bool = False


@dataclass(frozen=True, slots=True)
class MatrixForm:
    """A matrix of a model as a process keeps it.

    Attributes:
        name: unique in the model.
        parameters: stacked.
        inputs: numbers of an output column.
        dtype: format of the numbers.
        is_packed: the matrix is kept as the kernels read it; else as it is stored, row-major.
        cut: among the shards of a stage.
        interleaves: the matrix has 16 columns of each parameter in turn; else those of one after those of the other.
        kinds: the kind of each parameter's blocks, which stay quantised; empty: the matrix consists of numbers.
    """

    name: str
    parameters: tuple[MatrixRows, ...]
    inputs: int
    dtype: torch.dtype
    is_packed: bool
    cut: MatrixCut = MatrixCut.WHOLE
    interleaves: bool = False
    kinds: tuple[BlockKind, ...] = ()

    @property
    def outputs(self) -> int:
        """Output columns."""
        return sum(rows.count for rows in self.parameters)

    @property
    def panels(self) -> int:
        """Panels, of which the last may have fewer columns."""
        return -(-self.outputs // PANEL)

    @property
    def panel_bytes(self) -> int:
        """Bytes of a panel."""
        return panel_stride(self.kinds, self.inputs) if self.kinds else PANEL * self.inputs * self.dtype.itemsize

    @property
    def stored_dtype(self) -> torch.dtype:
        """Format of what a panel consists of."""
        return torch.uint8 if self.kinds else self.dtype

    def columns(self, share: ModelShare) -> tuple[range, ...]:
        """Return the output columns that a share needs, which begin at panels."""
        if share.shards == 1 or self.cut is MatrixCut.WHOLE:
            return (range(self.outputs),)
        if self.cut is MatrixCut.COLUMNS:
            own, parameters = share.columns(self.parameters[0].count), len(self.parameters)
            return (range(own.start * parameters, own.stop * parameters),)
        ranges, before = [], 0
        for rows in self.parameters:
            bounds = [before + rows.count * index // share.shards for index in (share.shard, share.shard + 1)]
            ranges.append(range(*bounds))
            before += rows.count
        return tuple(ranges)

    def panels_of(self, share: ModelShare) -> tuple[range, ...]:
        """Return the panels that a share needs."""
        return tuple(range(each.start // PANEL, -(-each.stop // PANEL)) for each in self.columns(share))

    def rows(self, panels: range) -> NDArray[np.int64]:
        """Return the row of the stacked parameters at each output column of some panels."""
        columns = np.arange(panels.start * PANEL, min(panels.stop * PANEL, self.outputs))
        if not self.interleaves:
            return columns
        group, lane = columns // LANES, columns % LANES
        count = len(self.parameters)
        return (group % count) * self.parameters[0].count + group // count * LANES + lane
