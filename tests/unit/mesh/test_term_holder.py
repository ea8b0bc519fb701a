"""Processes of a service compete for its lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from spotwise.core.membership.term import TermLease
from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.mesh.grpc.control import ControlServer
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.settings import ServiceSettings
from spotwise.mesh.service.term_holder import TermHolder
from tests.contracts.waiting import until
from tests.fakes.memory import MemoryBroker, MemoryBus, MemoryStore
from tests.unit.core.builders import plain_member

LEASE_S = 0.3
LONG_LEASE_S = 3600.0


class FailingStore(MemoryStore):
    """A store that may fail, or not answer at all."""

    fails = False
    hangs = False

    async def hold_term(self, service: str, holder: str, at_least: int, lease_s: float) -> int | None:
        if self.hangs:
            await asyncio.sleep(3600)
        if self.fails:
            raise MeshError("the store is away")
        return await super().hold_term(service, holder, at_least, lease_s)


class DeafHost(ServiceHost):
    """A member that the broker may not reach."""

    is_deaf = False

    @property
    def receives(self) -> bool:
        return not self.is_deaf


class Competitor:
    """One process, and what it was told of its terms."""

    def __init__(self, host: DeafHost, lease: TermLease) -> None:
        self.host = host
        self.terms: list[int] = []
        self.until_s = 0.0
        self.losses = 0
        self.holder = TermHolder(host, "s", lease, self._held, self._lost)

    def _held(self, term: int, until_s: float) -> None:
        self.until_s = until_s
        if self.terms[-1:] != [term]:
            self.terms.append(term)

    def _lost(self) -> None:
        self.losses += 1

    @property
    def term(self) -> int | None:
        return self.holder.term

    def lasts_beyond(self, unix_s: float) -> bool:
        return self.until_s > unix_s


def member_of(competitor: Competitor, state: MemberState, term: int | None = None) -> Member:
    """A heartbeat about a competitor."""
    id_, _, incarnation = competitor.holder.holder.rpartition("/")
    member = plain_member(id_, MemberKind.CLUSTER_SCHEDULER, incarnation=int(incarnation), state=state)
    return replace(member, term=term)


@asynccontextmanager
async def competing(
    store: MemoryStore, member_id: str, *, lease_s: float = LEASE_S, needs_store: bool = False
) -> AsyncIterator[Competitor]:
    member = plain_member(member_id, MemberKind.CLUSTER_SCHEDULER, state=MemberState.STARTING)
    settings = ServiceSettings(service_id=member_id)
    host = DeafHost(settings, MemoryBus(MemoryBroker()), store, ControlServer("127.0.0.1", 0), member)
    async with host.joined():
        competitor = Competitor(host, TermLease(lease_s, needs_store=needs_store))
        await competitor.holder.start()
        yield competitor


async def test_one_of_two_holds_the_term_until_it_leaves() -> None:
    """The first one has it when it has started; the other takes over when that gives the lease back."""
    store = MemoryStore()
    async with competing(store, "a", lease_s=LONG_LEASE_S) as first, competing(store, "b") as second:
        assert first.term is not None
        await asyncio.sleep(0.1)
        assert second.term is None
        await first.holder.close()
        await until(lambda: second.term is not None)
        assert second.terms[0] > first.terms[0]
        assert (first.losses, second.losses) == (1, 0)


async def test_a_standby_takes_over_at_once_when_the_holders_end_is_reported() -> None:
    """It waits for no lease: the watcher of the machine has seen the process end."""
    store = MemoryStore()
    async with competing(store, "a", lease_s=LONG_LEASE_S) as first, competing(store, "b") as second:
        second.holder.member_reported(member_of(first, MemberState.LOST))
        await until(lambda: second.term is not None)


async def test_the_end_of_a_standby_gives_the_lease_to_none() -> None:
    store = MemoryStore()
    async with competing(store, "a", lease_s=LONG_LEASE_S) as first, competing(store, "b") as second:
        first.holder.member_reported(member_of(second, MemberState.LOST))
        second.holder.member_reported(replace(member_of(first, MemberState.LOST), incarnation=7))
        await asyncio.sleep(0.1)
        assert (first.losses, second.term) == (0, None)


async def test_the_holder_goes_on_while_the_store_is_away() -> None:
    """For a service that needs no store to act; also where the store does not answer."""
    store = FailingStore()
    async with competing(store, "a") as first, competing(store, "b") as second:
        for outage in ("fails", "hangs"):
            setattr(store, outage, True)
            await until(partial(first.lasts_beyond, first.until_s + LEASE_S))
            assert (first.losses, second.term) == (0, None)
            setattr(store, outage, False)
        assert len(first.terms) == 1


async def test_a_service_that_needs_the_store_stops_without_it() -> None:
    """And goes on in its term when the store is back, unless another took over."""
    store = FailingStore()
    async with competing(store, "a", needs_store=True) as first:
        store.fails = True
        await until(lambda: first.losses)
        assert first.term is None
        store.fails = False
        await until(lambda: first.term is not None)


async def test_a_holder_that_a_later_term_replaced_steps_down() -> None:
    """A store that has forgotten terms may give one that is over: the next is above all that members have seen."""
    store = MemoryStore()
    async with competing(store, "a", lease_s=LONG_LEASE_S) as process:
        (first,) = process.terms
        process.holder.saw(first + 10**6)
        assert process.losses == 1
        await until(lambda: process.term is not None)
        assert process.terms[-1] > first + 10**6


async def test_a_process_that_cannot_be_reached_lets_its_lease_end() -> None:
    """Its heartbeats do not come back: another one, which receives, takes over."""
    store = MemoryStore()
    async with competing(store, "a") as first, competing(store, "b") as second:
        first.host.is_deaf = True
        await until(lambda: second.term is not None)
        assert first.until_s < second.until_s
        first.host.is_deaf = False
        await until(lambda: first.losses)
