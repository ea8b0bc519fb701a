"""The in-memory key store keeps the key store's contract."""

from __future__ import annotations

import pytest

from spotwise.mesh.ports.keys import KeyStore
from tests.contracts.key_store import KeyStoreContract
from tests.fakes.memory import FakeClock
from tests.fakes.memory_keys import MemoryKeys


class TestMemoryKeys(KeyStoreContract):
    @pytest.fixture
    def clock(self) -> FakeClock:
        """On some day at noon."""
        return FakeClock(1_700_000_000.0 // 86_400 * 86_400 + 43_200)

    @pytest.fixture
    def keys(self, clock: FakeClock) -> KeyStore:
        """An empty one."""
        return MemoryKeys(clock)
