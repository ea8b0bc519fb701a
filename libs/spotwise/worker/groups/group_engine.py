"""A `WorkerEngine` of P x M processes: the leader's own part, and devices that carry out its orders; they know block tables.

The devices receive what the leader's engine does, in the same order. An iteration has ended when the device that samples says
so; by then all members have written its KV. Where a member is gone nothing is undone or waited for: the engine is lost,
with all sequences, until the group is formed again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from spotwise.core.costs.batching import Batch
from spotwise.core.messages import groups as g
from spotwise.core.messages import hand_offs as h
from spotwise.core.messages.groups import StepRow
from spotwise.core.requests.record import KvShare, RequestRecord
from spotwise.core.requests.sampling import SampledToken
from spotwise.engine.engine import Engine
from spotwise.mesh.grpc.control import GroupTimes
from spotwise.mesh.grpc.device_control import DeviceLink
from spotwise.mesh.ports.ports import MeshError
from spotwise.worker.engine_thread import EngineThread
from spotwise.worker.groups.group_kv import KvReports
from spotwise.worker.groups.group_part import GroupPart


class BlockTables:
    """By sequence, the table of its last row."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, ...]] = {}

    def rows(self, batch: Batch) -> tuple[StepRow, ...]:
        """Return a batch's rows as changes of what is known, and note them."""
        return tuple(
            StepRow(row.sequence_id, row.first_position, row.num_tokens, *self._change(row.sequence_id, row.block_ids))
            for row in batch.rows
        )

    def blocks(self, sequence_id: str) -> tuple[int, ...]:
        """Return a sequence's table; empty where it has had no row."""
        return self._known.get(sequence_id, ())

    def drop(self, sequence_id: str) -> None:
        """Forget a sequence; idempotent."""
        self._known.pop(sequence_id, None)

    def clear(self) -> None:
        """Forget all sequences."""
        self._known.clear()

    def _change(self, sequence_id: str, block_ids: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        known = self._known.get(sequence_id, ())
        if known == block_ids:
            return len(known), ()
        self._known[sequence_id] = block_ids
        if known == block_ids[: len(known)]:
            return len(known), block_ids[len(known) :]
        return 0, block_ids


OnEnded = Callable[[Exception | None], None]


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    on_finished: Callable[[tuple[SampledToken, ...]], None]


@dataclass(slots=True)
class _Swap:
    on_ended: OnEnded
    awaited: int
    errors: list[str] = field(default_factory=list)


class EngineLostError(MeshError):
    """A part of the engine is gone; what it was doing has no result."""


class GroupEngine:
    """The engine of a group's leader; used on the event loop.

    Args:
        part: the leader's, position 0,0 of the group.
        stages, shards: P and M.
    """

    def __init__(self, part: GroupPart, stages: int, shards: int) -> None:
        self._part = part
        self._stages, self._shards = stages, shards
        self._links: Sequence[DeviceLink] = ()
        self._epoch = 0  #: of the group; 0: it is not whole
        self._tables = BlockTables()
        self._steps: deque[_Step] = deque()
        self._swaps: dict[int, _Swap] = {}
        self._number = 0
        self._shares: tuple[KvShare, ...] = ()
        self._kv: KvReports | None = None
        self._on_lost: Callable[[str], None] = lambda reason: None
        self._on_restored: Callable[[], None] = lambda: None

    @property
    def engine(self) -> Engine:
        """The leader's part."""
        return self._own.engine

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache, on every member."""
        return self._own.num_blocks

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self._own.block_size

    @property
    def host_blocks(self) -> int:
        """Blocks of host memory for swapped KV, on every member; 0: none."""
        return self._own.host_blocks

    @property
    def num_layers(self) -> int:
        """Layers of the model that have KV."""
        return self._own.num_layers

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV per token on all members together."""
        return self._own.kv_bytes_per_token

    @property
    def max_in_flight(self) -> int:
        """Iterations that it computes at a time: one a stage."""
        return self._stages

    @property
    def num_sequences(self) -> int:
        """Sequences in the engine."""
        return self._own.num_sequences

    @property
    def kernels(self) -> str:
        """What computes its layers, and in which shape."""
        return f"{self._own.kernels}, {self._stages} stages of {self._shards} shards"

    @property
    def computes_with(self) -> str:
        """Number format, device and kernels, for people."""
        return f"{self._own.computes_with}, {self._stages} stages of {self._shards} shards"

    @property
    def group_times(self) -> GroupTimes | None:
        """The leader's own part of it."""
        return self._part.times()

    def watch(self, on_lost: Callable[[str], None], on_restored: Callable[[], None]) -> None:
        """See `WorkerEngine`."""
        self._on_lost, self._on_restored = on_lost, on_restored
        if self._epoch:
            on_restored()
        else:
            on_lost("its group is not whole")

    @property
    def device_shares(self) -> tuple[KvShare, ...]:
        """The devices' shares of the KV, in order of position; none while the group is not whole."""
        return self._shares if self._epoch else ()

    def move_kv_by(self, kv: KvReports) -> None:
        """Tell `kv` what becomes of the devices' parts of hand-offs."""
        self._kv = kv

    def formed(self, links: Sequence[DeviceLink], epoch: int, shares: tuple[KvShare, ...]) -> None:
        """Note that the group is whole, and empty; `shares`: the devices' of the KV."""
        self._links, self._epoch, self._shares = links, epoch, shares
        self._on_restored()

    def lose(self, reason: str) -> None:
        """Note that the group is not whole any more; no effect where it is not."""
        if not self._epoch:
            return
        self._part.break_up()
        self._epoch = 0
        self._steps.clear()
        self._tables.clear()
        self._own.drop_all()
        swaps, self._swaps = self._swaps, {}
        if self._kv is not None:
            self._kv.lost(reason)
        self._on_lost(reason)
        for swap in swaps.values():
            swap.on_ended(EngineLostError(reason))

    async def prepare(self, record: RequestRecord) -> Any:
        """Do what a sequence needs before it is added; raises `ValueError` where it can be served nowhere."""
        return await self._own.prepare(record) if self._epoch else None

    async def add_sequence(self, record: RequestRecord, prepared: Any = None) -> None:
        """Add a sequence; raises `ValueError` where the engine refuses it, `MeshError` where the group is not whole."""
        epoch = self._epoch
        if epoch:
            await self._own.add_sequence(record, prepared)
        if not epoch or epoch != self._epoch:
            raise EngineLostError("the group is not whole")
        self.order(g.AddGroupSequence(record))

    def append_token(self, sequence_id: str, token_id: int) -> None:
        """Append a token that another worker sampled."""
        self._own.append_token(sequence_id, token_id)
        self.order(g.AppendGroupTokens((sequence_id,), (token_id,)))

    def drop_sequence(self, sequence_id: str) -> None:
        """Remove a sequence."""
        self._own.drop_sequence(sequence_id)
        self._tables.drop(sequence_id)
        self.order(g.DropGroupSequence(sequence_id))

    def run_iteration(
        self,
        batch: Batch,
        on_finished: Callable[[tuple[SampledToken, ...]], None],
        on_failed: Callable[[Exception], None],
        on_layers: Callable[[int], None] | None = None,
    ) -> None:
        """Run a batch on all members; several may be in flight. A failure on any of them loses the engine (`watch`)."""
        if not self._epoch:
            return  # the role learns at the same time that the engine is lost
        self._number += 1
        number, epoch = self._number, self._epoch
        self._steps.append(_Step(number, on_finished))
        self.order(g.RunStep(number, self._tables.rows(batch)))
        self._own.run_iteration(
            batch,
            lambda sampled: self._own_ended(epoch, number, sampled),
            lambda error: self._own_failed(epoch, error),
            on_layers,
        )

    def swap_out(self, block_ids: tuple[int, ...], host_block_ids: tuple[int, ...], on_ended: OnEnded) -> None:
        """Copy blocks of the KV cache into as many of the host's, on every member."""
        ended = self._begin_swap(block_ids, host_block_ids, on_ended, to_host=True)
        if ended is not None:
            self._own.swap_out(block_ids, host_block_ids, ended)

    def swap_in(self, host_block_ids: tuple[int, ...], block_ids: tuple[int, ...], on_ended: OnEnded) -> None:
        """Copy blocks of the host into as many of the KV cache, on every member."""
        ended = self._begin_swap(block_ids, host_block_ids, on_ended, to_host=False)
        if ended is not None:
            self._own.swap_in(host_block_ids, block_ids, ended)

    def reported(self, report: g.GroupReport) -> None:
        """Take a device's report of a step, swap or hand-off."""
        match report:
            case g.PartArrived() | h.PushCaughtUp() | h.HandoffDelivered() | h.HandoffFailed():
                if self._kv is not None:
                    self._kv.reported(report)
            case g.StepEnded(epoch, number, sampled):
                self._ended(epoch, number, sampled)
            case g.StepFailed(epoch, _, reason) if epoch == self._epoch:
                self.lose(reason)
            case g.GroupSwapEnded(epoch, number, error) if epoch == self._epoch:
                self._swap_ended(number, error)

    @property
    def _own(self) -> EngineThread:
        return self._part.engine

    def order(self, order: g.GroupOrder) -> None:
        """Send an order to every device; no effect while the group is not whole."""
        if self._epoch:
            for link in self._links:
                link.send(order)

    def _own_ended(self, epoch: int, number: int, sampled: tuple[SampledToken, ...]) -> None:
        if self._own.engine.samples:
            self._ended(epoch, number, sampled)

    def _own_failed(self, epoch: int, error: Exception) -> None:
        if epoch == self._epoch:
            gone = self._part.broken_by
            self.lose(f"{type(error).__name__}: {error}" if gone is None else f"{self._name_of(gone)} is gone")

    def _name_of(self, member: int) -> str:
        return self._links[member - 1].device_id if 0 < member <= len(self._links) else f"member {member}"

    def _ended(self, epoch: int, number: int, sampled: tuple[SampledToken, ...]) -> None:
        if epoch != self._epoch or not self._steps or self._steps[0].number != number:
            return
        step = self._steps.popleft()
        if tokens := tuple((token.sequence_id, token.token_id) for token in sampled if token.failure is None):
            self._append(tokens)
        for token in sampled:
            if token.may_be_ill:  # the members that sample have cleared their own
                block_ids = self._tables.blocks(token.sequence_id)
                self._own.clear_not_finite(block_ids)
                self.order(g.ClearGroupKv(block_ids))
        step.on_finished(sampled)

    def _append(self, tokens: tuple[tuple[str, int], ...]) -> None:
        """Append tokens, (sequence id, token id) each, everywhere but in the member that sampled them."""
        order = g.AppendGroupTokens(*(tuple(column) for column in zip(*tokens, strict=True)))
        sampler = (self._stages - 1) * self._shards
        for member, link in enumerate(self._links, 1):
            if member != sampler:
                link.send(order)
        if sampler != 0:
            self._own.append_tokens(tokens)

    def _begin_swap(
        self, block_ids: tuple[int, ...], host_block_ids: tuple[int, ...], on_ended: OnEnded, *, to_host: bool
    ) -> OnEnded | None:
        if not self._epoch:
            on_ended(EngineLostError("the group is not whole"))
            return None
        self._number += 1
        number, epoch = self._number, self._epoch
        self._swaps[number] = _Swap(on_ended, awaited=1 + len(self._links))
        self.order(g.SwapGroupKv(number, block_ids, host_block_ids, to_host))

        def ended(error: Exception | None) -> None:
            if epoch == self._epoch:
                self._swap_ended(number, "" if error is None else f"{type(error).__name__}: {error}")

        return ended

    def _swap_ended(self, number: int, error: str) -> None:
        swap = self._swaps[number]
        swap.awaited -= 1
        if error:
            swap.errors.append(error)
        if not swap.awaited:
            del self._swaps[number]
            swap.on_ended(RuntimeError(swap.errors[0]) if swap.errors else None)
