"""Sections of a process's KV memory: all of it, and what it shares with processes that keep other parts."""

from __future__ import annotations

from typing import Self

from spotwise.core.requests.kv_part import KvPart
from spotwise.mesh.ports.ports import KvMemory, KvSection


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
