"""Orders loads so that no instance's receive buffer exceeds a limit (SpotServe, Miao et al., 2024, section 4.2, Algorithm 2).

Law: a device has a memory region for weights and one for KV, each as large as the larger of its content before and after. What
exceeds it, because old memory is not free yet, is the *transient receive buffer*, summed over an instance's regions.
Loads that keep every buffer within `limit_bytes` are appended in order; of the deferred ones, repeatedly the one with the
smallest largest buffer. Urgent loads (of dying instances) are first, and taken as soon as they fit.
Ours: a load that exceeds empty buffers is cut; where no deferred load fits, the order returns to where buffers were at most
half full, and cuts of all remaining loads take turns, which keeps any limit above the rounding of cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

#: Most cuts of one load; a limit that needs more is rejected.
MOST_CUTS = 1024


class Flow(NamedTuple):
    """The effect of moving a load on memory regions: bytes into each, and bytes out of each once the load has moved."""

    received: Mapping[int, int]
    freed: Mapping[int, int]


class Cut(NamedTuple):
    """Cut `number` (from 0) of a load's `of` equal cuts."""

    load: int
    number: int = 0
    of: int = 1


#: The effect of a cut; the cuts of a load must add up.
FlowOf = Callable[[Cut], Flow]


class MemoryRegions:
    """Fill levels of memory regions; `buffer`: bytes of buffer in use, by instance."""

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
        """Return regions before anything has moved, sized by the effect of all flows.

        Args:
            owners: the instance of each region.
            freed_already: bytes that regions have lost before.
            kept_free: bytes that regions shall have in the end without anything moving.
        """
        change = {region: kept_free.get(region, 0) - freed_already.get(region, 0) for region in owners}
        for flow in flows:
            for region, num_bytes in flow.received.items():
                change[region] += num_bytes
            for region, num_bytes in flow.freed.items():
                change[region] -= num_bytes
        return cls(owners, {region: max(0, more) + freed_already.get(region, 0) for region, more in change.items()})

    def copy(self) -> MemoryRegions:
        """Return a copy."""
        same = MemoryRegions(self._owners, self._spare)
        same.buffer = dict(self.buffer)
        return same

    def become(self, other: MemoryRegions) -> None:
        """Copy another's levels."""
        self._spare, self.buffer = dict(other._spare), dict(other.buffer)

    def largest(self) -> int:
        """Return the largest buffer in use."""
        return max(self.buffer.values(), default=0)

    def by_owner(self, flow: Mapping[int, int]) -> dict[int, dict[int, int]]:
        """Return a flow's bytes by instance and region."""
        found: dict[int, dict[int, int]] = {}
        for region, num_bytes in flow.items():
            found.setdefault(self._owners[region], {})[region] = num_bytes
        return found

    def receive(self, received: Mapping[int, int]) -> None:
        """Put bytes into regions."""
        self._change(received, 1)

    def free(self, freed: Mapping[int, int]) -> None:
        """Take bytes out of regions."""
        self._change(freed, -1)

    def buffers_with(self, received: Mapping[int, int]) -> dict[int, int]:
        """Return the buffers of the receiving instances after receiving."""
        buffers: dict[int, int] = {}
        for region, num_bytes in received.items():
            owner, spare = self._owners[region], self._spare[region]
            more = max(0, num_bytes - spare) - max(0, -spare)
            buffers[owner] = buffers.get(owner, self.buffer[owner]) + more
        return buffers

    def crowding(self, received: Mapping[int, int]) -> int:
        """Return the most bytes that an instance would receive into regions that are too small for them now."""
        crowds = dict.fromkeys(self.buffer, 0)
        for region, num_bytes in received.items():
            if num_bytes > self._spare[region]:
                crowds[self._owners[region]] += num_bytes
        return max(crowds.values(), default=0)

    def _change(self, changes: Mapping[int, int], sign: int) -> None:
        for region, num_bytes in changes.items():
            spare = self._spare[region]
            self._spare[region] = spare - sign * num_bytes
            self.buffer[self._owners[region]] += max(0, sign * num_bytes - spare) - max(0, -spare)


def order_loads(
    loads: range, flow_of: FlowOf, regions: MemoryRegions, limit_bytes: int | None, urgent: int = 0
) -> list[Cut]:
    """Return the loads, or their cuts, in the order in which they move; `regions` is left in the final state.

    Args:
        loads: numbers, in order; those of one kind of region, the `urgent` ones first.
        regions: fill levels, within the limit.
        limit_bytes: limit of each instance's buffer; `None` for no limit.

    Raises:
        ValueError: the limit would cut loads into more than `MOST_CUTS`.
    """
    if limit_bytes is None:
        order = [Cut(load) for load in loads]
        for cut in order:
            _move(flow_of(cut), regions)
        return order
    order, left, regions_then = _greedy(loads, flow_of, regions, limit_bytes, urgent)
    if left:
        regions.become(regions_then)
        order += _in_turns(left, flow_of, regions, limit_bytes)
    return order


def _greedy(
    loads: range, flow_of: FlowOf, regions: MemoryRegions, limit_bytes: int, urgent: int
) -> tuple[list[Cut], list[Cut], MemoryRegions]:
    """Return an order within the limit, the cuts left over, and the regions then.
    Cuts are left over only where none fits; the order ends where buffers were at most half full: turns need the other half.
    """
    order: list[Cut] = []
    deferred: list[Cut] = []
    safe, regions_then = 0, regions.copy()

    def take(cut: Cut) -> None:
        nonlocal safe, regions_then
        _move(flow_of(cut), regions)
        order.append(cut)
        if 2 * max(regions.buffer.values(), default=0) <= limit_bytes:
            safe, regions_then = len(order), regions.copy()

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
            return order[:safe], order[safe:] + deferred, regions_then
        deferred.remove(best)
        take(best)
    return order, [], regions


def _in_turns(left: list[Cut], flow_of: FlowOf, regions: MemoryRegions, limit_bytes: int) -> list[Cut]:
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
    """Return the number of cuts of a load that does not fit into empty buffers; else 1."""
    alone = regions.crowding(flow_of(cut).received)
    count = -(-alone // limit_bytes) if limit_bytes else MOST_CUTS
    return min(count, MOST_CUTS // cut.of) if count > 1 else 1


def _cut_again(cut: Cut, count: int) -> list[Cut]:
    return [Cut(cut.load, cut.number * count + more, cut.of * count) for more in range(count)]


def gates(moves: Sequence[Flow], regions: MemoryRegions, limit_bytes: int) -> list[dict[int, int]]:
    """Return which memory each move waits for: by receiving instance, the last move whose old memory must be free there.
    An instance that is not named need not wait. `regions` is the state before the first move, and is used up. Moves that
    exceed the limit in this order raise `ValueError`.
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
