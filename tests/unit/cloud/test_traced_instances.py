"""Local instances that come and go as the nodes of a trace."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from spotwise.cloud.instances import AcquireRequest, InstanceNotice, InstanceProvider, NoCapacity, ReclaimingProvider
from spotwise.cloud.local_instances import LocalInstances, LocalOptions
from spotwise.cloud.local_meshes import release_mesh
from spotwise.cloud.traced_instances import TracedInstances
from spotwise.core.messages.fleet import InstanceState, Market
from spotwise.files.spot_traces import SpotEvent, SpotEventKind, SpotTrace
from tests.contracts.instances import HERE, InstanceProviderContract, Site, eventually, ids
from tests.unit.cloud.local_machines import STUBBORN, Hours, LocalSite, local_machines

ADD, REMOVE = SpotEventKind.ADD, SpotEventKind.REMOVE
STAYS = SpotTrace("stays", (SpotEvent(0.0, ADD, ("a", "b", "c", "d")),))
#: `a` and `b` leave together, and `c` comes later.
GOES = SpotTrace(
    "goes",
    (
        SpotEvent(0.0, ADD, ("a", "b")),
        SpotEvent(600.0, ADD, ("c",)),
        SpotEvent(1200.0, REMOVE, ("a", "b")),
        SpotEvent(1800.0, ADD, ("a",)),
    ),
)


@pytest.fixture
def options(tmp_path: Path) -> Iterator[LocalOptions]:
    commands = {"box": ("sleep", "600"), "stubborn": STUBBORN}
    with local_machines(tmp_path / "machines", commands, limit=4) as options:
        yield options


class TestTracedInstances(InstanceProviderContract):
    """With a trace of four nodes that stay."""

    @pytest.fixture
    async def site(self, options: LocalOptions) -> AsyncIterator[Site]:
        site = LocalSite(
            "box", lambda mesh: TracedInstances(LocalInstances(mesh, options), STAYS, options.folder, mesh)
        )
        yield site
        for provider in site.providers:
            await provider.close()


def traced(options: LocalOptions, clock: Hours, grace_s: float = 30.0, compress: float = 10.0) -> TracedInstances:
    """A provider of the trace in which nodes leave after two minutes, on a clock of the test."""
    return TracedInstances(
        LocalInstances("mesh", options, clock), GOES, options.folder, "mesh", compress, grace_s, clock
    )


def order(token: str, count: int = 1, kind: str = "box", market: Market = Market.SPOT) -> AcquireRequest:
    return AcquireRequest(token, (kind,), market, count)


async def here(provider: InstanceProvider) -> list[str]:
    """Ids of the instances that are there."""
    return ids([each for each in await provider.instances() if each.state in HERE])


async def test_there_are_as_many_spot_instances_as_nodes(options: LocalOptions) -> None:
    """The first order gets fewer than it is for, the next none; on-demand is not the trace's, and a node may come later."""
    clock = Hours()
    provider = traced(options, clock)
    assert len(await provider.acquire(order("one", 3))) == 2
    with pytest.raises(NoCapacity, match="all 2 nodes of the trace are taken"):
        await provider.acquire(order("two"))
    assert len(await provider.acquire(order("three", 1, market=Market.ON_DEMAND))) == 1
    clock.unix_s += 60.0
    assert len(await provider.acquire(order("four", 2))) == 1
    await provider.close()


async def test_instances_go_with_their_nodes_after_a_notice(options: LocalOptions) -> None:
    """Both of one event, at once and whatever they do; their node is given to no other meanwhile, and a restart goes on."""
    clock = Hours()
    began_s = clock.unix_s
    provider = traced(options, clock)
    going = await provider.acquire(order("one", 2, "stubborn"))
    assert await provider.notices() == []
    clock.unix_s = began_s + 90.0
    assert isinstance(provider, ReclaimingProvider)
    event_id, reason = f"trace-{began_s:.0f}-1200", "trace: {} leaves"
    notices = await provider.notices()
    assert {each.instance_id for each in notices} == set(ids(going))
    assert notices[0] == InstanceNotice(notices[0].instance_id, began_s + 120.0, event_id, notices[0].reason)
    assert {each.reason for each in notices} == {reason.format("a"), reason.format("b")}
    await provider.release(ids(going)[:0])
    await provider.close()

    again = traced(options, clock)
    assert await again.notices() == notices
    clock.unix_s = began_s + 119.9
    assert await here(again) == ids(going)
    clock.unix_s = began_s + 120.0
    listed = await again.instances()
    assert {each.state for each in listed} == {InstanceState.GONE}
    assert [each.gone_unix_s for each in listed] == [began_s + 120.0] * 2
    assert await again.notices() == []
    assert len(await again.acquire(order("two", 2))) == 1  # c
    await again.close()


async def test_a_node_that_leaves_soon_is_given_to_no_instance(options: LocalOptions) -> None:
    clock = Hours()
    provider = traced(options, clock)
    [first] = await provider.acquire(order("one"))
    clock.unix_s += 100.0
    await provider.release([first.id])
    [bought] = await provider.acquire(order("two", 3))
    clock.unix_s += 20.0
    assert await here(provider) == [bought.id]
    await provider.close()


async def test_an_instance_is_ended_at_the_moment_without_a_listing(options: LocalOptions) -> None:
    """By the provider's own clock: no listing has to come."""
    trace = SpotTrace("short", (SpotEvent(0.0, ADD, ("a",)), SpotEvent(30.0, REMOVE, ("a",))))
    provider = TracedInstances(LocalInstances("mesh", options), trace, options.folder, "mesh", 60.0, 0.0)
    await provider.acquire(order("one", 1, "stubborn"))
    beside = LocalInstances("mesh", options)

    async def gone() -> bool:
        return (await beside.instances())[0].state is InstanceState.GONE

    await eventually(gone)
    await provider.close()


async def test_an_instance_that_got_no_node_is_bound_or_ended(options: LocalOptions) -> None:
    """The provider was ended between the order and the binding; of three only two have nodes."""
    clock = Hours()
    left = LocalInstances("mesh", options, clock)
    await left.acquire(order("one", 3))
    provider = traced(options, clock)
    assert len(await here(provider)) == 2
    state = json.loads((options.folder / "mesh.trace.json").read_text())
    assert len(state["bound"]) == 2
    await provider.close()


async def test_a_mesh_that_is_brought_down_leaves_nothing_and_begins_anew(options: LocalOptions) -> None:
    """Its instances end, another mesh's stay; its trace begins again."""
    clock = Hours()
    provider = traced(options, clock)
    mine = await provider.acquire(order("one", 2))
    other = LocalInstances("other", options)
    theirs = await other.acquire(order("one"))
    await provider.close()
    assert await release_mesh(options.folder, "mesh") == ids(mine)
    assert await release_mesh(options.folder, "mesh") == []
    assert await here(other) == ids(theirs)
    assert await release_mesh(options.folder / "none", "mesh") == []
    clock.unix_s += 10_000.0
    again = traced(options, clock)
    assert len(await again.acquire(order("two", 3))) == 2
    await again.close()


@pytest.mark.parametrize(("compress", "grace_s"), [(0.0, 1.0), (1.0, -1.0)])
def test_a_time_that_cannot_be_is_refused(options: LocalOptions, compress: float, grace_s: float) -> None:
    with pytest.raises(ValueError, match="compress"):
        traced(options, Hours(), grace_s, compress)
