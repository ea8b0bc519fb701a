"""The requests of a worker that counts in groups: each one, a heartbeat's figures of all, and the group of its decodes, which
advance together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush

from spotwise.core.costs.batching import BatchRow
from spotwise.core.messages.worker import StreamRef
from spotwise.core.requests.record import KvTarget, RequestRecord, sequence_id
from spotwise.core.worker.sequences.held_work import HeldWork
from spotwise.simulator.world.machine_worker import Site
from spotwise.simulator.world.token_times import Progress


class HeldStage(IntEnum):
    """How far a request is on one worker."""

    RESERVED = 0  #: blocks are reserved for its KV
    WAITING = 1  #: its prompt waits
    COMPUTED = 2  #: its prompt is being computed
    LEAVING = 3  #: its KV is being handed off
    DECODING = 4


@dataclass(slots=True, eq=False)
class HeldRequest:
    """One request on one worker.

    Attributes:
        number: in order of arrival here.
        prompt_tokens: 0 of a reservation whose KV has not arrived.
        new_tokens: at most, as ordered; `kv_tokens`: of a reservation, those of its prompt included.
        target: the reservation that its KV is handed off to; `None` where it decodes here.
        blocks: blocks that it has, or a waiting prompt needs, without those that it grows by in its token phase.
        record, progress: once they are being loaded; `is_loaded`: the worker knows it.
        began_at, known_tokens: the group's clock at a decode's first iteration there, and the tokens that it has then.
        made_before, may_make: tokens that it has made here by then, and may make at most, those included.
        has_joined: its first iteration there has begun.
        was_handed: its prompt was computed elsewhere.
        preemptions: so far.
    """

    choice_id: str
    epoch: int
    stream: StreamRef
    scheduler_id: str
    number: int
    arrived_s: float
    stage: HeldStage
    prompt_tokens: int
    new_tokens: int
    kv_tokens: int
    lease_s: float
    target: KvTarget | None
    blocks: int
    record: RequestRecord | None = None
    progress: Progress | None = None
    is_loaded: bool = False
    started_s: float = 0.0
    began_at: int = 0
    known_tokens: int = 0
    made_before: int = 0
    may_make: int = 0
    has_joined: bool = False
    was_handed: bool = False
    preemptions: int = 0

    @property
    def sequence_id(self) -> str:
        """Id of this attempt."""
        return sequence_id(self.choice_id, self.epoch)

    @property
    def output_tokens(self) -> int:
        """Tokens of its answer; needs the record."""
        assert self.record is not None
        return self.record.stop.max_new_tokens

    def row(self) -> BatchRow:
        """Return its row while its prompt is computed; blocks have no numbers here."""
        return BatchRow(self.sequence_id, 0, self.prompt_tokens, ())


class HeldCounts:
    """Counts over requests by their stages; a request is removed before its stage changes, and added again after it.

    Attributes:
        pending_prompt_tokens: tokens of prompts that are not computed.
        remaining_tokens: tokens that requests which decode here may make at most.
        entry_blocks: blocks that waiting prompts need.
        prompts_in_place, prompts_to_hand_off: as in `WorkerLoad`, like the others.
    """

    def __init__(self) -> None:
        self.pending_prompt_tokens = self.remaining_tokens = self.entry_blocks = 0
        self.waiting = self.waiting_for_kv = self.migrating = 0
        self.prompts_in_place = self.prompts_to_hand_off = 0

    def add(self, held: HeldRequest) -> None:
        """Count a request in its stage."""
        self._change(held, 1)
        if held.stage is HeldStage.DECODING:
            self.remaining_tokens += held.may_make - held.made_before

    def remove(self, held: HeldRequest, made: int = 0) -> None:
        """Count a request no more; a decode has `made` tokens since it was added."""
        self._change(held, -1)
        if held.stage is HeldStage.DECODING:
            self.remaining_tokens -= held.may_make - held.made_before - made

    def _change(self, held: HeldRequest, by: int) -> None:
        stage = held.stage
        if stage is HeldStage.RESERVED:
            self.waiting_for_kv += by
            self.remaining_tokens += by * held.new_tokens
        elif stage is HeldStage.LEAVING:
            self.migrating += by
            self.prompts_to_hand_off += by
        elif stage is not HeldStage.DECODING:
            self.pending_prompt_tokens += by * held.prompt_tokens
            if stage is HeldStage.WAITING:
                self.waiting += by
                self.entry_blocks += by * held.blocks
            if held.target is None:
                self.prompts_in_place += by
                self.remaining_tokens += by * held.new_tokens
            else:
                self.prompts_to_hand_off += by


class CountedDecodes:
    """The decodes of one worker, from the moment at which they can run: all make a token in each iteration.

    A decode's tokens and blocks follow from the clock, which counts iterations, and from its tokens and blocks when it joined.
    Growth is counted by the tokens that fill a part of the last block: in each iteration one such class of decodes begins a
    block.

    Attributes:
        size: number of decodes, those included that join with the next run.
        context: tokens that they attend to in their next iteration, all together.
        clock: iterations that have ended.

    Args:
        block_size: tokens of a block; 0 where all blocks are had from the start.
    """

    def __init__(self, block_size: int) -> None:
        self.size = self.context = self.clock = 0
        self._block_size = block_size
        self._running = 0
        self._have_blocks = False  #: those that have joined, for their next iteration
        self._ends: list[tuple[int, int, HeldRequest]] = []  #: a heap of clocks, and who ends then
        self._joining: list[HeldRequest] = []
        self._by_rest = [0] * block_size  #: decodes that have run, by their tokens less the clock, modulo a block's

    def join(self, held: HeldRequest, *, runs: bool) -> None:
        """Add a decode: to what follows the running iteration, where one `runs`."""
        assert held.progress is not None
        held.began_at = self.clock + (runs and self._running > 0)
        left = held.output_tokens - held.progress.output_tokens
        heappush(self._ends, (held.began_at + left, held.number, held))
        self._joining.append(held)
        self.size += 1
        self.context += held.known_tokens

    def growth(self) -> int:
        """Count the blocks that the next run's first iteration needs."""
        size = self._block_size
        if not size:
            return 0
        # where a prompt was computed here, its first token may be the first of a block; one handed off has its block
        entering = [held for held in self._joining if held.known_tokens % size == 1 % size and not held.was_handed]
        return (0 if self._have_blocks else self._by_rest[(1 - self.clock) % size]) + len(entering)

    def begin(self, *, pauses: bool = False) -> list[HeldRequest]:
        """Begin a run with all, or one in which all pause; return those that have joined with it."""
        joining, self._joining = self._joining, []
        for held in joining:
            held.has_joined = True
            if self._block_size:
                self._by_rest[(held.known_tokens - held.began_at) % self._block_size] += 1
        self._running, self._have_blocks = 0 if pauses else self.size, True
        return joining

    def steps_within(self, free_blocks: int) -> int:
        """Return how many iterations these can run, until one ends or lacks a block; the first has its blocks."""
        size, steps = self._block_size, self._ends[0][0] - self.clock
        if not size or self.size * (steps // size + 1) <= free_blocks:
            return steps
        grown = 0
        for step in range(1, steps):
            grown += self._by_rest[(1 - self.clock - step) % size]
            if grown > free_blocks:
                return step
        return steps

    def pass_iterations(self, ended: int, *, begins_another: bool) -> int:
        """Count ended iterations; return the blocks that the iterations behind them took, of which the last begins only where
        said."""
        if not self._running:
            return 0
        grown, size = 0, self._block_size
        self._have_blocks = begins_another
        if size:
            for step in range(1, ended + begins_another):
                grown += self._by_rest[(1 - self.clock - step) % size]
        self.clock += ended
        self.context += ended * self._running
        return grown

    def take_finished(self) -> list[HeldRequest]:
        """Remove those that have all their tokens, in order of arrival, and return them."""
        finished, ends = [], self._ends
        while self._running and ends and ends[0][0] == self.clock:
            held = heappop(ends)[2]
            finished.append(held)
            self.size -= 1
            self.context -= self.known_tokens(held)
            if self._block_size:
                self._by_rest[(held.known_tokens - held.began_at) % self._block_size] -= 1
        return finished

    def known_tokens(self, held: HeldRequest) -> int:
        """Return a decode's tokens, those included whose KV is not computed."""
        return held.known_tokens + self.made_by(held)

    def made_by(self, held: HeldRequest) -> int:
        """Return how many tokens a decode has made since it joined."""
        return max(0, self.clock - held.began_at)

    def blocks_of(self, held: HeldRequest) -> int:
        """Return a decode's blocks."""
        if not self._block_size or not held.has_joined:
            return held.blocks
        tokens = self.known_tokens(held) - (not self._have_blocks)
        return max(held.blocks, -(-tokens // self._block_size))


@dataclass(frozen=True, slots=True)
class AggregateWork:
    """All that a worker holds.

    Attributes:
        held: in order of arrival.
        group: group of the decodes among them.
        began_s: start of the iteration that runs; `None` where none does.
        decodes_run: in that iteration; else they pause.
        is_noted: `learned.budget` knows of that iteration.
        last_token_s: time of the last token of the decodes that have run here.
        used_blocks: blocks of all; `peak_blocks`: the most so far.
        learned: what outlasts them; without sequences.
    """

    site: Site
    held: Sequence[HeldRequest]
    group: CountedDecodes
    began_s: float | None
    decodes_run: bool
    is_noted: bool
    last_token_s: float
    used_blocks: int
    peak_blocks: int
    learned: HeldWork

    def blocks_of(self, held: HeldRequest) -> int:
        """Return the blocks that a request has now."""
        if held.stage is HeldStage.WAITING:
            return 0
        return self.group.blocks_of(held)

    def runs(self, held: HeldRequest) -> bool:
        """Whether the running iteration computes tokens of it."""
        decodes = held.stage is HeldStage.DECODING and held.has_joined and self.decodes_run
        return self.began_s is not None and (held.stage is HeldStage.COMPUTED or decodes)
