"""The KV hand-offs of a device: of its part, as its leader orders them, for as long as it is in the group."""

from __future__ import annotations

from collections.abc import Callable

from spotwise.core.messages import groups as g
from spotwise.core.messages import hand_offs as h
from spotwise.core.requests.record import KvHandoff, KvShare
from spotwise.core.worker import commands as c
from spotwise.mesh.links.ucx_transfer import TransferSettings, UcxKvTransport
from spotwise.mesh.ports.ports import TransferReport
from spotwise.mesh.service.host import ServiceHost
from spotwise.worker.engine_thread import EngineThread
from spotwise.worker.kv_transfers import KvPushes
from spotwise.worker.settings import WorkerSettings
from spotwise.worker.transfer_memory import transfer_memory

#: Bytes for a reservation may come from its sender sooner than the order from the leader, but not much.
WINDOW_WAIT_S = 2.0

KvOrder = h.ExpectKv | h.ForgetKv | h.OpenPush | h.CommitPush | h.AbortPush


class PartTransfers:
    """Listens for, and pushes, one device's part.

    Attributes:
        pushes: under way, for the iterations that write their KV.
        share: part of the group's KV, once it listens.
    """

    def __init__(
        self, host: ServiceHost, settings: WorkerSettings, engine: EngineThread, report: Callable[[g.GroupReport], None]
    ) -> None:
        """Create them; nothing is opened before `start`."""
        security = settings.link_security()
        memory, payloads = transfer_memory(engine.engine.kv, is_encrypted=security.encrypts_from(settings.peer_host))
        self._host = host
        self._report = report
        self._part = memory.part
        self._copies = host.watchdog.part(f"{host.id}: KV copies", settings.iteration_timeout_s)
        self._transport = UcxKvTransport(
            memory=memory,
            worker_id=host.id,
            incarnation=host.member.incarnation,
            on_handoff=self._arrived,
            settings=TransferSettings(
                host=settings.peer_host,
                port=settings.transfer_port,
                push_timeout_s=settings.push_timeout_s,
                window_wait_s=WINDOW_WAIT_S,
                security=security,
                crossing=settings.crossing,
            ),
            payloads=payloads,
            model_digest=engine.engine.model_digest,
            numerics_class=engine.engine.numerics.name,
            watch=self._copies,
        )
        self.pushes = KvPushes(self._transport, memory.num_layers, engine.block_size, host.spawn, self._ended)

    @property
    def share(self) -> KvShare:
        """The device's share of the group's KV."""
        return KvShare(self._host.id, self._host.member.incarnation, self._transport.address, self._part)

    async def start(self) -> None:
        """Listen; raises `MeshError` where the port is taken."""
        await self._transport.start()

    def carry_out(self, order: KvOrder) -> None:
        """Carry out an order of a hand-off."""
        match order:
            case h.ExpectKv():
                self._transport.expect(order.choice_id, order.epoch, order.block_ids)
            case h.ForgetKv():
                self._transport.forget(order.choice_id)
            case h.OpenPush():
                self.pushes.open(order)
            case h.CommitPush():
                self.pushes.commit(order)
            case h.AbortPush():
                self.pushes.abort(order)

    async def close(self) -> None:
        """Stop listening; pushes under way end."""
        await self._transport.close()
        self._host.watchdog.forget(self._copies)

    def _arrived(self, handoff: KvHandoff, report: TransferReport) -> None:
        self._report(g.PartArrived(handoff, report.kv_bytes, report.seconds, report.transport))

    def _ended(self, event: c.WorkerEvent) -> None:
        if isinstance(event, h.PushCaughtUp | h.HandoffDelivered | h.HandoffFailed):
            self._report(event)
