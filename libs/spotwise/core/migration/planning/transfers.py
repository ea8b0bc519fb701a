"""Chooses the source of each missing piece, and bundles moves into loads (SpotServe, Miao et al., 2024, sections 4.2 and 4.3).

Law: each receiver gets a piece once: from a device of its instance that holds it; else from one of its instance that receives
it (one crossing of the network); else over the uplink with least to send, a holder's or a relay's; else, weights only, from
storage. An instance passes on pieces from storage only if reads are shared: then the instance that has read least reads next.
Pieces with few holders choose first, KV before weights. A leaving instance is the last choice among equals, and is skipped for
pieces that it cannot send in time.

A load is a part of the weights or all KV of a request; the pieces of a part that leaving instances send are a separate, urgent
load.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spotwise.core.migration.planning.buffer_order import Cut, Flow
from spotwise.core.migration.planning.link_times import Links
from spotwise.core.migration.planning.model_parts import MovingKv, NumberedDevices, Piece


class Move(NamedTuple):
    """One piece on its way to one device; `source`: `None` for storage; `is_relayed`: it gets the piece in this load."""

    piece: Piece
    source: int | None
    target: int
    is_relayed: bool = False

    @property
    def frees(self) -> bool:
        """Whether the source frees its memory once the piece is sent."""
        return self.source in self.piece.leavers


@dataclass(frozen=True, slots=True)
class TransferUnit:
    """A load, moved as one. `pieces` in the order of the model; `moves` in order, relays after moves that bring the piece;
    `moving_kv`: whose KV it is, `None` of weights.
    """

    pieces: tuple[Piece, ...]
    moves: tuple[Move, ...]
    moving_kv: MovingKv | None = None

    @property
    def region(self) -> int:
        """Which of a device's two memory regions it fills: 0 with weights, 1 with KV."""
        return int(self.moving_kv is not None)


class _Way(NamedTuple):
    """An instance that can send a piece over its uplink, until `until_s`; late where it `leaves` before. The least is best."""

    is_late: bool
    until_s: float
    is_relayed: bool
    leaves: bool
    instance: int


class SourceChoice:
    """Chooses sources, and tracks what each instance has to send."""

    def __init__(self, devices: NumberedDevices, links: Links, *, shares_reads: bool = False) -> None:
        self._devices = devices
        self._links = links
        self._shares_reads = shares_reads and links.between_bytes_per_s >= links.storage_bytes_per_s
        self._up_s = [0.0] * len(devices.instances)
        self._read_bytes = [0] * len(devices.instances)
        self._out_s = [0.0] * len(devices.devices)

    def choose(self, piece: Piece) -> tuple[Move, ...]:
        """Return the moves that bring a piece to all its receivers."""
        instance_of = self._devices.instance_of
        moves: list[Move] = []
        near: dict[int, list[int]] = {}
        for holder in piece.holders:
            near.setdefault(instance_of[holder], []).append(holder)
        arrives: dict[int, int] = {}  # by instance: at which device
        afar: list[_Way] = []  # a heap: as many instances may hold a piece as receive it
        for target in piece.receivers if near else self._readers_first(piece):
            instance = instance_of[target]
            if instance in near:
                source = min(near[instance], key=lambda holder: (self._out_s[holder], holder))
                moves.append(Move(piece, source, target))
            elif instance in arrives:
                moves.append(Move(piece, arrives[instance], target, is_relayed=True))
            else:
                if not afar:
                    afar = [self._way(piece, holder, is_relayed=False) for holder in near]
                    heapq.heapify(afar)
                moves.append(self._from_afar(piece, target, near, arrives, afar))
                arrives[instance] = target
            self._count(moves[-1])
            if arrives.get(instance) == target:
                if moves[-1].source is not None:
                    heapq.heapreplace(afar, self._way(piece, afar[0].instance, is_relayed=afar[0].is_relayed))
                if moves[-1].source is not None or self._shares_reads:
                    heapq.heappush(afar, self._way(piece, instance, is_relayed=True))
        return tuple(moves)

    def _readers_first(self, piece: Piece) -> Sequence[int]:
        """Return the receivers of a piece that no device holds, first the one whose instance is to read it."""
        if not self._shares_reads:
            return piece.receivers
        reader = min(piece.receivers, key=lambda target: self._read_bytes[self._devices.instance_of[target]])
        return [reader, *(target for target in piece.receivers if target != reader)]

    def _from_afar(
        self,
        piece: Piece,
        target: int,
        holders: Mapping[int, Sequence[int]],
        arrives: Mapping[int, int],
        ways: Sequence[_Way],
    ) -> Move:
        if not ways or (ways[0].is_late and piece.part.request is None):
            return Move(piece, None, target)  # storage sends what no instance can send in time
        best = ways[0]
        source = arrives[best.instance] if best.is_relayed else holders[best.instance][0]
        return Move(piece, source, target, best.is_relayed)

    def _way(self, piece: Piece, instance: int, *, is_relayed: bool) -> _Way:
        left_s = self._devices.left_s.get(instance)
        until_s = self._links.groups_s + self._up_s[instance] + self._between_s(piece)
        return _Way(left_s is not None and until_s > left_s, until_s, is_relayed, left_s is not None, instance)

    def _between_s(self, piece: Piece) -> float:
        return self._links.transfer_s + piece.byte_count / self._links.between_bytes_per_s

    def _count(self, move: Move) -> None:
        if move.source is None:
            self._read_bytes[self._devices.instance_of[move.target]] += move.piece.byte_count
            return
        here, there = self._devices.instance_of[move.source], self._devices.instance_of[move.target]
        if here == there:
            self._out_s[move.source] += self._links.transfer_s + move.piece.byte_count / self._links.within_bytes_per_s
        else:
            self._up_s[here] += self._between_s(move.piece)


