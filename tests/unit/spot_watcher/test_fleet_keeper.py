"""The keeper of a fleet over the in-memory mesh: local processes as instances, and a cloud with prices and refusals."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError

from spotwise.cloud.ec2_client import Ec2Client, Ec2Connection, Ec2Options
from spotwise.cloud.ec2_instances import Ec2Instances
from spotwise.cloud.instances import AcquireRequest
from spotwise.cloud.local_instances import LocalInstances
from spotwise.cloud.local_meshes import release_mesh
from spotwise.core.messages.fleet import (
    FleetOrder,
    InstanceOffer,
    InstanceRelease,
    InstanceState,
    Market,
    Purchase,
)
from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.core.messages.mesh import InterruptionKind
from spotwise.files.fleet_file import read_fleet
from spotwise.mesh.embedded.servers import LOOPBACK
from spotwise.mesh.grpc.control import ControlServer
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.replay.journal_replay import find_journals, replay
from spotwise.mesh.service.host import ServiceHost
from spotwise.spot_watcher.fleet_keeper import FleetKeeper, kept_fleet
from spotwise.spot_watcher.fleet_provider import OpenProvider, default_command, local_options
from spotwise.spot_watcher.metrics import WatcherMetrics
from spotwise.spot_watcher.settings import SpotWatcherSettings
from spotwise.wire import subjects
from spotwise.wire.codec import encode
from tests.contracts.waiting import until
from tests.fakes.memory import MemoryBroker, MemoryBus, MemoryStore
from tests.fakes.notices import Published
from tests.unit.cloud.ec2_stand_in import Ec2StandIn

LOCAL = """
provider = "local"
grace_s = 5
[local]
limit = 3
[[types]]
name = "small"
command = ["sleep", "600"]
spot = {price_per_h = 3.6, most = 3}
on_demand = {price_per_h = 36, most = 1}
"""


class Planner(Published):
    """Orders, and what the keeper publishes."""

    def __init__(self, bus: MemoryBus) -> None:
        super().__init__()
        self._bus = bus
        self._number = 0

    async def order(self, *things: Purchase | InstanceRelease) -> None:
        self._number += 1
        purchases = tuple(each for each in things if isinstance(each, Purchase))
        releases = tuple(each for each in things if isinstance(each, InstanceRelease))
        order = FleetOrder("planner-0", 1, self._number, purchases, releases)
        await self._bus.publish(subjects.FLEET_ORDERS, encode(order))

    async def beat(self, device_id: str, state: MemberState = MemberState.READY) -> None:
        member = Member(device_id, MemberKind.DEVICE, 1, state, "h", 1, "h:1")
        await self._bus.publish(subjects.heartbeat(member.kind, member.id), encode(member))

    def states(self) -> list[InstanceState]:
        return [each.state for each in self.reports[-1].instances] if self.reports else []

    def offers(self) -> dict[Market, InstanceOffer]:
        return {each.market: each for each in self.reports[-1].offers} if self.reports else {}


def write(folder: Path, text: str = LOCAL) -> Path:
    path = folder / "fleet.toml"
    path.write_text(text)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "machines"


@pytest.fixture(autouse=True)
async def ended(folder: Path) -> AsyncIterator[None]:
    """Whatever was started is ended, however the test went."""
    yield
    await release_mesh(folder, "default", 0.5)


def settings_of(path: Path | None, folder: Path, **given: Any) -> SpotWatcherSettings:
    quick = {"service_id": "watcher-0", "fleet_list_s": 0.05}
    return SpotWatcherSettings(**{**quick, "fleet_file": path, "fleet_folder": folder, **given})


@asynccontextmanager
async def joined(
    settings: SpotWatcherSettings, store: MemoryStore | None = None, incarnation: int = 1
) -> AsyncIterator[tuple[ServiceHost, Planner]]:
    broker = MemoryBroker()
    member = Member("watcher-0", MemberKind.SPOT_WATCHER, incarnation, MemberState.STARTING, "h", 1, f"{LOOPBACK}:1")
    host = ServiceHost(settings, MemoryBus(broker), store or MemoryStore(), ControlServer(LOOPBACK, 0), member)
    async with host.joined():
        planner_bus = MemoryBus(broker)
        planner = Planner(planner_bus)
        await planner.listen(planner_bus)
        yield host, planner


@asynccontextmanager
async def keeping(
    settings: SpotWatcherSettings, store: MemoryStore | None = None, incarnation: int = 1
) -> AsyncIterator[tuple[Planner, WatcherMetrics]]:
    metrics = WatcherMetrics()
    async with joined(settings, store, incarnation) as (host, planner), kept_fleet(host, settings, metrics) as keeper:
        assert keeper is not None
        yield planner, metrics


async def test_instances_are_bought_run_leave_and_are_given_back(tmp_path: Path, folder: Path) -> None:
    """From the order to the process' end; the journal of it replays."""
    path = write(tmp_path)
    async with keeping(settings_of(path, folder, journal=tmp_path / "journal")) as (planner, metrics):
        await until(lambda: planner.offers())
        assert planner.reports[-1].provider == "local" and planner.reports[-1].problem == ""
        assert {market: (each.price_per_h, each.most) for market, each in planner.offers().items()} == {
            Market.SPOT: (3.6, 3),
            Market.ON_DEMAND: (36.0, 1),
        }
        await planner.order(Purchase("t1", ("small",), Market.SPOT, 2))
        await until(lambda: planner.states() == [InstanceState.STARTING] * 2)
        first, second = (each.id for each in planner.reports[-1].instances)
        await planner.beat(first)
        await until(lambda: InstanceState.RUNNING in planner.states())
        await planner.order(InstanceRelease(first, planner.reports[-1].at_s + 600.0, "too many"))
        await until(lambda: planner.drains and planner.interruptions)
        assert planner.drains[0].worker_id == first
        assert planner.interruptions[0].kind is InterruptionKind.NOTICE
        await planner.beat(first, MemberState.LEFT)
        await until(lambda: InstanceState.GONE in planner.states())
        there = {each.id for each in planner.reports[-1].instances if each.state is not InstanceState.GONE}
        assert there == {second}
        assert planner.reports[-1].spent > 0
        labels = {"type": "small", "market": "spot", "state": "starting"}
        assert metrics.registry.get_sample_value("spotwise_fleet_instances", labels) == 1
        assert metrics.registry.get_sample_value("spotwise_fleet_purchases_total", {"outcome": "bought"}) == 1
        await planner.order(Purchase("t2", ("small",), Market.SPOT, 5))
        await until(
            lambda: any(each.purchase.token == "t2" and each.got == 2 for each in planner.reports[-1].purchases)
        )
    (journal,) = find_journals(tmp_path / "journal")
    assert journal.role == "FleetKeeperRole"
    done = replay(journal)
    assert done.difference is None and done.commands > 0


