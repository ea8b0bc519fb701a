"""Panels of matrices, as the files of a model folder have them."""

from __future__ import annotations

import numpy as np
import torch

from spotwise.engine.model.checkpoint_tensors import CheckpointTensors
from spotwise.engine.native.library import Kernels
from spotwise.engine.native.packed import pack_rows
from spotwise.engine.parts.matrix_form import MatrixCut, MatrixForm, MatrixRows


class FolderPanels:
    """Reads the rows of panels, and packs them where the matrix is packed.

    Args:
        tensors: of the folder.
        kernels: pack; `None`: no matrix is packed.
    """

    def __init__(self, tensors: CheckpointTensors, kernels: Kernels | None) -> None:
        self._tensors = tensors
        self._kernels = kernels

    def write(self, form: MatrixForm, panels: range, into: torch.Tensor) -> None:
        """Write panels of a matrix to `into`, `[panels, PANEL * inputs]`; raises `ModelError` where they cannot be read."""
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

    def _read(self, form: MatrixForm, rows: MatrixRows, own: slice) -> torch.Tensor:
        """Return some rows `[rows, inputs]` of a parameter."""
        if form.cut is not MatrixCut.WHOLE and not rows.is_transposed:
            return self._tensors.read(rows.name, own)
        whole = self._tensors.read(rows.name)
        return (whole.t() if rows.is_transposed else whole.reshape(-1, form.inputs))[own]