def kv_loads(
    choice: SourceChoice, moving_kv: Iterable[MovingKv], devices: NumberedDevices
) -> tuple[list[TransferUnit], int]:
    """Return the loads of requests' KV, those of leaving instances first, and how many those are.
    Ordered by the instances' deadlines, then by decoded tokens, the most first, as those take longest to recompute.
    """
    moving = list(moving_kv)
    loads = []
    for each, sent in zip(moving, _choose(choice, [each.pieces for each in moving]), strict=True):
        if sent:
            loads.append(
                TransferUnit(
                    tuple(piece for piece, _ in sent), tuple(move for _, moves in sent for move in moves), each
                )
            )

    def until_s(load: TransferUnit) -> float:
        return min((devices.sends_until_s(move.source) for move in load.moves), default=math.inf)

    def decoded(load: TransferUnit) -> int:
        return load.moving_kv.request.decoded if load.moving_kv is not None else 0

    loads.sort(key=lambda load: (until_s(load), -decoded(load)))
    return loads, sum(until_s(load) < math.inf for load in loads)


def weight_loads(
    choice: SourceChoice, parts: Sequence[tuple[Piece, ...]], devices: NumberedDevices
) -> tuple[list[TransferUnit], int]:
    """Return the loads of weights in the order of the model, those of leaving instances first, and how many those are."""
    urgent: list[TransferUnit] = []
    others: list[TransferUnit] = []
    for sent in _choose(choice, parts):
        leaving: list[tuple[Piece, tuple[Move, ...]]] = []
        staying: list[tuple[Piece, tuple[Move, ...]]] = []
        for piece, moves in sent:
            leaves = any(devices.sends_until_s(move.source) < math.inf for move in moves)
            (leaving if leaves else staying).append((piece, moves))
        for those, loads in ((leaving, urgent), (staying, others)):
            if those:
                loads.append(
                    TransferUnit(
                        tuple(piece for piece, _ in those), tuple(move for _, moves in those for move in moves)
                    )
                )
    return urgent + others, len(urgent)


def given_up_at_once(parts: Iterable[tuple[Piece, ...]], region: int) -> dict[int, int]:
    """Return the bytes, by region, of pieces without receivers on devices that do not need them."""
    freed: dict[int, int] = {}
    for pieces in parts:
        for piece in pieces:
            if not piece.receivers:
                for device in piece.leavers:
                    freed[2 * device + region] = freed.get(2 * device + region, 0) + piece.byte_count
    return freed


def flow_of(load: TransferUnit, cut: Cut) -> Flow:
    """Return the effect of a cut of a load on memory regions: number 2 x device, and one more for KV."""
    received: dict[int, int] = {}
    freed: dict[int, int] = {}
    for whole in load.pieces:
        piece = whole.cut(cut.number, cut.of)
        num_bytes = piece.byte_count
        for changes, concerned in ((received, piece.receivers), (freed, piece.leavers)):
            for device in concerned:
                region = 2 * device + load.region
                changes[region] = changes.get(region, 0) + num_bytes
    return Flow(received, freed)


def _choose(choice: SourceChoice, parts: Sequence[tuple[Piece, ...]]) -> list[list[tuple[Piece, tuple[Move, ...]]]]:
    missing = [
        (len(piece.holders), number, index)
        for number, pieces in enumerate(parts)
        for index, piece in enumerate(pieces)
        if piece.receivers and piece.byte_count
    ]
    chosen = {(number, index): choice.choose(parts[number][index]) for _, number, index in sorted(missing)}
    found: list[list[tuple[Piece, tuple[Move, ...]]]] = [[] for _ in parts]
    for _, number, index in sorted(missing, key=lambda entry: entry[1:]):
        found[number].append((parts[number][index], chosen[number, index]))
    return found
