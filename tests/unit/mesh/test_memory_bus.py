"""The in-memory bus keeps the bus's contract."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from spotwise.mesh.ports.ports import MessageBus, PayloadTooLargeError
from tests.contracts.bus import BusContract, Connect, ignore
from tests.fakes.memory import MemoryBroker, MemoryBus


class TestMemoryBus(BusContract):
    @pytest.fixture
    async def connect(self) -> AsyncIterator[Connect]:
        """Connections to one in-memory broker."""
        broker = MemoryBroker()
        buses: list[MemoryBus] = []

        async def connect() -> MessageBus:
            buses.append(MemoryBus(broker))
            return buses[-1]

        yield connect
        for bus in buses:
            await bus.close()


async def test_a_test_chooses_the_largest_message() -> None:
    """The broker's payload limit is a parameter, so that tests need no megabyte."""
    bus = MemoryBus(MemoryBroker(max_payload_bytes=3))
    await bus.publish("subject", b"abc")
    with pytest.raises(PayloadTooLargeError):
        await bus.publish("subject", b"abcd")


async def test_the_wildcard_for_many_tokens_is_refused() -> None:
    """The mesh does not use it; a twin that ignored it would hide a mistake."""
    bus = MemoryBus(MemoryBroker())
    with pytest.raises(ValueError, match="wildcard"):
        await bus.subscribe("spotwise.>", ignore)
