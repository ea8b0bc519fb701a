"""One matrix of a model, in address space for all of its panels, of which the process keeps those that it needs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from spotwise.engine.kv.reserved_memory import ReservedMemory
from spotwise.engine.native.library import PANEL
from spotwise.engine.native.packed import PackedWeight
from spotwise.engine.parts.matrix_form import MatrixForm

#: Writes some panels of a matrix to `[panels, numbers or bytes of one]`.
WritePanels = Callable[[MatrixForm, range, torch.Tensor], None]


class WeightMatrix:
    """Panels of one matrix.

    A panel that is present does not change, so that other threads may compute with it while panels are added. One thread
    adds and drops at a time.

    Args:
        form: the matrix's parameters, shape and layout.
        offset: bytes from the beginning of a page to its first number.
    """

    def __init__(self, form: MatrixForm, offset: int = 0) -> None:
        self.form = form
        size = form.panel_bytes // form.stored_dtype.itemsize
        self._memory = ReservedMemory(form.panels * size, form.stored_dtype, offset)
        self._by_panel = self._memory.tensor.view(form.panels, size)
        self._is_present = np.zeros(form.panels, dtype=bool)
        self._is_due = np.zeros(form.panels, dtype=bool)
        self._times_dropped = np.zeros(form.panels, dtype=np.int64)

    @property
    def held(self) -> tuple[range, ...]:
        """Panels that are present."""
        return _ranges(self._is_present)

    @property
    def held_bytes(self) -> int:
        """Bytes of these."""
        return int(self._is_present.sum()) * self.form.panel_bytes

    def lacks(self, panels: Iterable[range]) -> tuple[range, ...]:
        """Return which of these panels are not present."""
        return _ranges(self._mask(panels) & ~self._is_present)

    def fill(self, panels: Iterable[range], write: WritePanels) -> None:
        """Write what is not present of these panels."""
        for missing in self.lacks(panels):
            write(self.form, missing, self._by_panel[missing.start : missing.stop])
            self._is_present[missing.start : missing.stop] = True

    def expect(self, panels: range) -> memoryview:
        """Return where another process's panels are due, none of which is present; `arrived` or `give_up` follows."""
        self._is_due[panels.start : panels.stop] = True
        self._memory.populate(panels.start * self.form.panel_bytes, panels.stop * self.form.panel_bytes)
        return self.bytes(panels)

    def arrived(self, panels: range) -> None:
        """Keep panels that were due: they are written."""
        self._is_present[panels.start : panels.stop] = True
        self._is_due[panels.start : panels.stop] = False

    def give_up(self, panels: range) -> None:
        """Expect panels no more; nothing writes them."""
        self._is_due[panels.start : panels.stop] = False

    def drop_all_but(self, panels: Iterable[range]) -> None:
        """Give back the memory of all other panels."""
        dropped = self._is_present & ~self._mask(panels)
        self._is_present &= ~dropped
        self._times_dropped += dropped  # between the two: see `times_dropped`
        size = self.form.panel_bytes
        for absent in _ranges(~(self._is_present | self._is_due)):  # a page of two panels goes back with the second
            if dropped[absent.start : absent.stop].any():
                self._memory.give_back(absent.start * size, absent.stop * size)

    def times_dropped(self, panels: range) -> int:
        """Return how often one of some panels was dropped. What was read of panels is theirs where this is what it was before
        they were found present.
        """
        return int(self._times_dropped[panels.start : panels.stop].sum())

    def bytes(self, panels: range) -> memoryview:
        """Return the bytes of some panels, writable."""
        return self._memory.bytes(panels.start * self.form.panel_bytes, panels.stop * self.form.panel_bytes)

    def packed(self, columns: Sequence[range], *, is_due: bool = False) -> PackedWeight:
        """Return some columns for the kernels, without a copy: one range, or a shard's queries, keys and values. Where it
        `is_due`, they may arrive later.
        """
        panels = self._panels(columns, is_due=is_due)
        gaps = [after.start - before.stop for before, after in itertools.pairwise(panels)]
        data = self._by_panel[panels[0].start : panels[-1].stop].view(-1)
        key_gap, value_gap = gaps or (0, 0)
        outputs, form = sum(map(len, columns)), self.form
        return PackedWeight(data, outputs, form.inputs, form.dtype, (key_gap, value_gap), form.kinds)

    def plain(self, columns: Sequence[range], *, is_due: bool = False) -> torch.Tensor:
        """Return one range of columns of a matrix that is not packed, as rows `[columns, inputs]`, likewise."""
        self._panels(columns, is_due=is_due)
        (own,) = columns
        return self._memory.tensor.view(-1, self.form.inputs)[own.start : own.stop]

    def _panels(self, columns: Sequence[range], *, is_due: bool) -> list[range]:
        """Return the panels of columns; raises `RuntimeError` where one is neither present nor due."""
        panels = [range(own.start // PANEL, -(-own.stop // PANEL)) for own in columns]
        if not is_due and (lacking := self.lacks(panels)):
            raise RuntimeError(f"panels {lacking} of {self.form.name} are not loaded")
        return panels

    def _mask(self, panels: Iterable[range]) -> NDArray[np.bool_]:
        mask = np.zeros(self.form.panels, dtype=bool)
        for each in panels:
            mask[each.start : each.stop] = True
        return mask


def _ranges(mask: NDArray[np.bool_]) -> tuple[range, ...]:
    """Return where a mask is set."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    return tuple(range(int(start), int(stop)) for start, stop in edges.reshape(-1, 2))
