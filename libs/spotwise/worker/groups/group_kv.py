"""The `KvTransport` of a group's leader: every process of the group moves its own part of each hand-off.

The leader moves its part itself, and orders the devices to move theirs; their reports come over the streams of the group. A
hand-off is delivered, and one that arrives is complete, when it is so in all of them. A group that is lost moves nothing more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from spotwise.core.messages import groups as g
from spotwise.core.messages import hand_offs as h
from spotwise.core.requests.record import KvHandoff, KvShare, KvSource, KvTarget, sequence_id
from spotwise.mesh.links.whole_push import all_or_none, push_at_once, source_of, together
from spotwise.mesh.ports.ports import HandoffHandler, KvPush, KvTransferError, KvTransport, TransferReport

_log = structlog.get_logger(__name__)


class KvReports(Protocol):
    """Learns what becomes of the devices' parts."""

    def reported(self, report: g.KvReport) -> None:
        """Take a device's report."""

    def lost(self, reason: str) -> None:
        """Note that the group is not whole any more."""


class GroupOrders(Protocol):
    """What hand-offs need of the group."""

    @property
    def device_shares(self) -> tuple[KvShare, ...]:
        """The devices' shares of its KV, while it is whole."""

    def order(self, order: g.GroupOrder) -> None:
        """Send an order to every device."""

    def move_kv_by(self, kv: KvReports) -> None:
        """Tell it what becomes of the devices' parts."""


@dataclass(slots=True)
class _Arrival:
    """A reservation, and the parts that have arrived in it."""

    epoch: int
    processes: int
    parts: list[tuple[KvHandoff, TransferReport]] = field(default_factory=list)


class GroupKvTransport:
    """Moves the KV of a group.

    Args:
        open_own: makes the transport of the leader's part, given what to call when that part of a hand-off has arrived.
        own_share: the leader's share, once its transport has an address.
        on_handoff: called on the loop, once for each hand-off that is complete.
        num_layers: layers of the leader's part.
    """

    def __init__(
        self,
        open_own: Callable[[HandoffHandler], KvTransport],
        own_share: Callable[[str], KvShare],
        group: GroupOrders,
        on_handoff: HandoffHandler,
        num_layers: int,
    ) -> None:
        self._own = open_own(self._arrived)
        self._own_share = own_share
        self._group = group
        self._on_handoff = on_handoff
        self._num_layers = num_layers
        self._arrivals: dict[str, _Arrival] = {}
        self._pushes: dict[str, GroupPush] = {}
        group.move_kv_by(self)

    @property
    def address(self) -> str:
        """Where peers reach the leader's listener, `host:port`."""
        return self._own.address

    @property
    def refused_connections(self) -> int:
        """None: its devices' transports have the ports, and log what they refuse."""
        return 0

    @property
    def shares(self) -> tuple[KvShare, ...]:
        """The processes of the group, with what each keeps."""
        return self._own_share(self.address), *self._group.device_shares

    async def start(self) -> None:
        """Listen, for the leader's part."""
        await self._own.start()

    def expect(self, choice_id: str, epoch: int, block_ids: tuple[int, ...]) -> None:
        """See `KvTransport`; a device may hear of it after its first bytes, and waits for it then."""
        self._arrivals[choice_id] = _Arrival(epoch, 1 + len(self._group.device_shares))
        self._group.order(h.ExpectKv(choice_id, epoch, block_ids))
        self._own.expect(choice_id, epoch, block_ids)

    def forget(self, choice_id: str) -> None:
        """See `KvTransport`; devices carry it out before any later order that writes the blocks."""
        if self._arrivals.pop(choice_id, None) is not None:
            self._group.order(h.ForgetKv(choice_id))
        self._own.forget(choice_id)

    def open_push(self, target: KvTarget, source: KvSource) -> GroupPush:
        """See `KvTransport`."""
        own = self._own.open_push(target, source)
        key = sequence_id(source.choice_id, source.epoch)
        push = self._pushes[key] = GroupPush(
            own, source, len(self._group.device_shares), self._group.order, lambda: self._pushes.pop(key, None)
        )
        tokens = (source.num_tokens, source.written_tokens)
        order = h.OpenPush(source.choice_id, source.epoch, target, source.block_ids, *tokens, source.number)
        self._group.order(order)
        return push

    async def push(self, target: KvTarget, handoff: KvHandoff, source_block_ids: tuple[int, ...]) -> TransferReport:
        """See `KvTransport`."""
        push = self.open_push(target, source_of(handoff, source_block_ids))
        return await push_at_once(push, self._num_layers, len(source_block_ids), handoff)

    async def close(self) -> None:
        """Stop listening; pushes under way raise. Idempotent."""
        self.lost("the transport was closed")
        await self._own.close()

    def reported(self, report: g.KvReport) -> None:
        """See `KvReports`."""
        match report:
            case g.PartArrived(handoff, kv_bytes, transfer_s, transport):
                self._arrived(handoff, TransferReport(kv_bytes, transfer_s, transport))
            case _ if (push := self._pushes.get(sequence_id(report.choice_id, report.epoch))) is not None:
                push.reported(report)

    def lost(self, reason: str) -> None:
        """See `KvReports`."""
        for choice_id in tuple(self._arrivals):
            del self._arrivals[choice_id]
            self._own.forget(choice_id)
        for push in tuple(self._pushes.values()):
            push.lost(reason)

    def _arrived(self, handoff: KvHandoff, report: TransferReport) -> None:
        arrival = self._arrivals.get(handoff.choice_id)
        if arrival is None or arrival.epoch != handoff.epoch:
            return
        arrival.parts.append((handoff, report))
        if len(arrival.parts) < arrival.processes:
            return
        del self._arrivals[handoff.choice_id]
        if any(other != handoff for other, _ in arrival.parts):
            # Pushes of one attempt that follow one another; the reservation's lease ends it.
            _log.warning("handoff_parts_differ", choice_id=handoff.choice_id, epoch=handoff.epoch)
            return
        self._on_handoff(handoff, together(report for _, report in arrival.parts))


