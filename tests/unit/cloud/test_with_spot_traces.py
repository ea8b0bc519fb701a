"""The machines of published traces: SPOTWISE_DATA names a folder with spot-traces/."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spotwise.cloud.aws import Aws
from spotwise.cloud.azure import Azure
from spotwise.cloud.dialogue import Cloud
from spotwise.cloud.http_client import HttpClient
from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.core.spot import commands as c
from spotwise.core.spot.role import SpotWatcherRole, WatchPolicy
from spotwise.files.spot_traces import SpotEvent, SpotEventKind, SpotTrace, read_spot_trace
from tests.fakes.spot_machines import SpotMachines
from tests.unit.cloud.speaking import NOW

CLOUDS: dict[str, Callable[[], Cloud]] = {"aws": Aws, "azure": Azure}


class Machine:
    """A machine's watcher, and the notices its worker received."""

    def __init__(self, node: str, cloud: Cloud) -> None:
        self.cloud = cloud
        self.role = SpotWatcherRole(f"watcher-{node}", WatchPolicy(node))
        self.worker = Member(f"worker-{node}", MemberKind.TOKEN_WORKER, 1, MemberState.READY, node, 1, "h:1")
        self.notices: list[tuple[float, float]] = []

    async def look(self, url: str, now: float) -> None:
        """Poll and process the answer; the worker drains as soon as it receives a notice."""
        self.feed(self.worker, now)
        async with HttpClient(url, 5.0) as door:
            self.feed(await door.converse(self.cloud.query(now)), now)

    def feed(self, event: c.SpotWatcherEvent, now: float) -> None:
        for command in self.role.handle(event, now):
            if isinstance(command, c.PublishNotice):
                self.notices.append((now, command.notice.deadline_s))
                self.worker = replace(self.worker, state=MemberState.DRAINING)


async def watch(
    trace: SpotTrace, notice_s: float, cloud: Callable[[], Cloud]
) -> tuple[SpotMachines, dict[str, Machine]]:
    """Let every machine be watched at every moment of a trace at which something happens."""
    machines: dict[str, Machine] = {}
    async with SpotMachines(trace, notice_s, NOW) as world:
        for now in world.moments:
            await world.advance(now)
            for node, server in world.here.items():
                machine = machines.setdefault(node, Machine(node, cloud()))
                await machine.look(server.url, now)
    return world, machines


@pytest.mark.parametrize("cloud", CLOUDS)
async def test_machines_that_go_receive_their_deadlines(cloud: str) -> None:
    """Machines that end receive their deadline, two at once and one alone.

    Others, and machines without a notice, receive nothing.
    """
    add, remove = SpotEventKind.ADD, SpotEventKind.REMOVE
    trace = SpotTrace(
        "small",
        (SpotEvent(0.0, add, ("a", "b", "c")), SpotEvent(60.0, remove, ("a",)), SpotEvent(90.0, remove, ("b",))),
    )
    world, machines = await watch(trace, 30.0, CLOUDS[cloud])
    assert {node: machine.notices for node, machine in machines.items()} == {
        "a": [(NOW + 30, NOW + 60)],
        "b": [(NOW + 60, NOW + 90)],
        "c": [],
    }
    assert list(world.here) == ["c"]
    _, machines = await watch(trace, 0.0, CLOUDS[cloud])
    assert all(machine.notices == [] for machine in machines.values())


@pytest.mark.skipif("SPOTWISE_DATA" not in os.environ, reason="SPOTWISE_DATA names no folder with the data")
@pytest.mark.parametrize("name", ["trace_0304_real.txt", "trace_0506_real.txt"])
@pytest.mark.parametrize("cloud", CLOUDS)
async def test_every_machine_of_a_published_trace_gets_one_notice_in_time(name: str, cloud: str) -> None:
    """Each machine of the trace receives one notice, 30 seconds ahead of its end, and no other machine does."""
    path = Path(os.environ["SPOTWISE_DATA"]) / "spot-traces" / "spotserve" / "availability" / name
    trace = read_spot_trace(path)
    gone = {
        node: NOW + event.time_s for event in trace.events if event.kind is SpotEventKind.REMOVE for node in event.nodes
    }
    assert len(gone) == 3
    _, machines = await watch(trace, 30.0, CLOUDS[cloud])
    noticed = {node: machine.notices for node, machine in machines.items() if machine.notices}
    assert noticed == {node: [(deadline_s - 30.0, deadline_s)] for node, deadline_s in gone.items()}
