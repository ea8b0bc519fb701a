"""Schedules transfers on links.

Law: when a port becomes free, the first transfer in line that can start does: its two ports and the memory that it needs
(`buffer_order.gates`) are free, and a relay's source has the bytes. Steps are in line in order, the largest transfer first.
KV precedes weights: a port that KV still has to use takes no weights.
An instance's old memory of a step is free when all is sent that goes out of such memory in steps up to that one.
No transfer from an instance under notice ends after its deadline: late weights come from another holder or from storage; of
requests with late KV the later half in line is recomputed, then all is tried again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, merge
from typing import NamedTuple

from spotwise.core.migration.planning.buffer_order import Cut
from spotwise.core.migration.planning.link_times import Links, Ports
from spotwise.core.migration.planning.model_parts import NumberedDevices
from spotwise.core.migration.planning.transfers import Move, TransferUnit

_NO_STEP = 1 << 60  # after all steps


class Timed(NamedTuple):
    """A move, or a cut of one, with its time from the plan's start. `after_step`: the target's old memory of steps up to this
    one must be free before; `None`: no wait.
    """

    step: int
    move: Move
    start_s: float
    end_s: float
    after_step: int | None


class Schedule:
    """The times of all moves: transfers by start, and loads `dropped` because their KV would arrive too late."""

    def __init__(
        self,
        loads: Sequence[TransferUnit],
        steps: Sequence[Cut],
        gates: Sequence[Mapping[int, int]],
        devices: NumberedDevices,
        links: Links,
    ) -> None:
        self.dropped: set[int] = set()
        kv_steps = [step for step, cut in enumerate(steps) if loads[cut.load].moving_kv is not None]
        while True:
            kept = [_moves_of(loads, steps, step) for step in kv_steps if steps[step].load not in self.dropped]
            kv = LinkRun([move for moves in kept for move in moves], gates, devices, links, [])
            if not kv.late:
                break
            late = sorted({steps[kv.moves[number][0]].load for number in kv.late})
            self.dropped.update(late[len(late) // 2 :])
        weights = [move for step in range(len(kv_steps), len(steps)) for move in _moves_of(loads, steps, step)]
        refused: dict[int, set[int]] = {}  # by move: sources that cannot send it in time
        while (both := LinkRun(weights, gates, devices, links, kv.timed)).late:
            for number in both.late:
                step, move = weights[number]
                assert move.source is not None
                refused.setdefault(number, set()).add(move.source)
                weights[number] = step, _from_other_source(move, refused[number], devices)
        self.timed = sorted(kv.timed + both.timed, key=lambda each: (each.start_s, each.step, each.move.target))
        self._freed: list[list[tuple[int, float]]] = [[] for _ in devices.instances]
        for each in sorted(self.timed, key=lambda each: each.step):
            if each.move.frees:
                assert each.move.source is not None
                freed = self._freed[devices.instance_of[each.move.source]]
                freed.append((each.step, max(each.end_s, freed[-1][1]) if freed else each.end_s))

    def freed_s(self, instance: int, step: int) -> float:
        """Return when an instance's old memory of a step, and of all before it, is free."""
        freed = self._freed[instance]
        index = bisect_right(freed, step, key=lambda entry: entry[0])
        return freed[index - 1][1] if index else 0.0


