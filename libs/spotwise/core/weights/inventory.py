"""Inventories of the weights that processes keep: a model's panels, and what a process needs before it has any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Panels by the name of their matrix.
Panels = Mapping[str, tuple[range, ...]]


@dataclass(frozen=True, slots=True)
class PanelRange:
    """Consecutive panels of one matrix, of `panel_bytes` each."""

    matrix: str
    panels: range
    panel_bytes: int

    @property
    def byte_count(self) -> int:
        """Bytes of all."""
        return len(self.panels) * self.panel_bytes


@dataclass(frozen=True, slots=True)
class WeightInventory:
    """What a process keeps.

    Attributes:
        device_id: id of the process's device.
        layout: a hash of the model, its dtype, and how the kernels read panels: bytes may move between equal ones only; 0:
            the process does not know its model yet.
        fused_layers: tells for each layer that the process has tried, or received a result for, whether one native call
            computes it.
        panels: panels that the process keeps.
    """

    device_id: str
    layout: int
    fused_layers: Mapping[int, bool]
    panels: Panels


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Bytes at an offset of a file."""

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SketchFile:
    """A file of a model folder, as long as the original, of which only some pieces are there."""

    name: str
    byte_count: int
    pieces: tuple[FilePiece, ...]


@dataclass(frozen=True, slots=True)
class ModelSketch:
    """A model folder without its large tensors.

    Attributes:
        name: name of the model, in requests.
        digest: digest of all its weights.
        files: config, tensor headers, small tensors.
    """

    name: str
    digest: str
    files: tuple[SketchFile, ...]