class GroupPush:
    """A `KvPush` of a group: the leader's part, and those of its `devices`. `on_over` is called when all have ended."""

    def __init__(
        self,
        own: KvPush,
        source: KvSource,
        devices: int,
        order: Callable[[g.GroupOrder], None],
        on_over: Callable[[], object],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._own = own
        self._choice_id, self._epoch, self._number = source.choice_id, source.epoch, source.number
        self._order = order
        self._on_over = on_over
        self._ended: list[asyncio.Future[TransferReport]] = [loop.create_future() for _ in range(devices)]
        self._caught_up = 0
        self._all_caught_up = asyncio.Event()

    def wrote(self, layers: int, blocks: int) -> None:
        """See `KvPush`; the devices see to it themselves."""
        self._own.wrote(layers, blocks)

    def commit(self, handoff: KvHandoff, source_block_ids: tuple[int, ...] = ()) -> None:
        """See `KvPush`."""
        self._own.commit(handoff, source_block_ids)
        self._order(h.CommitPush(handoff, source_block_ids))

    async def caught_up(self) -> None:
        """See `KvPush`."""
        await self._own.caught_up()
        if not self._is_over:
            await self._all_caught_up.wait()

    def abort(self) -> None:
        """See `KvPush`."""
        if not self._is_over:
            self._order(h.AbortPush(self._choice_id, self._epoch))
        self._own.abort()

    async def delivered(self) -> TransferReport:
        """See `KvPush`."""
        try:
            return together(await all_or_none((self._own.delivered(), *self._ended), self.abort))
        finally:
            self._all_caught_up.set()
            self._on_over()

    @property
    def _is_over(self) -> bool:
        return all(ended.done() for ended in self._ended)

    def reported(self, report: h.PushCaughtUp | h.HandoffDelivered | h.HandoffFailed) -> None:
        """Take a device's report of its part."""
        match report:
            case h.PushCaughtUp(number=number):
                self._caught_up += number == self._number  # one of an earlier push may come late
                if self._caught_up == len(self._ended):
                    self._all_caught_up.set()
            case h.HandoffDelivered():
                self._next().set_result(
                    TransferReport(report.kv_bytes, report.transfer_s, report.transport, report.visible_s)
                )
            case h.HandoffFailed():
                self._all_caught_up.set()
                self._next().set_exception(KvTransferError(report.reason))

    def lost(self, reason: str) -> None:
        """Note that the devices report nothing more."""
        for ended in self._ended:
            if not ended.done():
                ended.set_exception(KvTransferError(reason))
        self._all_caught_up.set()
        self._own.abort()

    def _next(self) -> asyncio.Future[TransferReport]:
        """The result of a device that had none yet; each gives one."""
        return next(ended for ended in self._ended if not ended.done())