async def test_an_order_after_the_first_report_is_heard(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planner that has read a report may order: the keeper listens before it says anything."""
    subscribe = MemoryBus.subscribe

    async def slowly(self: MemoryBus, subject: str, *given: Any, **named: Any) -> Any:
        if subject == subjects.FLEET_ORDERS:
            await asyncio.sleep(0.5)
        return await subscribe(self, subject, *given, **named)

    monkeypatch.setattr(MemoryBus, "subscribe", slowly)
    metrics = WatcherMetrics()
    settings = settings_of(write(tmp_path), folder)
    async with joined(settings) as (host, planner):

        async def order() -> None:
            await until(lambda: planner.reports)
            await planner.order(Purchase("t1", ("small",), Market.SPOT, 1))

        ordering = asyncio.create_task(order())
        async with kept_fleet(host, settings, metrics):
            await ordering
            await until(lambda: planner.states() == [InstanceState.STARTING])


async def test_instances_and_the_bill_outlive_the_watcher(tmp_path: Path, folder: Path) -> None:
    """The next one knows them; one that is replaced does nothing any more."""
    settings, store = settings_of(write(tmp_path), folder), MemoryStore()
    async with keeping(settings, store, incarnation=5) as (planner, _):
        await planner.order(Purchase("t1", ("small",), Market.ON_DEMAND, 1))
        await until(lambda: planner.states() == [InstanceState.STARTING])
        launched_s = planner.reports[-1].instances[0].launched_s
    async with keeping(settings, store, incarnation=6) as (planner, _):
        await until(lambda: planner.states() == [InstanceState.STARTING])
        report = planner.reports[-1]
        assert report.spent == pytest.approx((report.at_s - launched_s) * 0.01)
        assert [each.purchase.token for each in report.purchases] == ["t1"]
        (instance,) = report.instances
        leaves = InstanceRelease(instance.id, report.at_s + 600.0, "too many")
        await planner.order(Purchase("t1", ("small",), Market.ON_DEMAND, 1), leaves)
        await planner.beat(instance.id)
        await until(lambda: planner.drains)
        assert planner.drains[0].worker_id == instance.id
        await planner.beat(instance.id, MemberState.LEFT)
        await until(lambda: planner.states() == [InstanceState.GONE])
    async with keeping(settings, store, incarnation=4) as (planner, _):
        await planner.order(Purchase("t2", ("small",), Market.SPOT, 1))
        kept = await store.get_fleet("default")
        assert kept is not None and kept.incarnation == 6


async def test_a_changed_file_counts_and_a_broken_one_does_not(tmp_path: Path, folder: Path) -> None:
    """While the watcher runs: prices, most, and the file of prices."""
    path = write(tmp_path)
    async with keeping(settings_of(path, folder)) as (planner, _):
        await until(lambda: planner.offers())
        path.write_text(LOCAL.replace("3.6", "no price"))
        os.utime(path, (1.0, 1.0))
        path_before = planner.offers()[Market.SPOT]
        write(tmp_path, LOCAL.replace("3.6", "7.2").replace("most = 3", "most = 2"))
        os.utime(path, (2.0, 2.0))
        await until(lambda: planner.offers()[Market.SPOT].price_per_h == 7.2)
        assert (path_before.most, planner.offers()[Market.SPOT].most) == (3, 2)
        prices = tmp_path / "prices.csv"
        prices.write_text("time_s,instance_type,market,price_per_h\n0,small,spot,0.9\n")
        write(tmp_path, 'prices = "prices.csv"\n' + LOCAL)
        os.utime(path, (3.0, 3.0))
        await until(lambda: planner.offers()[Market.SPOT].price_per_h == 0.9)
        prices.write_text("time_s,instance_type,market,price_per_h\n0,small,spot,0.9\n0.001,small,spot,1.8\n")
        os.utime(prices, (4.0, 4.0))
        await until(lambda: planner.offers()[Market.SPOT].price_per_h == 1.8)
        assert planner.offers()[Market.ON_DEMAND].price_per_h == 36.0


async def test_a_trace_takes_instances_with_a_notice(tmp_path: Path, folder: Path) -> None:
    """Devices are notified as by a cloud, of the deadline; then the process is killed."""
    trace = tmp_path / "trace.csv"
    trace.write_text("0,add,node-1\n4000,remove,node-1\n")
    settings = settings_of(write(tmp_path), folder, fleet_trace=trace, fleet_compress=2.0, fleet_grace_s=0.5)
    async with keeping(settings) as (planner, _):
        await planner.order(Purchase("t1", ("small",), Market.SPOT, 2))
        await until(lambda: planner.states() == [InstanceState.STARTING])
        assert planner.reports[-1].purchases[0].got == 1
        instance_id = planner.reports[-1].instances[0].id
        await planner.beat(instance_id)
        await until(lambda: planner.drains)
        (instance,) = planner.reports[-1].instances
        assert planner.drains[0].worker_id == instance_id
        await until(lambda: planner.states() == [InstanceState.GONE])
        (instance,) = planner.reports[-1].instances
        assert instance.leaves_at_s == planner.drains[0].deadline_s
        assert instance.why_leaving == "trace: node-1 leaves"
        await until(lambda: [(each.lives, each.ends) for each in planner.reports[-1].lives] == [(1, 1)])


class Account:
    """EC2 without moto: instances that run, as many as `room`."""

    def __init__(self) -> None:
        self.instances: dict[str, dict[str, Any]] = {}

    def run_instances(self, **parameters: Any) -> dict[str, Any]:
        raise NotImplementedError

    def create_fleet(self, **parameters: Any) -> dict[str, Any]:
        config = parameters["LaunchTemplateConfigs"][0]["Overrides"][0]
        target = parameters["TargetCapacitySpecification"]
        made = []
        for _ in range(target["TotalTargetCapacity"]):
            instance_id = f"i-{len(self.instances)}"
            made.append(instance_id)
            self.instances[instance_id] = {
                "InstanceId": instance_id,
                "InstanceType": config["InstanceType"],
                "State": {"Name": "running"},
                "LaunchTime": datetime.now(UTC),
                "InstanceLifecycle": target["DefaultTargetCapacityType"],
                "Placement": {"AvailabilityZone": "zone-b"},
                "Tags": parameters["TagSpecifications"][0]["Tags"],
            }
        return {"Instances": [{"InstanceIds": made, "InstanceType": config["InstanceType"]}]}

    def describe_instances(self, **_: Any) -> dict[str, Any]:
        return {"Reservations": [{"Instances": list(self.instances.values())}]}


AWS = """
provider = "aws"
[aws]
launch_template = "worker"
[[types]]
name = "g4dn.xlarge"
spot = {price_per_h = 9.9, most = 5}
on_demand = {price_per_h = 36, most = 1}
"""


async def test_a_clouds_prices_and_refusals_are_reported_and_the_bill_follows(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cheapest zone's price is the offer's, and an instance costs its zone's; capacity that ends is a refusal."""
    monkeypatch.setattr("spotwise.spot_watcher.fleet_keeper._MARKET_S", 0.05)
    ec2 = Ec2StandIn(cast(Ec2Client, Account()), 2, ("g4dn.xlarge",))
    ec2.prices = {("g4dn.xlarge", "zone-a"): (1000.0, 7.2), ("g4dn.xlarge", "zone-b"): (1000.0, 3.6)}
    settings = settings_of(write(tmp_path, AWS), folder)
    provider = Ec2Instances("default", Ec2Options("worker"), Ec2Connection(ec2))
    async with joined(settings) as (host, planner):
        assert settings.fleet_file is not None
        fleet = read_fleet(settings.fleet_file)
        keeper = FleetKeeper(host, settings, WatcherMetrics(), OpenProvider(provider), fleet, host.clock.now())
        await keeper.start()
        await until(lambda: planner.offers() and planner.offers()[Market.SPOT].price_per_h == 3.6)
        assert planner.offers()[Market.ON_DEMAND].price_per_h == 36.0
        await planner.order(Purchase("t1", ("g4dn.xlarge",), Market.SPOT, 2))
        await until(lambda: planner.reports[-1].instances and planner.reports[-1].instances[0].zone == "zone-b")
        assert [each.price_per_h for each in planner.reports[-1].instances] == [3.6, 3.6]

        jump_s = host.clock.now()
        ec2.prices["g4dn.xlarge", "zone-b"] = (jump_s, 36.0)
        await until(lambda: planner.offers()[Market.SPOT].price_per_h == 7.2)  # of zone-a now
        report = planner.reports[-1]
        expected = sum((jump_s - each.launched_s) * 0.001 + (report.at_s - jump_s) * 0.01 for each in report.instances)
        assert report.spent == pytest.approx(expected, abs=1e-6)

        await planner.order(Purchase("t2", ("g4dn.xlarge",), Market.SPOT, 1))
        await until(lambda: planner.offers()[Market.SPOT].refused_until_s)
        assert "no spot capacity for g4dn.xlarge" in planner.offers()[Market.SPOT].refusal
        status = next(each for each in planner.reports[-1].purchases if each.purchase.token == "t2")
        assert status.is_answered and status.got == 0 and "InsufficientInstanceCapacity" in status.problem


async def test_what_is_wrong_with_the_fleet_ends_the_service_with_its_reason(tmp_path: Path, folder: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for settings, says in (
        (settings_of(tmp_path / "none.toml", folder), "cannot be read"),
        (settings_of(write(tmp_path), folder, fleet_trace=tmp_path / "none.csv"), "SPOTWISE_FLEET_TRACE"),
        (settings_of(write(other, AWS), folder, fleet_trace=tmp_path), "provider aws"),
    ):
        async with joined(settings) as (host, _):
            with pytest.raises(MeshError, match=says):
                async with kept_fleet(host, settings, WatcherMetrics()):
                    pass
    settings = settings_of(None, folder)
    async with joined(settings) as (host, _), kept_fleet(host, settings, WatcherMetrics()) as keeper:
        assert keeper is None
    with pytest.raises(ValidationError, match="a list of words"):
        settings_of(None, folder, fleet_command='"ls"')


@pytest.fixture
def bare() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPOTWISE_METRICS_PORT", "9")
        patch.setenv("SPOTWISE_SERVICE_ID", "watcher-0")
        yield


async def test_devices_have_ids_of_their_own_and_nothing_of_the_watchers(
    tmp_path: Path, folder: Path, bare: None
) -> None:
    """One device has the instance's id; several are numbered, and end with their instance."""
    text = LOCAL.replace('command = ["sleep", "600"]', "devices = 2")
    settings = settings_of(write(tmp_path, text), folder)
    program = (
        "import os, time; print(os.environ['SPOTWISE_SERVICE_ID'], 'SPOTWISE_METRICS_PORT' in os.environ, flush=True)"
    )
    assert default_command()[:2] == ("env", "SPOTWISE_SERVICE_ID={instance_id}")
    assert settings.fleet_file is not None
    options = local_options(settings, read_fleet(settings.fleet_file))
    words = [word.replace("-P -m spotwise.worker.groups", "-u -c PROGRAM") for word in options.commands["small"]]
    script = tmp_path / "device.py"
    script.write_text(f"{program}; time.sleep(600)")
    command = tuple(word.replace(f"{sys.executable} -u -c PROGRAM", f"{sys.executable} {script}") for word in words)
    provider = LocalInstances(
        "default", type(options)(folder, {"small": command}, limit=1, grace_s=20.0, unset=options.unset)
    )
    [instance] = await provider.acquire(AcquireRequest("t1", ("small",), Market.SPOT, 1))
    log = folder / f"{instance.id}.log"
    await until(lambda: log.read_text().count("\n") == 2)
    assert sorted(log.read_text().splitlines()) == [f"{instance.id}-0 False", f"{instance.id}-1 False"]
    await provider.release([instance.id])
    assert (await provider.instances())[0].state is InstanceState.GONE
