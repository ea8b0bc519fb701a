"""Rectangles of a model's KV: which layers and which KV heads a process keeps, and which of them go from one to another.

Law: the parts of a worker's processes do not overlap and are all of the model's KV together, so that a hand-off between workers
of any shapes is one rectangle for each overlapping pair of parts.
"""

from __future__ import annotations

from collections.abc import Iterable

from spotwise.core.values import value


@value
class KvPart:
    """Layers and KV heads, consecutive, by their numbers in the model; raises `ValueError` without any."""

    first_layer: int
    num_layers: int
    first_head: int
    num_heads: int

    def __post_init__(self) -> None:
        if min(self.first_layer, self.first_head) < 0 or min(self.num_layers, self.num_heads) < 1:
            raise ValueError(f"a part of the KV has layers and heads, not {self.layers} and {self.kv_heads}")

    @classmethod
    def of(cls, layers: range, kv_heads: range) -> KvPart:
        """Return the part of these layers and heads."""
        return cls(layers.start, len(layers), kv_heads.start, len(kv_heads))

    @classmethod
    def whole(cls, layers: int, kv_heads: int = 1) -> KvPart:
        """Return all layers and heads of a model."""
        return cls(0, layers, 0, kv_heads)

    @property
    def layers(self) -> range:
        """Its layers."""
        return range(self.first_layer, self.first_layer + self.num_layers)

    @property
    def kv_heads(self) -> range:
        """Its KV heads, of each layer."""
        return range(self.first_head, self.first_head + self.num_heads)

    @property
    def size(self) -> int:
        """Layers times heads."""
        return self.num_layers * self.num_heads

    def overlap(self, other: KvPart) -> KvPart | None:
        """Return what both have; `None`: nothing."""
        layers, heads = _both(self.layers, other.layers), _both(self.kv_heads, other.kv_heads)
        return KvPart.of(layers, heads) if layers and heads else None

    def has(self, other: KvPart) -> bool:
        """Whether all of `other` is in this part."""
        return self.overlap(other) == other

    def layers_of(self, first: int, count: int) -> KvPart:
        """Return `count` of its layers, from its own layer `first` on, with all its heads; raises `ValueError` beyond it."""
        if first < 0 or count < 1 or first + count > self.num_layers:
            raise ValueError(f"layers {first}..{first + count} of {self.num_layers}")
        return KvPart(self.first_layer + first, count, self.first_head, self.num_heads)

    def __str__(self) -> str:
        layers, heads = self.layers, self.kv_heads
        return f"layers {layers.start}-{layers.stop - 1}, heads {heads.start}-{heads.stop - 1}"


def covers(part: KvPart, pieces: Iterable[KvPart]) -> bool:
    """Whether pieces that lie within a part, and do not overlap, are all of it."""
    return sum(piece.size for piece in pieces) == part.size


def _both(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))
