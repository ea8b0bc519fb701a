"""Who sends what to whom: the cheapest live holder of each missing piece.

Law: whoever lacks a piece gets it once: from a device of the same instance that holds it; else from one of the same instance
that is about to get it, so that it crosses the network once; else over the uplink that has least to send so far: a holder's, or
that of one who is about to get it and passes it on, so that many pipelines are filled from one without its uplink carrying
all; else, weights alone, from storage. Pieces with few holders choose first, since others can go around them; KV chooses
before weights, since it moves before. A leaving instance is one holder among others, of equals the last, and is passed over
for what its uplink cannot send before it goes.

What moves as one is a load: a part of the weights, or all KV of a request. What leaving instances send of a part is a load of
its own, an urgent one: a dying instance's data goes first.

Sources: SpotServe (Miao et al., 2024), sections 4.2 and 4.3.

Invariants: each receiver of a piece gets it in exactly one move; a move's source holds the piece, or gets it in an earlier move
of the load; no source is its target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spotwise.core.migration.planning.buffer_order import Cut, Flow
from spotwise.core.migration.planning.link_times import Links
from spotwise.core.migration.planning.model_parts import MovingKv, Piece
from spotwise.core.migration.planning.numbered_devices import NumberedDevices


class Move(NamedTuple):
    """One piece on its way to one device.

    Attributes:
        piece: what.
        source: from which device; `None`: from storage.
        target: to which.
        is_relayed: the source itself gets it in this load, and passes it on.
    """

    piece: Piece
    source: int | None
    target: int
    is_relayed: bool = False

    @property
    def frees(self) -> bool:
        """Whether it goes out of memory that the source gives up once it is sent."""
        return self.source in self.piece.leavers


@dataclass(frozen=True, slots=True)
class TransferUnit:
    """What moves as one.

    Attributes:
        pieces: in the order of the model.
        moves: of those, in order; relayed ones after those that bring the piece.
        moving_kv: whose KV it is; `None` of weights.
    """

    pieces: tuple[Piece, ...]
    moves: tuple[Move, ...]
    moving_kv: MovingKv | None = None

    @property
    def room(self) -> int:
        """Which of a device's two regions it fills: 0 with weights, 1 with KV."""
        return int(self.moving_kv is not None)


