"""The spot watcher as a process that keeps a fleet of local instances, over a real broker and a real store."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from spotwise.cloud.local_meshes import release_mesh
from spotwise.core.messages.fleet import FleetOrder, FleetReported, InstanceRelease, InstanceState, Market, Purchase
from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.core.messages.worker import Drain
from spotwise.mesh.ports.ports import BusMessage
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode
from tests.contracts.waiting import PATIENCE_S
from tests.integration.onlooker import Onlooker, looking_on

pytestmark = pytest.mark.mesh

FLEET = """
provider = "local"
grace_s = 5
[local]
limit = 3
[[types]]
name = "small"
command = ["sleep", "600"]
spot = {price_per_h = 3600, most = 3}
"""


class Mesh:
    """A planner's side of the mesh, and the watcher's process."""

    def __init__(self, onlooker: Onlooker, variables: dict[str, str]) -> None:
        self.reports: list[FleetReported] = []
        self.drains: list[Drain] = []
        self._bus = onlooker.bus
        self._variables = variables
        self.watcher: asyncio.subprocess.Process | None = None

    async def listen(self) -> None:
        async def heard(raw: BusMessage) -> None:
            message = decode(raw.payload)
            if isinstance(message, FleetReported):
                self.reports.append(message)
            elif isinstance(message, Drain):
                self.drains.append(message)

        await self._bus.subscribe(subjects.FLEET, heard)
        await self._bus.subscribe(subjects.NOTICES, heard)

    async def start(self) -> None:
        """Start the watcher."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("SPOTWISE_")}
        self.watcher = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "spotwise.spot_watcher",
            env=env | self._variables,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )

    async def end(self, number: int) -> None:
        """End the watcher by a signal."""
        if self.watcher is not None and self.watcher.returncode is None:
            self.watcher.send_signal(number)
            async with asyncio.timeout(PATIENCE_S):
                await self.watcher.wait()

    async def order(self, number: int, *things: Purchase | InstanceRelease) -> None:
        purchases = tuple(each for each in things if isinstance(each, Purchase))
        releases = tuple(each for each in things if isinstance(each, InstanceRelease))
        order = FleetOrder("planner-0", 1, number, purchases, releases)
        await self._bus.publish(subjects.FLEET_ORDERS, encode(order))

    async def beat(self, device_id: str, state: MemberState) -> None:
        member = Member(device_id, MemberKind.DEVICE, 1, state, "h", 1, "h:1")
        await self._bus.publish(subjects.heartbeat(member.kind, member.id), encode(member))

    def states(self) -> dict[str, InstanceState]:
        return {each.id: each.state for each in self.reports[-1].instances} if self.reports else {}


async def until_said(true: Callable[[], object], what: str) -> None:
    """Wait for the process' messages; processes take seconds to start."""
    ends_s = time.monotonic() + 3 * PATIENCE_S
    while not true():
        assert time.monotonic() < ends_s, f"waited in vain: {what}"
        await asyncio.sleep(0.01)


@pytest.fixture
async def mesh(nats_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Mesh]:
    (tmp_path / "fleet.toml").write_text(FLEET)
    variables = {
        "SPOTWISE_NATS_URL": nats_url,
        "SPOTWISE_REDIS_URL": redis_url,
        "SPOTWISE_SERVICE_ID": "watcher-0",
        "SPOTWISE_FLEET_FILE": str(tmp_path / "fleet.toml"),
        "SPOTWISE_FLEET_FOLDER": str(tmp_path / "machines"),
        "SPOTWISE_FLEET_LIST_S": "0.1",
        "SPOTWISE_MEMBER_TIMEOUT_S": "1",
    }
    async with looking_on(nats_url, redis_url) as onlooker:
        mesh = Mesh(onlooker, variables)
        await mesh.listen()
        try:
            yield mesh
        finally:
            await mesh.end(signal.SIGKILL)
            await release_mesh(tmp_path / "machines", "default", 0.5)


async def test_a_fleet_outlives_the_death_of_its_keeper(mesh: Mesh) -> None:
    """Its successor goes on: with the instances, the bill and the orders, of which it buys none again."""
    await mesh.start()
    await until_said(lambda: mesh.reports, "a report")
    bought = Purchase("t1", ("small",), Market.SPOT, 2)
    await mesh.order(1, bought)
    await until_said(lambda: len(mesh.states()) == 2, "two instances")
    first, second = mesh.states()
    await mesh.beat(first, MemberState.READY)
    await until_said(lambda: mesh.states()[first] is InstanceState.RUNNING, "that one runs")
    await until_said(lambda: mesh.reports[-1].spent > 1.0, "a bill")
    await mesh.end(signal.SIGKILL)

    mesh.reports.clear()
    await mesh.start()
    await until_said(lambda: mesh.reports, "a report of the successor")
    report = mesh.reports[-1]
    assert report.spent == pytest.approx(sum(report.at_s - each.launched_s for each in report.instances))
    await mesh.order(2, bought, InstanceRelease(first, report.at_s + 600.0, "too many"))
    await mesh.beat(first, MemberState.READY)
    await until_said(lambda: mesh.drains, "the notice")
    assert mesh.drains[0].worker_id == first
    await mesh.beat(first, MemberState.LEFT)
    await until_said(lambda: mesh.states()[first] is InstanceState.GONE, "that it has gone")
    assert mesh.states() == {first: InstanceState.GONE, second: InstanceState.STARTING}
    await mesh.end(signal.SIGTERM)
    assert mesh.watcher is not None and mesh.watcher.returncode == 0
