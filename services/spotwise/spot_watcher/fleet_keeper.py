"""Feeds the fleet keeper's role, and performs its commands with a provider."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import structlog

from spotwise.cloud.instances import (
    AcquiredInstance,
    AcquireRequest,
    MarkedProvider,
    NoCapacity,
    PricedProvider,
    ProviderError,
    ProviderUnavailable,
    ReclaimingProvider,
)
from spotwise.cloud.local_instances import ZONE_TAG
from spotwise.cloud.local_meshes import mesh_start
from spotwise.core.fleet.keeper import events as k
from spotwise.core.fleet.keeper.role import FleetKeeperRole
from spotwise.core.messages.fleet import FleetOrder, Purchase
from spotwise.core.messages.members import Member
from spotwise.core.messages.mesh import InterruptionReported
from spotwise.core.spot.commands import PublishNotice, PublishReport
from spotwise.files.fleet_file import PROVIDERS, FleetFile, FleetFileError, read_fleet
from spotwise.files.fleet_prices import FleetPrices
from spotwise.mesh.ports.ports import BusMessage, MeshError
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.role_loop import RoleLoop
from spotwise.spot_watcher.announcing import Announcer
from spotwise.spot_watcher.fleet_provider import OpenProvider, open_provider
from spotwise.spot_watcher.metrics import WatcherMetrics
from spotwise.spot_watcher.settings import SpotWatcherSettings
from spotwise.wire import subjects

_log = structlog.get_logger(__name__)

_TICK_S = 0.25
_RELOAD_S = 1.0
_MARKET_S = 60.0
_RETRY_S = 30.0


class FleetKeeper:
    """The keeper of a mesh's fleet."""

    def __init__(
        self,
        host: ServiceHost,
        settings: SpotWatcherSettings,
        metrics: WatcherMetrics,
        opened: OpenProvider,
        fleet: FleetFile,
        started_unix_s: float,
    ) -> None:
        self._host = host
        self._settings = settings
        self._metrics = metrics
        self._opened = opened
        self._provider = opened.provider
        self._fleet = fleet
        self._listed_prices = fleet.price_list()
        self._prices = FleetPrices(started_unix_s)
        self._read_at = self._times_of(fleet)
        announcer = Announcer(host, metrics)
        role, journal = host.make_further_role(
            "-fleet",
            FleetKeeperRole,
            host.id,
            host.member.incarnation,
            fleet.provider,
            settings.fleet_list_s or PROVIDERS[fleet.provider].list_s,
            fleet.refused_s,
        )
        self._loop = RoleLoop(
            role,
            host.clock,
            {
                k.ListInstances: lambda _: host.spawn(self._list(), "list_instances"),
                k.Buy: lambda command: host.spawn(self._buy(command.purchase), "buy"),
                k.GiveBack: lambda command: host.spawn(self._give_back(command.instance_ids), "give_back"),
                k.PublishFleet: self._publish,
                k.KeepFleet: lambda command: host.spawn(self._keep(command), "keep_fleet"),
                PublishNotice: announcer.publish_notice,
                PublishReport: announcer.publish_report,
            },
            journal,
            host.count_failure,
        )

    async def start(self) -> None:
        """Take over the fleet's record, and begin; raises `MeshError` where broker or store do not answer."""
        # Before the first report: a planner that has read it may order.
        await self._host.listen(subjects.HEARTBEATS, self._on_heartbeat)
        await self._host.listen(subjects.INTERRUPTIONS, self._on_interruption, expects=(InterruptionReported,))
        await self._host.listen(subjects.FLEET_ORDERS, self._on_order, expects=(FleetOrder,))
        try:
            kept = await self._host.store.get_fleet(self._settings.fleet_mesh)
        except ValueError as error:
            _log.error("fleet_record_unreadable", error=str(error))
            kept = None
        self._loop.feed(k.FleetRestored(kept))
        self._feed_prices()
        self._host.keep_time(_TICK_S, self._loop.feed)
        self._host.every(_RELOAD_S, self._reload, "reload_fleet_file")
        if isinstance(self._provider, PricedProvider):
            self._host.spawn(self._follow_market(self._provider), "follow_market")
        if isinstance(self._provider, MarkedProvider):
            self._host.spawn(self._renew(self._provider), "renew_marks")
        _log.info("keeping_fleet", provider=self._fleet.provider, mesh=self._settings.fleet_mesh)

    # --- events -------------------------------------------------------------------------------------------------------

    async def _on_heartbeat(self, member: Member, raw: BusMessage) -> None:
        self._loop.feed(member)

    async def _on_interruption(self, report: InterruptionReported, raw: BusMessage) -> None:
        self._loop.feed(report)

    async def _on_order(self, order: FleetOrder, raw: BusMessage) -> None:
        self._loop.feed(order)

    async def _reload(self) -> None:
        """Read the fleet file again if it, or its file of prices, has changed."""
        path = self._settings.fleet_file
        read_at = self._times_of(self._fleet)
        if path is None or read_at == self._read_at:
            return
        self._read_at = read_at
        try:
            fleet = await asyncio.to_thread(read_fleet, path)
            listed = await asyncio.to_thread(fleet.price_list)
            if fleet.provider != self._fleet.provider:
                raise FleetFileError(
                    f"{path}: provider: restart the watcher for another one than {self._fleet.provider}"
                )
        except FleetFileError as error:
            _log.error("fleet_file_refused", error=str(error), kept="the one before")
            return
        self._fleet, self._listed_prices = fleet, listed
        self._read_at = self._times_of(fleet)
        self._opened.use(self._settings, fleet)
        self._feed_prices()
        _log.info("fleet_file_read", types=",".join(each.name for each in fleet.types))

    async def _follow_market(self, provider: PricedProvider) -> None:
        while True:
            names = [each.name for each in self._fleet.types if each.spot is not None]
            try:
                if self._prices.learn(await provider.spot_prices(names)):
                    self._feed_prices()
            except ProviderError as error:
                _log.warning("prices_unreadable", error=str(error))
            await asyncio.sleep(_MARKET_S)

    async def _renew(self, provider: MarkedProvider) -> None:
        """Renew the instances' marks for as long as this process keeps the fleet."""
        is_checked = False
        while True:
            pause_s = provider.renewal_s
            try:
                if not is_checked and (faults := await provider.switch_faults()):
                    _log.warning("no_dead_mans_switch", faults="; ".join(faults), effect="instances outlive their mesh")
                is_checked = True
                await provider.renew()
            except (ProviderError, OSError) as error:
                _log.warning("marks_not_renewed", error=str(error))
                pause_s = min(pause_s, _RETRY_S)
            await asyncio.sleep(pause_s)

    def _feed_prices(self) -> None:
        now = self._host.clock.now()
        self._loop.feed(k.PricesRead(self._prices.offers(self._fleet, self._listed_prices, now)))

    # --- commands -----------------------------------------------------------------------------------------------------

    async def _list(self) -> None:
        try:
            instances = tuple(_listed(each) for each in await self._provider.instances())
            notices = await self._provider.notices() if isinstance(self._provider, ReclaimingProvider) else []
        except (ProviderError, OSError) as error:
            _log.warning("instances_not_listed", error=str(error))
            self._loop.feed(k.InstancesListed(problem=str(error)))
            return
        self._loop.feed(k.InstancesListed(instances))
        if notices:
            found = (
                k.ProviderNotice(each.instance_id, each.deadline_unix_s, each.event_id, each.reason) for each in notices
            )
            self._loop.feed(k.NoticesRead(tuple(found)))

    async def _buy(self, purchase: Purchase) -> None:
        tags = {ZONE_TAG: purchase.zone} if purchase.zone else {}
        _log.info(
            "buying",
            token=purchase.token,
            types=",".join(purchase.type_names),
            market=purchase.market.value,
            count=purchase.count,
        )
        try:
            # However long it takes: an order that was given up here may be filled all the same.
            request = AcquireRequest(purchase.token, purchase.type_names, purchase.market, purchase.count, tags)
            bought = await self._provider.acquire(request)
        except (ProviderError, OSError, ValueError) as error:
            kind = _kind(error)
            self._metrics.purchases.labels(kind.value).inc()
            _log.warning("nothing_bought", token=purchase.token, kind=kind.value, error=str(error))
            self._loop.feed(k.PurchaseAnswered(purchase.token, kind=kind, problem=str(error)))
            return
        outcome = "bought" if len(bought) >= purchase.count else "partly"
        self._metrics.purchases.labels(outcome).inc()
        _log.info("bought", token=purchase.token, instances=",".join(each.id for each in bought))
        self._loop.feed(k.PurchaseAnswered(purchase.token, tuple(_listed(each) for each in bought)))

    async def _give_back(self, instance_ids: tuple[str, ...]) -> None:
        _log.info("giving_back", instances=",".join(instance_ids))
        try:
            await self._provider.release(instance_ids)
        except (ProviderError, OSError) as error:
            _log.warning("not_given_back", instances=",".join(instance_ids), error=str(error))
            self._loop.feed(k.ReleaseAnswered(instance_ids, str(error)))
            return
        self._loop.feed(k.ReleaseAnswered(instance_ids))

    async def _keep(self, command: k.KeepFleet) -> None:
        try:
            is_ours = await self._host.store.put_fleet(self._settings.fleet_mesh, command.kept)
        except MeshError as error:
            _log.warning("fleet_not_kept", error=str(error))
            return
        if not is_ours:
            _log.error(
                "fleet_has_another_keeper",
                mesh=self._settings.fleet_mesh,
                remedy="give one watcher of a mesh a fleet file; this one keeps no fleet any more",
            )
        self._loop.feed(k.FleetKept(is_ours))

    def _publish(self, command: k.PublishFleet) -> None:
        report = command.report
        self._host.post(subjects.FLEET, report)
        self._metrics.spent.set(report.spent)
        self._metrics.instances.clear()
        for offer in report.offers:
            self._metrics.failed_starts.labels(offer.type_name).set(offer.failed_starts)
        for each in report.instances:
            self._metrics.instances.labels(each.type_name, each.market.value, each.state.value).inc()

    def _times_of(self, fleet: FleetFile) -> tuple[float | None, ...]:
        """When the files were changed last; `None`: one is missing."""
        return tuple(_changed_at(path) for path in (self._settings.fleet_file, fleet.prices) if path is not None)


