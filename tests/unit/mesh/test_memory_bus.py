"""The in-memory twins of the ports keep the contracts that the real adapters keep."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

import pytest

from spotwise.mesh.ports.keys import KeyStore
from spotwise.mesh.ports.ports import MeshStore, MessageBus
from tests.contracts.bus import BusContract, Connect, ignore
from tests.contracts.key_store import KeyStoreContract
from tests.contracts.kv_transport import KvTransportContract, MakeTransport
from tests.contracts.requests import RequestStoreContract
from tests.contracts.responses import SMALL, ResponseStoreContract
from tests.contracts.rooms import RoomContract
from tests.contracts.store import StoreContract
from tests.fakes.memory import FakeClock, MemoryBroker, MemoryBus, MemoryStore
from tests.fakes.memory_keys import MemoryKeys
from tests.fakes.memory_kv import MemoryKvNetwork, MemoryKvTransport


class TestMemoryBus(BusContract):
    @pytest.fixture
    async def connect(self) -> AsyncIterator[Connect]:
        broker = MemoryBroker()
        buses: list[MemoryBus] = []

        async def connect() -> MessageBus:
            buses.append(MemoryBus(broker))
            return buses[-1]

        yield connect
        for bus in buses:
            await bus.close()


async def test_the_wildcard_for_many_tokens_is_refused() -> None:
    """The mesh does not use it; a twin that ignored it would hide a mistake."""
    bus = MemoryBus(MemoryBroker())
    with pytest.raises(ValueError, match="wildcard"):
        await bus.subscribe("spotwise.>", ignore)


class TestMemoryKeys(KeyStoreContract):
    @pytest.fixture
    def clock(self) -> FakeClock:
        """On some day at noon."""
        return FakeClock(1_700_000_000.0 // 86_400 * 86_400 + 43_200)

    @pytest.fixture
    def keys(self, clock: FakeClock) -> KeyStore:
        return MemoryKeys(clock)


class TestMemoryKvTransport(KvTransportContract):
    @pytest.fixture
    def make(self) -> MakeTransport:
        network = MemoryKvNetwork()

        return partial(MemoryKvTransport, network)


class TestMemoryStore(StoreContract, RequestStoreContract, ResponseStoreContract, RoomContract):
    @pytest.fixture
    def store(self) -> MeshStore:
        return MemoryStore()

    async def lose_turns(self, store: MeshStore, request_id: str, owner: str) -> None:
        assert isinstance(store, MemoryStore)
        store._kept[request_id] = replace(store._kept[request_id], owner=owner)

    @pytest.fixture
    def small_store(self) -> MeshStore:
        return MemoryStore(budget=SMALL)