class LinkRun:
    """Puts moves (in line, each with its step) on links, after earlier ones.
    `timed` has the moves that arrive in time, by start; `late` numbers the moves that a leaving instance cannot send in time.
    """

    def __init__(
        self,
        moves: Sequence[tuple[int, Move]],
        gates: Sequence[Mapping[int, int]],
        devices: NumberedDevices,
        links: Links,
        earlier: Sequence[Timed],
    ) -> None:
        self.moves = moves
        self.timed: list[Timed] = []
        self.late: list[int] = []
        self._gates, self._devices, self._earlier = gates, devices, earlier
        self._ports = Ports(links, devices.instance_of)
        self._busy_s = [links.groups_s] * self._ports.count
        self._queues: list[list[int]] = [[] for _ in range(self._ports.count)]
        self._heads = [0] * self._ports.count
        self._ports_of = [self._ports.of(move.source, move.target) for _, move in moves]
        self._started = [False] * len(moves)
        self._has_source = [not move.is_relayed for _, move in moves]
        self._relays: dict[tuple[int, int, int], list[int]] = {}  # waiting relays, by step, source and piece
        self._unsent: list[dict[int, int]] = [{} for _ in devices.instances]  # moves out of memory to free, by step
        self._first_unsent = [_NO_STEP] * len(devices.instances)
        self._ends: list[tuple[float, int]] = []
        for number, each in enumerate(earlier):
            self._ends.append((each.end_s, -1 - number))
            self._expect(each.step, each.move, 1)
            for port in self._ports.of(each.move.source, each.move.target):
                self._busy_s[port] = max(self._busy_s[port], each.end_s)
        heapify(self._ends)
        for number, (step, move) in enumerate(moves):
            self._expect(step, move, 1)
            out, into = self._ports_of[number]
            self._queues[out].append(number)
            if into != out:
                self._queues[into].append(number)
            if move.is_relayed:
                assert move.source is not None
                self._relays.setdefault((step, move.source, id(move.piece)), []).append(number)
        self._run(links.groups_s)

    def _run(self, now_s: float) -> None:
        for number in range(len(self.moves)):
            self._start(number, now_s)
        while self._ends:
            now_s = self._ends[0][0]
            touched: dict[int, None] = {}
            while self._ends and self._ends[0][0] == now_s:
                self._end(heappop(self._ends)[1], touched)
            for number in merge(*(self._waiting(port, now_s) for port in touched if self._busy_s[port] <= now_s)):
                self._start(number, now_s)
        assert all(self._started), "a move waits for one that never ends"

    def _waiting(self, port: int, now_s: float) -> Iterator[int]:
        queue, started, busy_s, ports_of = self._queues[port], self._started, self._busy_s, self._ports_of
        while self._heads[port] < len(queue) and started[queue[self._heads[port]]]:
            self._heads[port] += 1
        for index in range(self._heads[port], len(queue)):
            if busy_s[port] > now_s:
                return
            number = queue[index]
            out, into = ports_of[number]
            if not started[number] and busy_s[out] <= now_s and busy_s[into] <= now_s:
                yield number

    def _start(self, number: int, now_s: float) -> None:
        step, move = self.moves[number]
        out, into = self._ports_of[number]
        if self._started[number] or self._busy_s[out] > now_s or self._busy_s[into] > now_s:
            return
        target = self._devices.instance_of[move.target]
        gate = self._gates[step].get(target) if self._gates else None
        if not self._has_source[number] or (gate is not None and self._first_unsent[target] <= gate):
            return
        self._started[number] = True
        end_s = now_s + self._ports.seconds(move.source, move.target, move.piece.byte_count)
        if end_s > self._devices.sends_until_s(move.source):
            self.late.append(number)
            heappush(self._ends, (now_s, number))  # out of line; a run with late moves is done again without them
            return
        self._busy_s[out] = self._busy_s[into] = end_s
        self.timed.append(Timed(step, move, now_s, end_s, gate))
        heappush(self._ends, (end_s, number))

    def _end(self, number: int, touched: dict[int, None]) -> None:
        if number < 0:
            step, move = self._earlier[-1 - number][:2]
        else:
            step, move = self.moves[number]
            for relay in self._relays.pop((step, move.target, id(move.piece)), ()):
                self._has_source[relay] = True
                touched.update(dict.fromkeys(self._ports.of(move.target, self.moves[relay][1].target)))
        touched.update(dict.fromkeys(self._ports.of(move.source, move.target)))
        if self._expect(step, move, -1) and self._gates:
            assert move.source is not None
            touched.update(dict.fromkeys(self._ports.into(self._devices.instance_of[move.source])))

    def _expect(self, step: int, move: Move, change: int) -> bool:
        """Count moves out of memory to free; return whether a step's memory became free."""
        if not move.frees:
            return False
        assert move.source is not None
        instance = self._devices.instance_of[move.source]
        unsent = self._unsent[instance]
        unsent[step] = unsent.get(step, 0) + change
        if not unsent[step]:
            del unsent[step]
        before, self._first_unsent[instance] = self._first_unsent[instance], min(unsent, default=_NO_STEP)
        return self._first_unsent[instance] > before


def _moves_of(loads: Sequence[TransferUnit], steps: Sequence[Cut], step: int) -> list[tuple[int, Move]]:
    cut = steps[step]
    load = loads[cut.load]
    cuts = {id(piece): piece.cut(cut.number, cut.of) for piece in load.pieces}
    moves = [move._replace(piece=cuts[id(move.piece)]) if cut.of > 1 else move for move in load.moves]
    moves.sort(key=lambda move: -move.piece.byte_count)
    return [(step, move) for move in moves if move.piece.byte_count]


def _from_other_source(move: Move, refused: set[int], devices: NumberedDevices) -> Move:
    others = [holder for holder in move.piece.holders if holder not in refused]
    return move._replace(source=min(others, key=lambda holder: (devices.is_leaving(holder), holder), default=None))
