"""The in-memory store keeps the store's contract, and its registrations end by the clock it is given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.mesh.ports.ports import MeshStore
from tests.contracts.requests import RequestStoreContract
from tests.contracts.responses import SMALL, ResponseStoreContract
from tests.contracts.rooms import RoomContract
from tests.contracts.store import MEMBER, StoreContract
from tests.fakes.memory import FakeClock, MemoryStore


class TestMemoryStore(StoreContract, RequestStoreContract, ResponseStoreContract, RoomContract):
    @pytest.fixture
    def store(self) -> MeshStore:
        """An empty one."""
        return MemoryStore()

    async def lose_turns(self, store: MeshStore, request_id: str, owner: str) -> None:
        assert isinstance(store, MemoryStore)
        store._kept[request_id] = replace(store._kept[request_id], owner=owner)

    @pytest.fixture
    def small_store(self) -> MeshStore:
        """The same with little room."""
        return MemoryStore(budget=SMALL)


async def test_a_registration_lasts_by_the_fake_clock() -> None:
    """Time moves only when the test moves it, and never goes back."""
    clock = FakeClock(now_s=100.0)
    store = MemoryStore(clock)
    await store.register(MEMBER, 2.0)
    clock.advance(1.5)
    assert await store.members() == [MEMBER]
    clock.advance(0.5)
    assert await store.members() == []
    assert clock.now() == 102.0
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1.0)
