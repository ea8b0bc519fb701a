"""Shares of a model's parts, and their bytes.

Law: shard m of M has [m/M, (m+1)/M) of each part of its stage (SpotServe, section 4.2). Two shards have in common the overlap
of their shares, whatever their tensor degrees. A part of matrices is cut at whole panels of their output columns, as the
engine cuts it; another at bytes. Bounds are rounded down at both ends, so that adjacent shares add up to the whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from spotwise.core.parallel.model_partition import columns_before


class Share(NamedTuple):
    """A part from `start`, included, to `end`, excluded, as fractions."""

    start: Fraction
    end: Fraction


#: All of a part.
WHOLE_SHARE = Share(Fraction(0), Fraction(1))


def share_of(shard: int, tensor: int) -> Share:
    """Return the share of shard number `shard` of `tensor`."""
    return Share(Fraction(shard, tensor), Fraction(shard + 1, tensor))


def overlap(one: Share, other: Share) -> Share | None:
    """Return the common share of two shares, if any."""
    start, end = max(one.start, other.start), min(one.end, other.end)
    return Share(start, end) if start < end else None


@dataclass(frozen=True, slots=True)
class PartBytes:
    """How many bytes a part has, and where shares cut it.

    Attributes:
        whole: bytes of the part.
        matrices: output columns of each of its matrices, and bytes of a column. What else it has (norms, which every shard of
            the engine has) counts as cut like bytes.
        is_whole: every shard has all of it.
    """

    whole: int
    matrices: tuple[tuple[int, int], ...] = ()
    is_whole: bool = False

    def share(self, shard: int, tensor: int) -> Share:
        """Return what shard number `shard` of `tensor` has of it."""
        return WHOLE_SHARE if self.is_whole else share_of(shard, tensor)

    def of(self, share: Share | None) -> int:
        """Return the bytes of a share: 0 of no share."""
        return 0 if share is None else self.before(share.end) - self.before(share.start)

    def most(self, tensor: int) -> int:
        """Return the bytes of the largest of `tensor` shards."""
        return max(self.of(self.share(shard, tensor)) for shard in range(tensor))

    def before(self, place: Fraction) -> int:
        """Return the bytes before a place in it, a fraction from 0 to 1."""
        found, rest = 0, self.whole
        for columns, column_bytes in self.matrices:
            found += columns_before(columns, place) * column_bytes
            rest -= columns * column_bytes
        return found + rest * place.numerator // place.denominator
