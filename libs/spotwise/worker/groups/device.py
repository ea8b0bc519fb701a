"""A device: a process that computes one position's part for the groups of a leader, which orders every step."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial

import structlog

from spotwise.core import group_messages as g
from spotwise.core.batching import Batch, BatchRow
from spotwise.core.sampling import SampledToken
from spotwise.engine.errors import ModelError
from spotwise.mesh.ports import MeshError
from spotwise.mesh.service import ServiceHost
from spotwise.worker.groups.group_part import GroupPart

_log = structlog.get_logger(__name__)

Report = Callable[[g.GroupReport], None]


class GroupDevice:
    """Carries out the orders of one leader at a time.

    Args:
        host: this member.
        part: of this process.
        kv_cache_bytes, kv_host_bytes: what it offers.
    """

    def __init__(self, host: ServiceHost, part: GroupPart, kv_cache_bytes: int, kv_host_bytes: int) -> None:
        self._host = host
        self._part = part
        self._offer = g.DeviceOffered(host.id, kv_cache_bytes, kv_host_bytes)

    async def follow(self, orders: AsyncIterator[g.GroupOrder], report: Report) -> None:
        """Carry out a stream of orders; see `spotwise.mesh.device_control.Follower`."""
        report(self._offer)
        session = _Session(self._host, self._part, report)
        try:
            async for order in orders:
                await session.carry_out(order)
        finally:
            _log.info("leader_left")
            await session.end()


class _Session:
    """The orders of one stream."""

    def __init__(self, host: ServiceHost, part: GroupPart, report: Report) -> None:
        self._host = host
        self._part = part
        self._report = report
        self._epoch = 0  #: of the group; 0: in none
        self._tables: dict[str, tuple[int, ...]] = {}

    async def carry_out(self, order: g.GroupOrder) -> None:
        """Carry out one order; those that compute are queued on the engine's thread."""
        match order:
            case g.FormGroup():
                await self._form(order)
            case g.DissolveGroup():
                _log.info("group_dissolved", epoch=self._epoch, reason=order.reason)
                await self.end()
            case _ if not self._epoch:
                return  # of a group that could not be formed
            case g.AddGroupSequence():
                await self._part.engine.add_sequence(order.record)
            case g.DropGroupSequence():
                self._tables.pop(order.sequence_id, None)
                self._part.engine.drop_sequence(order.sequence_id)
            case g.AppendGroupTokens():
                self._part.engine.append_tokens(tuple(zip(order.sequence_ids, order.token_ids, strict=True)))
            case g.RunStep():
                self._run(order)
            case g.SwapGroupKv():
                self._swap(order)

    async def end(self) -> None:
        """Be in no group."""
        self._epoch = 0
        self._tables.clear()
        await self._part.leave()
        self._host.introduce(place=None)
        self._host.beat_soon()

    async def _form(self, form: g.FormGroup) -> None:
        self._epoch = 0
        self._tables.clear()
        try:
            loaded = await self._part.load(form)
            digest = self._part.engine.engine.model_digest
            if digest != form.model_digest:
                raise MeshError(f"its weights ({digest}) are not those of {form.leader_id} ({form.model_digest})")
            await self._part.join(form)
        except (ModelError, ValueError, MeshError) as error:
            _log.error("group_refused", epoch=form.epoch, reason=str(error))
            self._report(g.GroupRefused(form.epoch, str(error)))
            return
        self._epoch = form.epoch
        self._host.introduce(place=self._part.place(form))
        self._host.beat_soon()
        engine = self._part.engine
        _log.info("group_joined", epoch=form.epoch, stage=form.stage, shard=form.shard, loaded=loaded)
        self._report(g.GroupJoined(form.epoch, loaded, engine.computes_with))

    def _run(self, step: g.RunStep) -> None:
        rows = []
        for row in step.rows:
            blocks = self._tables.get(row.sequence_id, ())
            if row.new_block_ids or row.kept_blocks != len(blocks):
                blocks = self._tables[row.sequence_id] = blocks[: row.kept_blocks] + row.new_block_ids
            rows.append(BatchRow(row.sequence_id, row.first_position, row.num_tokens, blocks))
        engine, epoch = self._part.engine, self._epoch
        engine.run_iteration(
            Batch(tuple(rows)), partial(self._ended, epoch, step.number), partial(self._failed, epoch, step.number)
        )

    def _ended(self, epoch: int, number: int, sampled: tuple[SampledToken, ...]) -> None:
        if self._part.engine.engine.samples:
            self._report(g.StepEnded(epoch, number, sampled))

    def _failed(self, epoch: int, number: int, error: Exception) -> None:
        self._part.break_up()  # the other members would wait for this one
        self._report(g.StepFailed(epoch, number, f"{type(error).__name__}: {error}"))

    def _swap(self, swap: g.SwapGroupKv) -> None:
        engine, epoch = self._part.engine, self._epoch

        def ended(error: Exception | None) -> None:
            self._report(
                g.GroupSwapEnded(epoch, swap.number, "" if error is None else f"{type(error).__name__}: {error}")
            )

        if swap.to_host:
            engine.swap_out(swap.block_ids, swap.host_block_ids, ended)
        else:
            engine.swap_in(swap.host_block_ids, swap.block_ids, ended)