class SourceChoice:
    """Chooses sources, and knows what each instance has to send by then."""

    def __init__(self, devices: NumberedDevices, links: Links) -> None:
        self._devices = devices
        self._links = links
        self._up_s = [0.0] * len(devices.instances)
        self._out_s = [0.0] * len(devices.devices)

    def choose(self, piece: Piece) -> tuple[Move, ...]:
        """Return the moves that bring a piece to all its receivers."""
        instance_of = self._devices.instance_of
        moves: list[Move] = []
        near: dict[int, list[int]] = {}
        for holder in piece.holders:
            near.setdefault(instance_of[holder], []).append(holder)
        arrives: dict[int, int] = {}  # by instance: at which device
        for target in piece.receivers:
            instance = instance_of[target]
            if instance in near:
                source = min(near[instance], key=lambda holder: (self._out_s[holder], holder))
                moves.append(Move(piece, source, target))
            elif instance in arrives:
                moves.append(Move(piece, arrives[instance], target, is_relayed=True))
            else:
                moves.append(self._farther(piece, target, near, arrives))
                arrives[instance] = target
            self._count(moves[-1])
        return tuple(moves)

    def _farther(
        self,
        piece: Piece,
        target: int,
        holders: Mapping[int, Sequence[int]],
        arrives: Mapping[int, int],
    ) -> Move:
        left_s = self._devices.left_s
        seconds = self._between_s(piece)
        senders = [(instance, False) for instance in holders]
        if holders:
            senders += [(instance, True) for instance in arrives]
        ways = []
        for instance, is_relayed in senders:
            until_s = self._links.groups_s + self._up_s[instance] + seconds
            leaves = instance in left_s
            ways.append((leaves and until_s > left_s[instance], until_s, is_relayed, leaves, instance))
        best = min(ways, default=None)
        if best is None or (best[0] and piece.part.request is None):
            return Move(piece, None, target)  # storage sends at once what nobody could send in time
        _, _, is_relayed, _, instance = best
        return Move(piece, arrives[instance] if is_relayed else holders[instance][0], target, is_relayed)

    def _between_s(self, piece: Piece) -> float:
        return self._links.transfer_s + piece.byte_count / self._links.between_bytes_per_s

    def _count(self, move: Move) -> None:
        if move.source is None:
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

    The instance that goes first comes first; after that, whoever has decoded most, since computing that again takes longest.
    """
    asked = list(moving_kv)
    loads = []
    for each, sent in zip(asked, _choose(choice, [each.pieces for each in asked]), strict=True):
        if sent:
            loads.append(
                TransferUnit(
                    tuple(piece for piece, _ in sent), tuple(move for _, moves in sent for move in moves), each
                )
            )
    forever = float("inf")

    def goes_s(load: TransferUnit) -> float:
        return min((_goes_s(move, devices) for move in load.moves), default=forever)

    def decoded(load: TransferUnit) -> int:
        return load.moving_kv.request.decoded if load.moving_kv is not None else 0

    loads.sort(key=lambda load: (goes_s(load), -decoded(load)))
    return loads, sum(goes_s(load) < forever for load in loads)


def weight_loads(
    choice: SourceChoice, parts: Sequence[tuple[Piece, ...]], devices: NumberedDevices
) -> tuple[list[TransferUnit], int]:
    """Return the loads of weights, those of leaving instances first, and how many those are; each kind from the front."""
    urgent: list[TransferUnit] = []
    others: list[TransferUnit] = []
    for sent in _choose(choice, parts):
        hurried: list[tuple[Piece, tuple[Move, ...]]] = []
        calm: list[tuple[Piece, tuple[Move, ...]]] = []
        for piece, moves in sent:
            leaves = any(_goes_s(move, devices) < float("inf") for move in moves)
            (hurried if leaves else calm).append((piece, moves))
        for those, loads in ((hurried, urgent), (calm, others)):
            if those:
                loads.append(
                    TransferUnit(
                        tuple(piece for piece, _ in those), tuple(move for _, moves in those for move in moves)
                    )
                )
    return urgent + others, len(urgent)


def given_up_at_once(parts: Iterable[tuple[Piece, ...]], room: int) -> dict[int, int]:
    """Return the bytes, by room, of pieces that nobody has to receive, on devices that do not need them."""
    freed: dict[int, int] = {}
    for pieces in parts:
        for piece in pieces:
            if not piece.receivers:
                for device in piece.leavers:
                    freed[2 * device + room] = freed.get(2 * device + room, 0) + piece.byte_count
    return freed


def flow_of(load: TransferUnit, cut: Cut) -> Flow:
    """Return what moving a cut of a load does to devices' regions: number 2 x device, and one more for KV."""
    received: dict[int, int] = {}
    freed: dict[int, int] = {}
    for whole in load.pieces:
        piece = whole.cut(cut.number, cut.of)
        num_bytes = piece.byte_count
        for changes, concerned in ((received, piece.receivers), (freed, piece.leavers)):
            for device in concerned:
                room = 2 * device + load.room
                changes[room] = changes.get(room, 0) + num_bytes
    return Flow(received, freed)


def _choose(choice: SourceChoice, parts: Sequence[tuple[Piece, ...]]) -> list[list[tuple[Piece, tuple[Move, ...]]]]:
    """Return, of each part, the pieces that have to move and how; those with the fewest holders have chosen first."""
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


def _goes_s(move: Move, devices: NumberedDevices) -> float:
    """Return when the source goes; never, where it stays."""
    if move.source is None:
        return float("inf")
    return devices.left_s.get(devices.instance_of[move.source], float("inf"))
