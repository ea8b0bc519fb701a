"""What every `MessageBus` keeps to: the same tests for NATS and for its in-memory twin."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

from spotwise.mesh.ports.ports import (
    BusMessage,
    MeshError,
    MessageBus,
    NoResponderError,
    PayloadTooLargeError,
    ReplyTimeoutError,
    Subscription,
)
from tests.contracts.waiting import until

Connect: TypeAlias = Callable[[], Awaitable[MessageBus]]


async def echo(message: BusMessage) -> None:
    """Answer with the request's payload."""
    assert message.respond is not None
    await message.respond(message.payload)


async def ignore(message: BusMessage) -> None:
    """Receive and never answer."""


async def hears(bus: MessageBus, subject: str, queue: str = "") -> tuple[list[BusMessage], Subscription]:
    """Subscribe; what comes is in the list."""
    heard: list[BusMessage] = []

    async def handler(message: BusMessage) -> None:
        heard.append(message)

    return heard, await bus.subscribe(subject, handler, queue=queue)


class BusContract:
    """Subclasses have a fixture `connect`: connections to one broker, closed when the test ends."""

    @pytest.fixture
    def subject(self) -> str:
        """A subject of this test alone."""
        return f"test.{uuid.uuid4().hex}"

    async def test_messages_of_a_subject_arrive_in_order_and_one_at_a_time(
        self, connect: Connect, subject: str
    ) -> None:
        """Whatever the handler waits for, it is not called again before it returned."""
        bus, other = await connect(), await connect()
        heard: list[bytes] = []
        at_work = 0
        most_at_work = 0

        async def handler(message: BusMessage) -> None:
            nonlocal at_work, most_at_work
            at_work += 1
            most_at_work = max(most_at_work, at_work)
            await asyncio.sleep(0)
            heard.append(message.payload)
            at_work -= 1

        await bus.subscribe(subject, handler)
        sent = [str(number).encode() for number in range(200)]
        for payload in sent:
            await other.publish(subject, payload)
        await until(lambda: len(heard) == len(sent))
        assert heard == sent
        assert most_at_work == 1

    async def test_a_slow_handler_holds_up_its_own_subscription_only(self, connect: Connect, subject: str) -> None:
        """While one handler is slow, another subscription of the same connection still receives messages."""
        bus = await connect()
        release = asyncio.Event()
        heard: list[str] = []

        async def slow(message: BusMessage) -> None:
            await release.wait()
            heard.append("slow")

        async def quick(message: BusMessage) -> None:
            heard.append("quick")

        await bus.subscribe(subject, slow)
        await bus.subscribe(subject, quick)
        await bus.publish(subject, b"1")
        await bus.publish(subject, b"2")
        await until(lambda: len(heard) == 2)
        assert heard == ["quick", "quick"]
        release.set()
        await until(lambda: len(heard) == 4)

    async def test_a_queue_group_shares_the_messages_and_others_hear_them_all(
        self, connect: Connect, subject: str
    ) -> None:
        """Each message reaches exactly one of the group's three members, and a subscriber outside the group."""
        members = [(await hears(await connect(), subject, "group"))[0] for _ in range(3)]
        bus = await connect()
        outside, _ = await hears(bus, subject)
        sent = [str(number).encode() for number in range(90)]
        for payload in sent:
            await bus.publish(subject, payload)
        await until(lambda: len(outside) == sum(map(len, members)) == len(sent))
        assert [message.payload for message in outside] == sent
        assert sorted(message.payload for heard in members for message in heard) == sorted(sent)
        assert all(members)

    async def test_a_star_stands_for_one_token(self, connect: Connect, subject: str) -> None:
        """`a.*` matches `a.b`, not `a`, `a.b.c` or `x.b`; the message carries the subject it was published on."""
        bus = await connect()
        heard, _ = await hears(bus, f"{subject}.*")
        for published in (subject, f"{subject}.one.two", f"{subject}x.one", f"{subject}.one", f"{subject}.last"):
            await bus.publish(published, b"")
        await until(lambda: f"{subject}.last" in [message.subject for message in heard])
        assert [message.subject for message in heard] == [f"{subject}.one", f"{subject}.last"]

    async def test_each_request_gets_its_own_answer(self, connect: Connect, subject: str) -> None:
        server = await connect()
        await server.subscribe(subject, echo)
        clients = [await connect(), await connect()]
        questions = [str(number).encode() for number in range(20)]
        answers = await asyncio.gather(
            *(clients[number % 2].request(subject, question, 10.0) for number, question in enumerate(questions))
        )
        assert answers == questions

    async def test_who_publishes_waits_for_no_answer(self, connect: Connect, subject: str) -> None:
        """A published message cannot be responded to."""
        bus = await connect()
        heard, _ = await hears(bus, subject)
        await bus.publish(subject, b"news")
        await until(lambda: heard)
        assert heard == [BusMessage(subject, b"news", None)]

    async def test_of_several_answers_one_counts(self, connect: Connect, subject: str) -> None:
        """Of several answers to one request the first counts.

        The others are dropped silently, and the connection keeps working.
        """
        bus = await connect()
        for _ in range(3):
            await (await connect()).subscribe(subject, echo)
        for question in (b"first", b"second"):
            assert await bus.request(subject, question, 10.0) == question

    async def test_nobody_listening_is_known_at_once(self, connect: Connect, subject: str) -> None:
        """A request fails at once where no subscriber ever existed, and where the only one has unsubscribed."""
        bus = await connect()
        with pytest.raises(NoResponderError, match=subject):
            await bus.request(subject, b"", 60.0)
        subscription = await bus.subscribe(subject, echo)
        assert await bus.request(subject, b"there", 10.0) == b"there"
        await subscription.unsubscribe()
        with pytest.raises(NoResponderError):
            await bus.request(subject, b"", 60.0)

    async def test_a_listener_that_does_not_answer_is_waited_for_so_long(self, connect: Connect, subject: str) -> None:
        bus = await connect()
        await bus.subscribe(subject, ignore)
        with pytest.raises(ReplyTimeoutError, match=rf"{subject} within 0\.05 s"):
            await bus.request(subject, b"", 0.05)

    async def test_a_message_too_large_is_refused_before_it_is_sent(self, connect: Connect, subject: str) -> None:
        """A publish or a request over the limit raises an error with both sizes; the largest allowed message arrives."""
        bus = await connect()
        await bus.subscribe(subject, echo)
        largest = b"x" * bus.max_payload_bytes
        for attempt in (bus.publish(subject, largest + b"x"), bus.request(subject, largest + b"x", 10.0)):
            with pytest.raises(PayloadTooLargeError, match=rf"{len(largest) + 1} bytes .* {len(largest)} bytes"):
                await attempt
        assert await bus.request(subject, largest, 10.0) == largest

    async def test_a_handler_that_raises_loses_one_message(self, connect: Connect, subject: str) -> None:
        bus = await connect()

        async def handler(message: BusMessage) -> None:
            if message.payload == b"bad":
                raise ValueError("cannot take this")
            await echo(message)

        await bus.subscribe(subject, handler)
        await bus.publish(subject, b"bad")
        assert await bus.request(subject, b"good", 10.0) == b"good"

    async def test_after_unsubscribe_nothing_is_heard(self, connect: Connect, subject: str) -> None:
        """After `unsubscribe` the handler is not called, other subscribers still are; a second call changes nothing."""
        bus, other = await connect(), await connect()
        stopped, subscription = await hears(bus, subject)
        goes_on, _ = await hears(bus, subject)
        await other.publish(subject, b"1")
        await until(lambda: stopped and goes_on)
        await subscription.unsubscribe()
        await subscription.unsubscribe()
        await other.publish(subject, b"2")
        await until(lambda: len(goes_on) == 2)
        assert [message.payload for message in stopped] == [b"1"]

    async def test_close_lets_the_handlers_finish_what_has_arrived(self, connect: Connect, subject: str) -> None:
        """Closing sends and handles what is pending; a second time changes nothing; then the connection is of no use."""
        bus, other = await connect(), await connect()
        heard: list[bytes] = []

        async def handler(message: BusMessage) -> None:
            await asyncio.sleep(0.001)
            heard.append(message.payload)

        await bus.subscribe(subject, handler)
        sent = [str(number).encode() for number in range(20)]
        for payload in sent:
            await bus.publish(subject, payload)
        await bus.close()
        await bus.close()
        assert heard == sent
        with pytest.raises(MeshError):
            await bus.publish(subject, b"")
        with pytest.raises(MeshError):
            await bus.request(subject, b"", 1.0)
        with pytest.raises(MeshError):
            await bus.subscribe(subject, handler)
        with pytest.raises(NoResponderError):
            await other.request(subject, b"", 60.0)
