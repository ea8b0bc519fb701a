"""The in-memory transfer plane keeps the transfer plane's contract."""

from __future__ import annotations

import pytest

from spotwise.mesh.ports.ports import HandoffHandler, KvMemory, KvTransport
from tests.contracts.kv_transport import KvTransportContract, MakeTransport
from tests.fakes.memory_kv import MemoryKvNetwork, MemoryKvTransport


class TestMemoryKvTransport(KvTransportContract):
    @pytest.fixture
    def make(self) -> MakeTransport:
        """Transports of one network."""
        network = MemoryKvNetwork()

        def make(
            memory: KvMemory, worker_id: str, incarnation: int, on_handoff: HandoffHandler, model_digest: str | None
        ) -> KvTransport:
            return MemoryKvTransport(network, memory, worker_id, incarnation, on_handoff, model_digest)

        return make
