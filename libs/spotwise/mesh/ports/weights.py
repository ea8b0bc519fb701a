"""What a process gives of its weights to others, and the error of those that ask."""

from __future__ import annotations

from typing import Protocol

from spotwise.core.weights.inventory import ModelSketch, WeightInventory
from spotwise.mesh.ports.ports import MeshError


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
