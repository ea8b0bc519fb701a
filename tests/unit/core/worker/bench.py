"""A worker role on a bench: the test is its engine, its store and its mesh."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.kv.blocks import BlockPool
from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.requests.record import KvHandoff, KvTarget, RequestRecord, sequence_id
from spotwise.core.requests.request import FinishReason, StopCriteria
from spotwise.core.requests.sampling import SampledToken, SamplingParams
from spotwise.core.worker import commands as c
from spotwise.core.worker.policy import Reserve, WorkerPolicy
from spotwise.core.worker.role import WorkerRole
from tests.unit.core.builders import only

BLOCK_SIZE = 16
LEASE_S = 3.0
STOP_TOKEN = 2
TARGET = KvTarget("t", 7, "t:2", (4, 5, 6))
HERE = KvTarget("w", 9, "w:2", ())


def stream_of(choice_id: str, epoch: int = 1, gateway: str = "g") -> m.StreamRef:
    """A stream's number derives from the letter of the choice id, so that tests can distinguish streams."""
    return m.StreamRef(gateway, ord(choice_id[0]) * 10 + epoch)


class WorkerBench:
    """A role named `w` and a clock; by default it reserves all blocks at once and reuses none: counts are plain.

    Attributes:
        prompt_tokens: by request, where it is not the 30 that the methods assume.
    """

    def __init__(
        self,
        *,
        blocks: int = 20,
        limits: BatchLimits | None = None,
        policy: WorkerPolicy | None = None,
        host_blocks: int = 20,
        numerics_class: str = "",
    ) -> None:
        self.now = 1000.0
        self.pool = BlockPool(blocks, BLOCK_SIZE)
        plain = WorkerPolicy(limits or BatchLimits(), Reserve.MAX_TOKENS, prefix_caching=False)
        self.host = BlockPool(host_blocks, BLOCK_SIZE)
        self.prompt_tokens: dict[str, int] = {}
        self.role = WorkerRole("w", 9, "w:2", self.pool, policy or plain, self.host, numerics_class)

    def feed(self, event: c.WorkerEvent, after_s: float = 0.0) -> list[c.WorkerCommand]:
        """Let time pass, then the event happen."""
        self.now += after_s
        return self.role.handle(event, self.now)

    def tick(self, after_s: float = 0.0) -> list[c.WorkerCommand]:
        return self.feed(m.Tick(), after_s)

    # --- orders -------------------------------------------------------------------------------------------------------

    def reserve(
        self,
        choice_id: str,
        epoch: int = 1,
        *,
        tokens: int = 40,
        new: int = 10,
        number: int = 1,
        gateway: str = "g",
        priority: int = 0,
        tenant: str = "",
        numerics_class: str = "",
    ) -> list[c.WorkerCommand]:
        stream = stream_of(choice_id, epoch, gateway)
        order = m.ReserveKv(choice_id, epoch, stream, "s", number, tokens, new, LEASE_S, priority=priority)
        return self.feed(replace(order, tenant=tenant, numerics_class=numerics_class))

    def start(
        self,
        choice_id: str,
        epoch: int = 1,
        *,
        prompt: int = 30,
        new: int = 10,
        target: KvTarget = TARGET,
        number: int = 1,
        gateway: str = "g",
        lease_s: float = LEASE_S,
    ) -> list[c.WorkerCommand]:
        stream = stream_of(choice_id, epoch, gateway)
        self.prompt_tokens[choice_id] = prompt
        return self.feed(m.StartPrefill(choice_id, epoch, stream, "s", number, prompt, target, lease_s, new))

    def load(
        self,
        choice_id: str,
        epoch: int = 1,
        *,
        committed: tuple[int, ...] = (),
        max_new: int = 10,
        prompt: tuple[int, ...] | None = None,
        sampling: SamplingParams | None = None,
        salt: str = "",
        deadline_unix_s: float | None = None,
        priority: int = 0,
        tenant: str = "",
    ) -> list[c.WorkerCommand]:
        """Report the record as loaded; no two requests' prompts share a prefix, unless the test gives one."""
        others = (ord(choice_id[0]) + 128 * position for position in range(self.prompt_tokens.get(choice_id, 30)))
        known = prompt or tuple(others)
        record = RequestRecord(
            choice_id,
            epoch,
            "g",
            1,
            "model",
            known[: len(known) - len(committed)],
            committed,
            sampling or SamplingParams(),
            StopCriteria(max_new, (STOP_TOKEN,)),
            self.now,
            prefix_salt=salt,
            deadline_unix_s=deadline_unix_s,
            priority=priority,
            tenant=tenant,
        )
        return self.feed(c.RecordLoaded(record))

    # --- whole phases -------------------------------------------------------------------------------------------------

    def prefill(
        self, choice_id: str, epoch: int = 1, *, prompt: int = 30, max_new: int = 10, gateway: str = "g"
    ) -> list[c.WorkerCommand]:
        """A prompt for another worker, known to the engine."""
        return self.start(choice_id, epoch, prompt=prompt, gateway=gateway) + self.load(
            choice_id, epoch, max_new=max_new
        )

    def decode(
        self, choice_id: str, epoch: int = 1, *, prompt: int = 30, max_new: int = 10, gateway: str = "g"
    ) -> list[c.WorkerCommand]:
        """A sequence handed off to this worker, known to the engine."""
        commands = self.reserve(choice_id, epoch, tokens=prompt + max_new, new=max_new, gateway=gateway)
        commands += self.load(choice_id, epoch, max_new=max_new)
        return commands + self.arrive(choice_id, epoch, tokens=prompt)

    def in_place(
        self,
        choice_id: str,
        epoch: int = 1,
        *,
        prompt: int = 30,
        max_new: int = 10,
        tenant: str = "",
    ) -> list[c.WorkerCommand]:
        """Both phases here, known to the engine."""
        commands = self.start(choice_id, epoch, prompt=prompt, new=max_new, target=HERE)
        return commands + self.load(choice_id, epoch, max_new=max_new, tenant=tenant)

    # --- results ------------------------------------------------------------------------------------------------------

    def iterate(self, after_s: float = 0.0, **tokens: int) -> list[c.WorkerCommand]:
        """The iteration ends with these tokens, by request, first attempts all."""
        sampled = tuple(SampledToken(sequence_id(choice_id, 1), token) for choice_id, token in tokens.items())
        return self.feed(c.IterationFinished(sampled), after_s)

    def arrive(
        self, choice_id: str, epoch: int = 1, *, tokens: int = 30, first: int = 50, after_s: float = 0.0
    ) -> list[c.WorkerCommand]:
        return self.feed(c.KvArrived(KvHandoff(choice_id, epoch, tokens, first), 4096, 0.25, "shm"), after_s)

    def swapped(self, choice_id: str, epoch: int = 1, after_s: float = 0.0) -> list[c.WorkerCommand]:
        return self.feed(c.Swapped(sequence_id(choice_id, epoch)), after_s)

    def delivered(self, choice_id: str, epoch: int = 1, after_s: float = 0.0) -> list[c.WorkerCommand]:
        return self.feed(h.HandoffDelivered(choice_id, epoch, 4096, 0.25, "shm", 0.125), after_s)

    def assert_empty(self) -> None:
        """Assert that the worker holds no blocks and reports no load."""
        load = self.role.load()
        assert self.pool.free_blocks == self.pool.num_blocks
        assert self.pool.owners == 0
        assert (self.host.free_blocks, self.host.owners) == (self.host.num_blocks, 0)
        counts = (load.pending_prompt_tokens, load.remaining_tokens, load.waiting, load.waiting_for_kv)
        assert (*counts, load.running, load.migrating) == (0, 0, 0, 0, 0, 0)


def rows(commands: list[c.WorkerCommand]) -> list[str]:
    """Sequences in the one iteration ordered, if any was."""
    return [row.sequence_id for order in only(commands, c.RunIteration) for row in order.batch.rows]


def row_of(commands: list[c.WorkerCommand], choice_id: str) -> tuple[int, int]:
    """Return the first position and the token count of the first attempt's row in the ordered iteration."""
    ((first, tokens),) = [
        (row.first_position, row.num_tokens)
        for order in only(commands, c.RunIteration)
        for row in order.batch.rows
        if row.sequence_id == f"{choice_id}@1"
    ]
    return first, tokens


def deltas(commands: list[c.WorkerCommand], gateway: str = "g") -> list[m.TokenDelta]:
    """Token deltas sent to a gateway."""
    return [
        delta
        for command in commands
        if isinstance(command, m.Send) and command.recipient_id == gateway and isinstance(command.message, m.TokenBatch)
        for delta in command.message.deltas
    ]


def error_delta(commands: list[c.WorkerCommand]) -> m.TokenDelta:
    """The one delta sent, which is an error without a token."""
    (delta,) = deltas(commands)
    assert (delta.token_id, delta.finish_reason) == (None, FinishReason.ERROR)
    return delta
