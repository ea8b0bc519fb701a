"""In which order things move, so that no instance needs more than so many bytes of buffer.

Law: memory is in regions. Each device has one for weights and one for KV, as large as the larger of what it holds there before
and after. What it has received beyond that, because old memory of its own is not free yet, is its *transient receive buffer*;
an instance's is the sum over its devices' regions. Old memory of a load is free once that load has moved.

The order is SpotServe's Algorithm 2 (Miao et al., 2024, section 4.2). Loads are walked from the front; one that keeps each
instance's buffer within `limit_bytes` is appended, others are deferred; then again and again that deferred load is appended
that makes the largest buffer smallest. Ours on top:

- a load that would not fit into empty buffers is cut into equal cuts, so that each fits;
- urgent loads (a dying instance's) are first in line, and one that was deferred is taken as soon as it fits;
- where no deferred load fits, the order goes back to where buffers were half full at most, what is left is cut, and the cuts
  of all loads take turns. While all loads move at one rate, a room's content goes in a straight line from what it is to what
  it shall be, and so is never above the larger; only what moves in one turn comes on top. So every limit can be kept that is
  not lost in the rounding of cuts to bytes.

How long a load has to wait is in its gates: it needs the memory of no more earlier loads than keep the limit.

Invariants: every load moves once, whole or in all its cuts; no buffer exceeds the limit; ties go to the earlier load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

#: More cuts than this of one load mean that the limit is no sensible one.
MOST_CUTS = 1024


class Flow(NamedTuple):
    """What moving a load does to regions.

    Attributes:
        received: bytes that come into a room.
        freed: bytes that leave a room once the load has moved.
    """

    received: Mapping[int, int]
    freed: Mapping[int, int]


class Cut(NamedTuple):
    """A load, or one of its equal cuts.

    Attributes:
        load: number of the load.
        number: of the cut, from 0.
        of: cuts of the load, all of this size.
    """

    load: int
    number: int = 0
    of: int = 1


#: Tells what a cut of a load does; the cuts of a load must add up.
FlowOf = Callable[[Cut], Flow]


class MemoryRegions:
    """How full regions are.

    Attributes:
        buffer: bytes of buffer in use, by instance.
    """

    def __init__(self, owners: Mapping[int, int], spare: Mapping[int, int]) -> None:
        self._owners = owners
        self._spare = dict(spare)
        self.buffer: dict[int, int] = dict.fromkeys(owners.values(), 0)

    @classmethod
    def at_start(
        cls,
        owners: Mapping[int, int],
        flows: Sequence[Flow],
        freed_already: Mapping[int, int],
        kept_free: Mapping[int, int],
    ) -> MemoryRegions:
        """Return regions before anything has moved: what all flows would do says how large they must be.

        Args:
            owners: the instance of each room.
            flows: all that moves.
            freed_already: bytes that regions have lost before.
            kept_free: bytes that regions shall have in the end without anything moving.
        """
        change = {room: kept_free.get(room, 0) - freed_already.get(room, 0) for room in owners}
        for flow in flows:
            for room, num_bytes in flow.received.items():
                change[room] += num_bytes
            for room, num_bytes in flow.freed.items():
                change[room] -= num_bytes
        return cls(owners, {room: max(0, more) + freed_already.get(room, 0) for room, more in change.items()})

    def copy(self) -> MemoryRegions:
        """Return regions as full as these."""
        same = MemoryRegions(self._owners, self._spare)
        same.buffer = dict(self.buffer)
        return same

    def become(self, other: MemoryRegions) -> None:
        """Get as full as others are."""
        self._spare, self.buffer = dict(other._spare), dict(other.buffer)

    def largest(self) -> int:
        """Return the largest buffer in use."""
        return max(self.buffer.values(), default=0)

    def by_owner(self, flow: Mapping[int, int]) -> dict[int, dict[int, int]]:
        """Return what a flow means to each instance, by room."""
        found: dict[int, dict[int, int]] = {}
        for room, num_bytes in flow.items():
            found.setdefault(self._owners[room], {})[room] = num_bytes
        return found

    def receive(self, received: Mapping[int, int]) -> None:
        """Put bytes into regions."""
        self._change(received, 1)

    def free(self, freed: Mapping[int, int]) -> None:
        """Take bytes out of regions."""
        self._change(freed, -1)

    def buffers_with(self, received: Mapping[int, int]) -> dict[int, int]:
        """Return the buffers that receiving would lead to, of the instances that it concerns."""
        buffers: dict[int, int] = {}
        for room, num_bytes in received.items():
            owner, spare = self._owners[room], self._spare[room]
            more = max(0, num_bytes - spare) - max(0, -spare)
            buffers[owner] = buffers.get(owner, self.buffer[owner]) + more
        return buffers

    def crowding(self, received: Mapping[int, int]) -> int:
        """Return the most bytes that an instance would receive into regions that are too small for them now."""
        crowds = dict.fromkeys(self.buffer, 0)
        for room, num_bytes in received.items():
            if num_bytes > self._spare[room]:
                crowds[self._owners[room]] += num_bytes
        return max(crowds.values(), default=0)

    def _change(self, changes: Mapping[int, int], sign: int) -> None:
        for room, num_bytes in changes.items():
            spare = self._spare[room]
            self._spare[room] = spare - sign * num_bytes
            self.buffer[self._owners[room]] += max(0, sign * num_bytes - spare) - max(0, -spare)


def order_loads(
    loads: range, flow_of: FlowOf, regions: MemoryRegions, limit_bytes: int | None, urgent: int = 0
) -> list[Cut]:
    """Return the loads, or their cuts, in the order in which they move; `regions` is left as full as they leave it.

    Args:
        loads: numbers, from the front; those of one kind of room, whose content is as planned once all have moved.
        flow_of: what a cut does.
        regions: how full they are, within the limit.
        limit_bytes: of the buffer of any instance; `None`: as they come.
        urgent: so many of the first loads are urgent.

    Raises:
        ValueError: the limit is so low that loads would be cut into more than `MOST_CUTS`.
    """
    if limit_bytes is None:
        order = [Cut(load) for load in loads]
        for cut in order:
            _move(flow_of(cut), regions)
        return order
    order, left, rooms_then = _greedy(loads, flow_of, regions, limit_bytes, urgent)
    if left:
        regions.become(rooms_then)
        order += _in_turns(left, flow_of, regions, limit_bytes)
    return order


def _greedy(
    loads: range, flow_of: FlowOf, regions: MemoryRegions, limit_bytes: int, urgent: int
) -> tuple[list[Cut], list[Cut], MemoryRegions]:
    """Return an order within the limit, what it leaves over, and how full regions are then.

    Something is left over only where nothing fits any more. Then the order ends where buffers were half of the limit at most,
    since taking turns needs the other half.
    """
    order: list[Cut] = []
    deferred: list[Cut] = []
    safe, rooms_then = 0, regions.copy()

    def take(cut: Cut) -> None:
        nonlocal safe, rooms_then
        _move(flow_of(cut), regions)
        order.append(cut)
        if 2 * max(regions.buffer.values(), default=0) <= limit_bytes:
            safe, rooms_then = len(order), regions.copy()

    in_line = [Cut(load) for load in reversed(loads)]
    while in_line:
        cut = in_line.pop()
        if _peak(cut, flow_of, regions) <= limit_bytes:
            take(cut)
            while (late := _first_that_fits(deferred, loads.start + urgent, flow_of, regions, limit_bytes)) is not None:
                deferred.remove(late)
                take(late)
        elif (count := _cuts_to_fit(cut, flow_of, regions, limit_bytes)) > 1:
            in_line.extend(reversed(_cut_again(cut, count)))
        else:
            deferred.append(cut)
    while deferred:
        base = regions.largest()
        firsts = list({cut.load: cut for cut in reversed(deferred)}.values())  # cuts of a load differ in rounding only
        peak, best = min((max(base, _peak(cut, flow_of, regions)), cut) for cut in firsts)
        if peak > limit_bytes:
            return order[:safe], order[safe:] + deferred, rooms_then
        deferred.remove(best)
        take(best)
    return order, [], regions


def _in_turns(left: list[Cut], flow_of: FlowOf, regions: MemoryRegions, limit_bytes: int) -> list[Cut]:
    """Return cuts of all that is left, taking turns, in the fewest turns (of powers of two) that keep the limit."""
    turns = 1
    while turns * max(cut.of for cut in left) <= MOST_CUTS:
        parts = [_cut_again(cut, turns) for cut in sorted(left)]
        order = [part[turn] for turn in range(turns) for part in parts]
        after = regions.copy()
        for cut in order:
            if _peak(cut, flow_of, after) > limit_bytes:
                break
            _move(flow_of(cut), after)
        else:
            regions.become(after)
            return order
        turns *= 2
    raise ValueError(
        f"buffer_bytes = {limit_bytes} would cut layers into more than {MOST_CUTS} parts; give instances a larger buffer"
    )


def _peak(cut: Cut, flow_of: FlowOf, regions: MemoryRegions) -> int:
    """Return the largest buffer, over the instances that receive, while a cut moves."""
    return max(regions.buffers_with(flow_of(cut).received).values(), default=0)


def _move(flow: Flow, regions: MemoryRegions) -> None:
    regions.receive(flow.received)
    regions.free(flow.freed)


def _first_that_fits(
    deferred: list[Cut], before: int, flow_of: FlowOf, regions: MemoryRegions, limit_bytes: int
) -> Cut | None:
    return next((cut for cut in deferred if cut.load < before and _peak(cut, flow_of, regions) <= limit_bytes), None)


def _cuts_to_fit(cut: Cut, flow_of: FlowOf, regions: MemoryRegions, limit_bytes: int) -> int:
    """Return into how many cuts to cut what would not fit into empty buffers; else 1."""
    alone = regions.crowding(flow_of(cut).received)
    count = -(-alone // limit_bytes) if limit_bytes else MOST_CUTS
    return min(count, MOST_CUTS // cut.of) if count > 1 else 1


def _cut_again(cut: Cut, count: int) -> list[Cut]:
    return [Cut(cut.load, cut.number * count + more, cut.of * count) for more in range(count)]


def gates(moves: Sequence[Flow], regions: MemoryRegions, limit_bytes: int) -> list[dict[int, int]]:
    """Return which memory each move waits for: by receiving instance, the last move whose old memory must be free there.

    An instance that is not named need not wait. `regions` is how full they are before the first move, and is used up.

    Raises:
        ValueError: the moves, in this order, do not keep the limit.
    """
    freed_at: dict[int, list[tuple[int, dict[int, int]]]] = {}
    for number, flow in enumerate(moves):
        for instance, freed in regions.by_owner(flow.freed).items():
            freed_at.setdefault(instance, []).append((number, freed))
    used: dict[int, int] = dict.fromkeys(freed_at, 0)
    found: list[dict[int, int]] = []
    for number, flow in enumerate(moves):
        regions.receive(flow.received)
        waits: dict[int, int] = {}
        for instance in regions.by_owner(flow.received):
            frees = freed_at.get(instance, [])
            while regions.buffer[instance] > limit_bytes:
                if used.get(instance, 0) >= len(frees) or frees[used[instance]][0] >= number:
                    raise ValueError(
                        f"move {number} needs more than {limit_bytes} bytes of buffer; order the moves first"
                    )
                regions.free(frees[used[instance]][1])
                used[instance] += 1
            if used.get(instance, 0):
                waits[instance] = frees[used[instance] - 1][0]
        found.append(waits)
    return found