@contextlib.asynccontextmanager
async def kept_fleet(
    host: ServiceHost, settings: SpotWatcherSettings, metrics: WatcherMetrics
) -> AsyncIterator[FleetKeeper | None]:
    """Keep the fleet of the settings' file inside the block; `None` where there is no file. The instances outlive it.

    Raises:
        MeshError: the file is wrong, or the provider cannot be opened.
    """
    if settings.fleet_file is None:
        yield None
        return
    try:
        fleet = await asyncio.to_thread(read_fleet, settings.fleet_file)
        started_unix_s = await asyncio.to_thread(
            mesh_start, settings.state_folder, settings.fleet_mesh, host.clock.now()
        )
    except (ValueError, OSError) as error:
        raise MeshError(f"SPOTWISE_FLEET_FILE: {error}") from error
    async with open_provider(settings, fleet) as opened:
        keeper = FleetKeeper(host, settings, metrics, opened, fleet, started_unix_s)
        await keeper.start()
        yield keeper


def _listed(instance: AcquiredInstance) -> k.ListedInstance:
    return k.ListedInstance(
        instance.id,
        instance.instance_type,
        instance.market,
        instance.state,
        instance.launched_unix_s,
        instance.token,
        instance.zone or "",
        instance.gone_unix_s,
    )


def _kind(error: Exception) -> k.RefusalKind:
    if isinstance(error, NoCapacity):
        return k.RefusalKind.NO_CAPACITY
    # An OSError leaves open whether something was bought.
    is_unknown = isinstance(error, ProviderUnavailable | OSError)
    return k.RefusalKind.UNAVAILABLE if is_unknown else k.RefusalKind.REFUSED


def _changed_at(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
