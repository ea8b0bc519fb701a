"""Groups positions for instances, with each tensor group on one instance if possible.

Law: several groupings are tried, with instances by size, by arrival and by their first old position: runs that end before a
tensor group, or before the rest of a pipeline, that does not fit; the same with a cut tensor group dealt out, as devices that
held all of it at a smaller degree need; runs that are cut wherever an instance is full; and, where P and M stay, unchanged
positions. The mapper adds whole tensor groups matched freely (`matching.bundle`).
Those with fewest cut tensor groups remain, as shards communicate in every layer; of these the one that keeps most bytes wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from spotwise.core.parallel.config import Position

Groups = tuple[tuple[int, ...], ...]

#: Sort key of a device without an old position: after all others.
UNPLACED = Position(1 << 62, 0, 0)


@dataclass(frozen=True, slots=True)
class InstanceSlots:
    """The devices that an instance has to give, without those whose pipeline runs on. `first_position`: its first old one;
    `unchanged`: the positions (by index) that it would keep if nothing moved, empty where P or M changes.
    """

    devices: int
    first_position: Position | None = None
    unchanged: tuple[int, ...] = ()


def tensor_groups_of(positions: Sequence[Position]) -> list[list[int]]:
    """Return the positions, given in order, of each tensor group, by index."""
    runs = groupby(enumerate(positions), key=lambda entry: (entry[1].pipeline, entry[1].stage))
    return [[index for index, _ in run] for _, run in runs]


def groupings(positions: Sequence[Position], slots: Sequence[InstanceSlots]) -> list[Groups]:
    """Return ways to group positions, given in order, for instances with these slots; too few slots raise `ValueError`."""
    if sum(slot.devices for slot in slots) < len(positions):
        raise ValueError(f"{len(positions)} positions need as many devices; choose a smaller configuration")
    tensor_groups = tensor_groups_of(positions)
    ways: list[Groups | None] = []
    # Where instances are equal, all orders are.
    for sizes in dict.fromkeys(tuple(slots[index].devices for index in order) for order in _orders(slots)):
        ways.append(_cut(tensor_groups, sizes, positions))
        ways.append(_cut(tensor_groups, sizes, positions, whole_pipelines=True))
        ways.append(_cut(tensor_groups, sizes, positions, interleaved=True))
        ways.append(_packed(range(len(positions)), sizes))
    ways.append(_unchanged(tensor_groups, slots, positions))
    return list(dict.fromkeys(way for way in ways if way is not None))


def with_fewest_cuts(ways: Sequence[Groups], positions: Sequence[Position]) -> list[Groups]:
    """Return the ways that cut tensor groups least often: the fewest pieces beyond the first of each, over all."""
    pieces = [
        sum(len({(positions[index].pipeline, positions[index].stage) for index in group}) for group in way)
        for way in ways
    ]
    return [way for way, count in zip(ways, pieces, strict=True) if count == min(pieces)]


def _orders(slots: Sequence[InstanceSlots]) -> list[list[int]]:
    by_arrival = list(range(len(slots)))
    largest_first = sorted(by_arrival, key=lambda index: (-slots[index].devices, index))
    by_position = sorted(by_arrival, key=lambda index: (slots[index].first_position or UNPLACED, index))
    return [largest_first, by_arrival, by_position]


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
    """Return runs that end at tensor groups where possible; `None` where instances do not suffice for that."""
    left = [list(group) for group in reversed(tensor_groups)]  # next at the end
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


def _unchanged(
    tensor_groups: Sequence[Sequence[int]], slots: Sequence[InstanceSlots], positions: Sequence[Position]
) -> Groups:
    held = {index for slot in slots for index in slot.unchanged}
    rest = [left for group in tensor_groups if (left := [index for index in group if index not in held])]
    free = sorted((slot.devices for slot in slots if not slot.unchanged), reverse=True)
    kept = [list(slot.unchanged) for slot in slots if slot.unchanged]
    groups = _cut(rest, free, positions)
    if groups is None:
        groups = _packed([index for group in rest for index in group], free)
        over = [index for group in rest for index in group][sum(free) :]
        for group, slot in zip(kept, (slot for slot in slots if slot.unchanged), strict=True):
            spare = slot.devices - len(group)
            group += over[:spare]
            over = over[spare:]
    return (*(tuple(sorted(group)) for group in kept), *groups)
