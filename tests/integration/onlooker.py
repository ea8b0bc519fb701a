"""Another member's view of the mesh, for tests of how members come and go."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from spotwise.core.messages.members import Member, MemberState
from spotwise.mesh.nats.bus import NatsBus
from spotwise.mesh.ports.ports import BusMessage, MessageBus
from spotwise.mesh.redis.store import RedisStore
from spotwise.wire import subjects
from spotwise.wire.codec import decode


async def heard_on(bus: MessageBus, subject: str) -> list[bytes]:
    """Subscribe; the list grows by the payload of each message that is heard."""
    heard: list[bytes] = []

    async def hear(message: BusMessage) -> None:
        heard.append(message.payload)

    await bus.subscribe(subject, hear)
    return heard


class Onlooker:
    """Subscribes to heartbeats, and reads the registry."""

    def __init__(self, bus: NatsBus, store: RedisStore) -> None:
        self.bus = bus
        self.store = store
        self.heard: list[Member] = []

    async def start(self) -> None:
        async def heard(raw: BusMessage) -> None:
            member = decode(raw.payload)
            assert isinstance(member, Member)
            self.heard.append(member)

        await self.bus.subscribe(subjects.HEARTBEATS, heard)

    def states(self) -> list[MemberState]:
        """The states received, without repeats, in order."""
        return list(dict.fromkeys(member.state for member in self.heard))

    async def registered(self) -> list[MemberState]:
        return [member.state for member in await self.store.members()]


@asynccontextmanager
async def looking_on(nats_url: str, redis_url: str) -> AsyncIterator[Onlooker]:
    """An observer with connections of its own for the length of a block."""
    bus, store = await NatsBus.connect(nats_url, "onlooker"), await RedisStore.connect(redis_url)
    onlooker = Onlooker(bus, store)
    await onlooker.start()
    yield onlooker
    await bus.close()
    await store.close()
