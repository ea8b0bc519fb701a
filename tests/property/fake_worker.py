"""A worker of the mesh in one process: its real role, and an engine that only remembers the contents of each block."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from spotwise.core.costs.batching import Batch
from spotwise.core.kv.blocks import BlockPool
from spotwise.core.messages import mesh as m
from spotwise.core.requests.record import KvHandoff, KvTarget, RequestRecord
from spotwise.core.worker.role import WorkerRole

BLOCK_SIZE = 4


@dataclass
class FakePush:
    """One hand-off as the transfer has it.

    Attributes:
        written: tokens whose KV was reported written; of these only whole blocks leave before the commit.
        sent: tokens that it has read and the target has.
        number: that it was opened with.
        num_tokens: `None` for a sequence that decodes on, until the commit.
        handoff: set by the commit.
        caught_up: what was written when it was opened has left.
        over: delivered, failed or called off.
    """

    choice_id: str
    epoch: int
    target: KvTarget
    block_ids: tuple[int, ...]
    num_tokens: int | None
    written: int
    number: int = 0
    sent: int = 0
    handoff: KvHandoff | None = None
    over: bool = False
    caught_up: bool = False

    @property
    def whole(self) -> int:
        """Tokens in blocks that no iteration writes any more."""
        return self.written if self.written == self.num_tokens else self.written // BLOCK_SIZE * BLOCK_SIZE


@dataclass
class FakeWorker:
    """A role, and what its engine and its blocks hold.

    Attributes:
        batches: ordered and not ended, the oldest first.
        is_unlucky: its last iteration failed by bad luck, and the next one does not.
        unlucky: requests whose last iteration did, and whose next one does not, whatever ran in between.
        registered: its member as the store has it, which may be old.
        prompt_token_s, kv_push_token_s: what it reports as measured.
        host: blocks of its host's memory; `None` where it swaps nothing.
        host_blocks: what these hold.
        windows: open reservations: (epoch, block ids) by request.
        pushes: hand-offs under way, by sequence.
        engine_is_broken: whether all its iterations fail.
        engine_epoch, engine_is_lost: how often the engine was lost, and whether it is.
        swapping: sequences whose blocks move between device and host.
        inbox: what members sent to it while it stalled.
        waiting: what else would have happened on it meanwhile.
    """

    role: WorkerRole
    pool: BlockPool
    member: m.Member
    engine: dict[str, RequestRecord] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)
    blocks: dict[int, dict[int, tuple[int, ...]]] = field(default_factory=lambda: defaultdict(dict))
    host: BlockPool | None = None
    host_blocks: dict[int, dict[int, tuple[int, ...]]] = field(default_factory=lambda: defaultdict(dict))
    batches: deque[Batch] = field(default_factory=deque)
    windows: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    registered: m.Member | None = None
    prompt_token_s: float | None = None
    kv_push_token_s: float | None = None
    pushes: dict[str, FakePush] = field(default_factory=dict)
    alive: bool = True
    engine_is_broken: bool = False
    is_unlucky: bool = False
    unlucky: set[str] = field(default_factory=set)
    engine_epoch: int = 0
    engine_is_lost: bool = False
    swapping: list[str] = field(default_factory=list)
    stalled: bool = False
    inbox: list[Callable[[], None]] = field(default_factory=list)
    waiting: list[Callable[[], None]] = field(default_factory=list)

    def write(self, block_ids: tuple[int, ...], tokens: tuple[int, ...], first: int) -> None:
        """Put the KV of `tokens` from position `first` on: that of a token depends on all tokens before it."""
        for position in range(first, len(tokens)):
            self.blocks[block_ids[position // BLOCK_SIZE]][position % BLOCK_SIZE] = tokens[: position + 1]

    def lose_engine(self) -> None:
        """All that the engine held and ran is gone, and nothing arrives any more."""
        self.engine_epoch += 1
        self.engine_is_lost = True
        for held in (self.engine, self.outputs, self.batches, self.windows, self.blocks, self.host_blocks):
            held.clear()

    def check(self, block_ids: tuple[int, ...], tokens: tuple[int, ...]) -> None:
        """All of these have their KV there."""
        for position in range(len(tokens)):
            found = self.blocks[block_ids[position // BLOCK_SIZE]].get(position % BLOCK_SIZE)
            assert found == tokens[: position + 1], f"KV of {tokens} at {position} is that of {found}"

    def wake(self, rng: random.Random) -> None:
        """Let all that waited happen: the inbox in order, the rest in any, mixed."""
        self.stalled = False
        rng.shuffle(self.waiting)
        while left := [queue for queue in (self.inbox, self.waiting) if queue]:
            rng.choice(left).pop(0)()
