"""Ports to a process's memory that transfers read: sections of its KV, and weights."""

from __future__ import annotations

from typing import Protocol, Self

from spotwise.core.requests.kv_part import KvPart
from spotwise.core.weights.inventory import ModelSketch, WeightInventory
from spotwise.mesh.ports.ports import KvMemory, KvSection, MeshError


class KvSections:
    """Sections of one memory by part, each made once."""

    def __init__(self, memory: KvMemory) -> None:
        self.memory = memory
        self._made: dict[KvPart, KvSection] = {memory.part: memory}

    def of(self, part: KvPart) -> KvSection:
        """Return a section; raises `ValueError` where the memory does not keep the part."""
        if part not in self._made:
            self._made[part] = self.memory.section(part)
        return self._made[part]


class WholeKv:
    """Base of memories that are never divided: all layers of a model, as one head."""

    num_layers: int

    @property
    def part(self) -> KvPart:
        """All layers."""
        return KvPart.whole(self.num_layers)

    def section(self, part: KvPart) -> Self:
        """Return itself; raises `ValueError` for a part of it."""
        if part != self.part:
            raise ValueError(f"{part} of a memory that is not divided")
        return self


class WeightTransferError(MeshError):
    """Panels did not arrive; nothing writes where they were due any more. `holder_is_lost`: it does not answer at all."""

    def __init__(self, reason: str, *, holder_is_lost: bool = False) -> None:
        super().__init__(reason)
        self.holder_is_lost = holder_is_lost


class WeightSource(Protocol):
    """A process that may have weights."""

    @property
    def layout(self) -> int:
        """See `WeightInventory`."""

    def inventory(self) -> WeightInventory:
        """Return what it has now."""

    def sketch(self) -> ModelSketch:
        """Return the model without its large tensors; raises `ValueError` where it does not know it. Called on a thread."""

    def export_panels(self, matrix: str, panels: range) -> memoryview:
        """Return bytes of panels, read-only; raises `ValueError` where one is not here. Their memory may be given back while
        they are sent: then the receiver finds that their checksum is wrong.
        """

    def times_dropped(self, matrix: str, panels: range) -> int:
        """Return how often one of these panels was given back; it has grown before the memory of any is zero."""
