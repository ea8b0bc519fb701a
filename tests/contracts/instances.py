"""What every `InstanceProvider` keeps to: the same tests for each adapter, and for docs/examples/rack.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import pytest

from spotwise.cloud.instances import (
    AcquiredInstance,
    AcquireRequest,
    InstanceProvider,
    NoCapacity,
    ProviderRefused,
)
from spotwise.core.messages.fleet import InstanceState, Market
from tests.contracts.waiting import PATIENCE_S

HERE = (InstanceState.STARTING, InstanceState.RUNNING)
ENDED = (InstanceState.LEAVING, InstanceState.GONE)


class Site(Protocol):
    """Where a provider's instances are, and what exists.

    Attributes:
        instance_type: one that exists.
        capacity: instances that run at once at most, all meshes together.
    """

    instance_type: str
    room: int

    async def open(self, mesh: str) -> InstanceProvider:
        """Open a provider, as a process that has just started does; it is closed when the test ends."""


async def eventually(true: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it is true."""
    async with asyncio.timeout(PATIENCE_S):
        while not await true():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.02)


def ids(instances: list[AcquiredInstance]) -> list[str]:
    """Return the instances' ids, sorted."""
    return sorted(each.id for each in instances)


class InstanceProviderContract:
    """Subclasses have a fixture `site`: no instances, capacity for four."""

    @pytest.fixture
    async def provider(self, site: Site) -> InstanceProvider:
        """The mesh's own."""
        return await site.open("mesh-a")

    def order(self, site: Site, token: str, count: int = 2, market: Market = Market.SPOT) -> AcquireRequest:
        """An order of the type that there is."""
        return AcquireRequest(token, (site.instance_type,), market, count, {"role": "token"})

    async def here(self, provider: InstanceProvider) -> list[str]:
        """Ids of what can be worked with, or soon."""
        return ids([each for each in await provider.instances() if each.state in HERE])

    async def test_a_mesh_begins_with_nothing(self, provider: InstanceProvider) -> None:
        assert await provider.instances() == []
        await provider.release([])

    @pytest.mark.parametrize("market", list(Market))
    async def test_an_order_is_filled_and_shown(self, site: Site, provider: InstanceProvider, market: Market) -> None:
        acquired = await provider.acquire(self.order(site, "one", 3, market))
        assert len(set(ids(acquired))) == 3
        for each in acquired:
            assert (each.instance_type, each.market, each.token) == (site.instance_type, market, "one")
            assert each.tags == {"role": "token"}
            assert each.state in HERE
        assert ids(await provider.instances()) == ids(acquired)

        async def all_run() -> bool:
            return all(each.state is InstanceState.RUNNING for each in await provider.instances())

        await eventually(all_run)
        for each in await provider.instances():
            assert (each.instance_type, each.market, each.token) == (site.instance_type, market, "one")
            assert each.tags == {"role": "token"}

    async def test_the_first_acquired_is_shown_first(self, site: Site, provider: InstanceProvider) -> None:
        for token in ("one", "two"):
            await provider.acquire(self.order(site, token, 2))
        shown = await provider.instances()
        assert [(each.launched_unix_s, each.id) for each in shown] == sorted((e.launched_unix_s, e.id) for e in shown)

    async def test_a_repeated_order_buys_nothing(self, site: Site, provider: InstanceProvider) -> None:
        """Here, or after a restart, however often."""
        first = await provider.acquire(self.order(site, "one"))
        assert ids(await provider.acquire(self.order(site, "one"))) == ids(first)
        again = await site.open("mesh-a")
        assert ids(await again.acquire(self.order(site, "one"))) == ids(first)
        assert ids(await again.instances()) == ids(first)

    async def test_a_new_token_is_a_new_order(self, site: Site, provider: InstanceProvider) -> None:
        """An order with a new token starts new instances, though all else is the same."""
        first = await provider.acquire(self.order(site, "one"))
        second = await provider.acquire(self.order(site, "two"))
        assert not set(ids(first)) & set(ids(second))
        assert ids(await provider.instances()) == ids([*first, *second])

    async def test_the_same_token_of_another_mesh_is_another_order(
        self, site: Site, provider: InstanceProvider
    ) -> None:
        other = await site.open("mesh-b")
        mine, theirs = await provider.acquire(self.order(site, "one")), await other.acquire(self.order(site, "one"))
        assert not set(ids(mine)) & set(ids(theirs))

    async def test_orders_at_once_are_all_filled(self, site: Site, provider: InstanceProvider) -> None:
        orders = [self.order(site, f"at-once-{number}", 1, list(Market)[number % 2]) for number in range(4)]
        acquired = await asyncio.gather(*(provider.acquire(order) for order in orders))
        assert [len(each) for each in acquired] == [1] * 4
        assert len({each[0].id for each in acquired}) == 4
        assert [each[0].market for each in acquired] == [order.market for order in orders]

    async def test_one_order_given_many_times_at_once_is_one(self, site: Site, provider: InstanceProvider) -> None:
        """Concurrent calls with one order id start one set of instances, which every caller gets."""
        answers = await asyncio.gather(*(provider.acquire(self.order(site, "one")) for _ in range(4)))
        assert len({tuple(ids(answer)) for answer in answers}) == 1
        assert ids(await provider.instances()) == ids(answers[0])

    async def test_orders_at_once_share_what_room_there_is(self, site: Site, provider: InstanceProvider) -> None:
        orders = [self.order(site, f"at-once-{number}", 3) for number in range(4)]
        answers = await asyncio.gather(*(provider.acquire(order) for order in orders), return_exceptions=True)
        got = [answer for answer in answers if isinstance(answer, list)]
        assert all(isinstance(answer, list | NoCapacity) for answer in answers)
        assert sum(len(each) for each in got) == site.room == len(await provider.instances())

    async def test_an_order_is_filled_in_part(self, site: Site, provider: InstanceProvider) -> None:
        """An order over the capacity is filled in part; repeating it starts no more, though capacity came free."""
        first = await provider.acquire(self.order(site, "one", 3))
        second = await provider.acquire(self.order(site, "two", 3))
        assert len(second) == 1
        await provider.release(ids(first))
        await self._until_gone(provider, ids(first))
        assert ids(await provider.acquire(self.order(site, "two", 3))) == ids(second)
        assert await self.here(provider) == ids(second)

    async def test_where_there_is_nothing_that_is_said(self, site: Site, provider: InstanceProvider) -> None:
        """An order without capacity raises an error that names type and market.

        A new order after capacity came free is filled.
        """
        first = await provider.acquire(self.order(site, "one", 4))
        with pytest.raises(NoCapacity, match=site.instance_type) as told:
            await provider.acquire(self.order(site, "two", 1, Market.ON_DEMAND))
        assert (told.value.instance_types, told.value.market) == ((site.instance_type,), Market.ON_DEMAND)
        assert ids(await provider.instances()) == ids(first)
        await provider.release(ids(first)[:1])
        await self._until_gone(provider, ids(first)[:1])
        assert len(await provider.acquire(self.order(site, "three", 1))) == 1

    async def test_what_does_not_exist_is_refused(self, site: Site, provider: InstanceProvider) -> None:
        """An unknown instance type is refused with its name."""
        with pytest.raises(ProviderRefused, match=r"no-such\.type"):
            await provider.acquire(AcquireRequest("one", ("no-such.type",), Market.SPOT, 1))
        assert await provider.instances() == []

    async def test_what_is_released_goes(self, site: Site, provider: InstanceProvider) -> None:
        """The released instances end and the others stay; a second release changes nothing."""
        acquired = ids(await provider.acquire(self.order(site, "one", 3)))
        for _ in range(2):
            await provider.release(acquired[:2])
            states = {each.id: each.state for each in await provider.instances()}
            assert all(states.get(each, InstanceState.GONE) in ENDED for each in acquired[:2])
            assert states[acquired[2]] in HERE
        await self._until_gone(provider, acquired[:2])
        await provider.release(acquired[:2])
        assert await self.here(provider) == acquired[2:]

    async def test_what_was_released_is_not_bought_again(self, site: Site, provider: InstanceProvider) -> None:
        acquired = ids(await provider.acquire(self.order(site, "one")))
        await provider.release(acquired)
        await self._until_gone(provider, acquired)
        try:
            answer = await provider.acquire(self.order(site, "one"))
        except ProviderRefused:
            answer = []
        assert all(each.state is InstanceState.GONE for each in answer)
        assert await self.here(provider) == []

    async def test_unknown_ids_are_passed_over(self, site: Site, provider: InstanceProvider) -> None:
        acquired = ids(await provider.acquire(self.order(site, "one")))
        await provider.release(["i-0123456789abcdef0", acquired[0]])
        await self._until_gone(provider, acquired[:1])
        assert await self.here(provider) == acquired[1:]

    async def test_another_mesh_is_left_alone(self, site: Site, provider: InstanceProvider) -> None:
        """Another mesh's instances are not listed, and not released even where their ids are known."""
        other = await site.open("mesh-b")
        mine, theirs = await provider.acquire(self.order(site, "a")), await other.acquire(self.order(site, "b"))
        assert ids(await provider.instances()) == ids(mine)
        assert ids(await other.instances()) == ids(theirs)
        await provider.release([*ids(theirs), *ids(mine)])
        await self._until_gone(provider, ids(mine))
        assert await self.here(other) == ids(theirs)

    async def test_instances_outlive_their_provider(self, site: Site, provider: InstanceProvider) -> None:
        acquired = ids(await provider.acquire(self.order(site, "one")))
        await provider.close()
        await provider.close()
        again = await site.open("mesh-a")
        assert await self.here(again) == acquired
        await again.release(acquired)
        await self._until_gone(again, acquired)

    async def _until_gone(self, provider: InstanceProvider, gone: list[str]) -> None:
        async def all_gone() -> bool:
            return not any(
                each.id in gone and each.state is not InstanceState.GONE for each in await provider.instances()
            )

        await eventually(all_gone)
