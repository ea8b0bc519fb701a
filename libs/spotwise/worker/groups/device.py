"""The orders that a device carries out for one leader: it computes a part of each of its groups, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Protocol

import structlog

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.core.messages import groups as g
from spotwise.core.messages.members import DevicePlace
from spotwise.core.requests.sampling import SampledToken
from spotwise.mesh.grpc.device_control import Report
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.process.background_work import uninterrupted
from spotwise.mesh.service.host import ServiceHost
from spotwise.worker.groups.group_numerics import require_class
from spotwise.worker.groups.group_part import GroupPart
from spotwise.worker.groups.part_transfers import PartTransfers
from spotwise.worker.kv_transfers import KvPushes
from spotwise.worker.settings import WorkerSettings

_log = structlog.get_logger(__name__)

#: Interval at which it is checked that all members of a group are there.
_CHECK_S = 0.05


class PartHolder(Protocol):
    """What orders need of the device."""

    @property
    def host(self) -> ServiceHost:
        """The device as a member of the mesh."""

    @property
    def settings(self) -> WorkerSettings:
        """Of the process."""

    def entered(self, leader_id: str, place: DevicePlace) -> None:
        """Note the device's place in a leader's group."""

    def left(self, leader_id: str) -> None:
        """Note that the device is in no group of this leader; idempotent."""

    async def free_part(self, leader_id: str) -> None:
        """Give back what the leader's part takes."""


class DeviceSession:
    """Carries out the orders of one stream.

    Args:
        device: the device of this process.
        leader_id: id of the stream's leader.
        part: the part that the device computes in the leader's groups.
        report: sends a report to the leader.
    """

    def __init__(self, device: PartHolder, leader_id: str, part: GroupPart, report: Report) -> None:
        self._device = device
        self._leader_id = leader_id
        self._part = part
        self._report = report
        self._transfers: PartTransfers | None = None
        self._epoch = 0  #: of the group; 0: in none
        self._tables: dict[str, tuple[int, ...]] = {}
        self._one_at_a_time = asyncio.Lock()
        self._joining: asyncio.Task[None] | None = None

    async def follow(self, orders: AsyncIterator[g.GroupOrder]) -> None:
        """Carry out orders until they end; then the device is in no group of theirs."""
        watching = asyncio.create_task(self._leave_broken_groups(), name="watch-group")
        try:
            async for order in orders:
                async with self._one_at_a_time:
                    await self._carry_out(order)
                if isinstance(order, g.DissolveGroup) and order.is_last:
                    return  # which ends the stream: the leader waits for that
        finally:
            _log.info("leader_left", leader=self._leader_id)
            await uninterrupted(self._end())
            watching.cancel()

    async def _leave_broken_groups(self) -> None:
        """Leave a group of which a member is gone, the leader or another, without waiting for the leader's word."""
        while True:
            await asyncio.sleep(_CHECK_S)
            async with self._one_at_a_time:
                if self._epoch and not self._part.is_whole:
                    broken = g.GroupBroken(self._epoch, self._part.why_broken)
                    _log.warning("group_broken", epoch=self._epoch, reason=broken.reason)
                    await self._leave()
                    self._report(broken)

    async def _carry_out(self, order: g.GroupOrder) -> None:
        """Carry out one order; those that compute are queued on the engine's thread."""
        match order:
            case g.FormGroup():
                await self._form(order)
            case g.DissolveGroup():
                _log.info("group_dissolved", epoch=self._epoch, reason=order.reason)
                await self._leave()
                if order.is_last:
                    await self._device.free_part(self._leader_id)
                if order.for_good:
                    self._device.host.stop()
            case _ if not self._epoch or self._transfers is None:
                return  # of a group that could not be formed
            case g.AddGroupSequence():
                await self._part.engine.add_sequence(order.record)
            case g.DropGroupSequence():
                self._tables.pop(order.sequence_id, None)
                self._part.engine.drop_sequence(order.sequence_id)
            case g.AppendGroupTokens():
                self._part.engine.append_tokens(tuple(zip(order.sequence_ids, order.token_ids, strict=True)))
            case g.RunStep():
                self._run(order, self._transfers.pushes)
            case g.SwapGroupKv():
                self._swap(order)
            case g.ClearGroupKv():
                self._part.engine.clear_not_finite(order.block_ids)
            case _:
                self._transfers.carry_out(order)

    async def _end(self) -> None:
        """Be in no group, after what is under way."""
        async with self._one_at_a_time:
            await self._leave()

    async def _leave(self) -> None:
        self._epoch = 0
        if self._joining is not None:
            self._joining.cancel()
            self._joining = None
        self._tables.clear()
        await self._part.leave()
        transfers, self._transfers = self._transfers, None
        if transfers is not None:
            await transfers.close()
        self._device.left(self._leader_id)

    async def _form(self, form: g.FormGroup) -> None:
        await self._leave()
        try:
            require_class(form, self._device.settings)
            loaded = await self._part.load(form)
            digest = self._part.engine.engine.model_digest
            if digest != form.model_digest:
                raise MeshError(f"its weights ({digest}) are not those of {form.leader_id} ({form.model_digest})")
            transfers = PartTransfers(self._device.host, self._device.settings, self._part.engine, self._report)
            await transfers.start()
            self._transfers = transfers
            await self._part.join(form)
        except MeshError as error:
            _log.error("group_refused", epoch=form.epoch, reason=str(error))
            self._report(g.GroupRefused(form.epoch, str(error)))
            return
        self._epoch = form.epoch
        self._device.entered(self._leader_id, self._part.place(form))
        joined = g.GroupJoined(form.epoch, loaded, self._part.engine.computes_with, transfers.share)
        self._joining = asyncio.create_task(self._complete(form, joined), name="join-group")

    async def _complete(self, form: g.FormGroup, joined: g.GroupJoined) -> None:
        """Say that the group is joined once its members know of each other: from then on none is lost in silence."""
        if await self._part.completed():
            fetched, read = joined.loaded.fetched_bytes, joined.loaded.read_bytes
            _log.info(
                "group_joined",
                epoch=form.epoch,
                stage=form.stage,
                shard=form.shard,
                fetched_bytes=fetched,
                read_bytes=read,
            )
            self._report(joined)

    def _run(self, step: g.RunStep, pushes: KvPushes) -> None:
        rows = []
        for row in step.rows:
            blocks = self._tables.get(row.sequence_id, ())
            if row.new_block_ids or row.kept_blocks != len(blocks):
                blocks = self._tables[row.sequence_id] = blocks[: row.kept_blocks] + row.new_block_ids
            rows.append(BatchRow(row.sequence_id, row.first_position, row.num_tokens, blocks))
        engine, epoch, batch = self._part.engine, self._epoch, Batch(tuple(rows))
        watch = pushes.watch(batch)

        def ended(sampled: tuple[SampledToken, ...]) -> None:
            if watch is not None:
                pushes.watched(watch)
            self._ended(epoch, step.number, sampled)

        failed = partial(self._failed, epoch, step.number)
        engine.run_iteration(batch, ended, failed, None if watch is None else watch.layers_written)

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
