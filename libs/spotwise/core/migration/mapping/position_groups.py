"""Which positions go to one instance together.

Law: positions are put into groups, as many in each as an instance has devices to give, so that a tensor group, whose shards
talk in every layer, is on one instance where it can be. Sizes of instances may differ, there may be more devices than
positions, and what is good for reuse is not always what is adjacent, so there are several ways:

- *by tensor group*: runs of adjacent positions as long as instances are large; a run ends before a tensor group that it has no
  room for, and one that is larger than the instance is cut, its last piece standing alone;
- *by pipeline*: that, and a run ends before a pipeline that it has no room for the rest of;
- *interleaved*: by tensor group, and a tensor group that is cut is dealt out, not sliced: each piece then has shards from all
  over it, as the devices of an instance do that held all of it at a smaller degree;
- *packed*: the line of positions is cut where it comes, which needs fewest instances;
- *as they stand*: where P and M stay, what an instance has now is its group, and the others get the rest, cut by tensor group.

All but the last are tried with instances in the order of their size (largest first), in the order in which they came, and in
the order of where they stand. A way that needs more instances than there are is left out. The mapper adds one: whole tensor
groups, from wherever, that are best together (`matching.bundle`). Of all, only those remain that cut fewest tensor groups; the
one that keeps most bytes is taken.

Invariants: every way has each position once; each of its groups has an instance with room for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from spotwise.core.parallel.config import Position

Groups = tuple[tuple[int, ...], ...]

#: Of what stands nowhere, when sorted by place: after all that does.
UNPLACED = Position(1 << 62, 0, 0)


@dataclass(frozen=True, slots=True)
class Seats:
    """What an instance has to give.

    Attributes:
        devices: of it, without those that run on.
        stands_at: its first old position, where it has one.
        as_it_stands: the positions (by index) that it would have if nothing moved; empty where P or M changes.
    """

    devices: int
    stands_at: Position | None = None
    as_it_stands: tuple[int, ...] = ()


def tensor_groups_of(positions: Sequence[Position]) -> list[list[int]]:
    """Return the positions, given in order, of each tensor group, by index."""
    runs = groupby(enumerate(positions), key=lambda entry: (entry[1].pipeline, entry[1].stage))
    return [[index for index, _ in run] for _, run in runs]


def groupings(positions: Sequence[Position], seats: Sequence[Seats]) -> list[Groups]:
    """Return ways to group positions, given in order, for instances with these seats.

    Raises:
        ValueError: there are fewer seats than positions.
    """
    if sum(seat.devices for seat in seats) < len(positions):
        raise ValueError(f"{len(positions)} positions need as many devices; choose a smaller configuration")
    tensor_groups = tensor_groups_of(positions)
    ways: list[Groups | None] = []
    # Where instances are equal, all orders are.
    for sizes in dict.fromkeys(tuple(seats[index].devices for index in order) for order in _orders(seats)):
        ways.append(_cut(tensor_groups, sizes, positions))
        ways.append(_cut(tensor_groups, sizes, positions, whole_pipelines=True))
        ways.append(_cut(tensor_groups, sizes, positions, interleaved=True))
        ways.append(_packed(range(len(positions)), sizes))
    ways.append(_as_they_stand(tensor_groups, seats, positions))
    return list(dict.fromkeys(way for way in ways if way is not None))


def with_fewest_cuts(ways: Sequence[Groups], positions: Sequence[Position]) -> list[Groups]:
    """Return the ways that cut tensor groups least often: the fewest pieces beyond the first of each, over all."""
    pieces = [
        sum(len({(positions[index].pipeline, positions[index].stage) for index in group}) for group in way)
        for way in ways
    ]
    return [way for way, count in zip(ways, pieces, strict=True) if count == min(pieces)]


def _orders(seats: Sequence[Seats]) -> list[list[int]]:
    came = list(range(len(seats)))
    largest_first = sorted(came, key=lambda index: (-seats[index].devices, index))
    as_they_stand = sorted(came, key=lambda index: (seats[index].stands_at or UNPLACED, index))
    return [largest_first, came, as_they_stand]


def _packed(indices: Sequence[int], sizes: Sequence[int]) -> Groups:
    groups: list[tuple[int, ...]] = []
    start = 0
    for size in sizes:
        if run := tuple(indices[start : start + size]):
            groups.append(run)
        start += size
    return tuple(groups)


def _cut(
    tensor_groups: Sequence[Sequence[int]],
    sizes: Sequence[int],
    positions: Sequence[Position],
    *,
    whole_pipelines: bool = False,
    interleaved: bool = False,
) -> Groups | None:
    """Return runs that end at tensor groups where they can; `None` where there are not enough instances for that."""
    left = [list(group) for group in reversed(tensor_groups)]  # the next is at the end
    groups: list[tuple[int, ...]] = []
    for size in sizes:
        run: list[int] = []
        while left and len(run) < size:
            group = left[-1]
            if len(group) <= size - len(run):
                starts_pipeline = bool(run) and positions[group[0]].pipeline != positions[run[-1]].pipeline
                if whole_pipelines and starts_pipeline and _rest_of_pipeline(left, positions) > size - len(run):
                    break
                run += left.pop()
            elif run:
                break
            else:
                dealt = {at * len(group) // size for at in range(size)} if interleaved else range(size)
                run = [index for at, index in enumerate(group) if at in dealt]
                left[-1] = [index for at, index in enumerate(group) if at not in dealt]
        if run:
            groups.append(tuple(run))
    return None if left else tuple(groups)


def _rest_of_pipeline(left: Sequence[Sequence[int]], positions: Sequence[Position]) -> int:
    pipeline = positions[left[-1][0]].pipeline
    count = 0
    for group in reversed(left):
        if positions[group[0]].pipeline != pipeline:
            break
        count += len(group)
    return count


def _as_they_stand(
    tensor_groups: Sequence[Sequence[int]], seats: Sequence[Seats], positions: Sequence[Position]
) -> Groups:
    """Return a group for each instance that would keep positions, and the rest for those that would keep none."""
    held = {index for seat in seats for index in seat.as_it_stands}
    rest = [left for group in tensor_groups if (left := [index for index in group if index not in held])]
    free = sorted((seat.devices for seat in seats if not seat.as_it_stands), reverse=True)
    standing = [list(seat.as_it_stands) for seat in seats if seat.as_it_stands]
    groups = _cut(rest, free, positions)
    if groups is None:
        groups = _packed([index for group in rest for index in group], free)
        over = [index for group in rest for index in group][sum(free) :]
        for group, seat in zip(standing, (seat for seat in seats if seat.as_it_stands), strict=True):
            room = seat.devices - len(group)
            group += over[:room]
            over = over[room:]
    return (*(tuple(sorted(group)) for group in standing), *groups)
