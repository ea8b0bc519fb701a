"""What waits for the broker, and messages that say what the last one of their subject said."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.mesh.ports.ports import BusMessage
from spotwise.mesh.service.outbox import Outbox, RepeatedMessages
from spotwise.wire.codec import encode
from spotwise.wire.message_codec import MalformedMessageError


async def test_messages_leave_in_order_and_its_end_can_be_waited_for() -> None:
    """The last is not gone when it is taken, but when it is sent."""
    outbox = Outbox()
    await outbox.emptied()
    for number in range(3):
        outbox.put("s", b"%d" % number)
    assert [(await outbox.take())[1] for _ in range(3)] == [b"0", b"1", b"2"]
    waiting = asyncio.create_task(outbox.emptied())
    await asyncio.sleep(0)
    assert not waiting.done()
    outbox.sent()
    await waiting


async def test_take_waits_for_a_message() -> None:
    outbox = Outbox()
    taking = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    outbox.put("s", b"x")
    assert await taking == ("s", b"x")


async def test_a_broker_that_takes_nothing_costs_so_much_memory_and_no_more() -> None:
    """The oldest messages are dropped; the start is logged once, and the number dropped once it is over."""
    outbox = Outbox(max_bytes=100)
    with capture_logs() as logs:
        for number in range(1000):
            outbox.put("s", b"%010d" % number)
        left = [int((await outbox.take())[1]) for _ in range(10)]
        outbox.sent()
        assert left == [*range(990, 1000)]
        assert [(log["event"], log.get("messages_lost")) for log in logs] == [
            ("outbox_full", None),
            ("outbox_emptied", 990),
        ]
    outbox.put("s", b"x" * 1000)  # larger than all that may wait, and still the latest message
    assert len((await outbox.take())[1]) == 1000


MEMBER = Member("device-1", MemberKind.DEVICE, 1, MemberState.READY, "a-host", 1, "a:1")


def _beat(member: Member, subject: str = "beat.device-1") -> BusMessage:
    return BusMessage(subject, encode(member))


def test_the_same_bytes_are_the_same_message() -> None:
    repeated = RepeatedMessages()
    first = repeated.decode(_beat(MEMBER))
    assert first == MEMBER
    assert repeated.decode(_beat(MEMBER)) is first


def test_news_replaces_it_and_other_subjects_are_their_own() -> None:
    repeated = RepeatedMessages()
    repeated.decode(_beat(MEMBER))
    news = replace(MEMBER, leader_id="mixed-0")
    assert repeated.decode(_beat(news)) == news
    assert repeated.decode(_beat(MEMBER, "beat.device-2")) == MEMBER
    assert repeated.decode(_beat(MEMBER)) == MEMBER


def test_what_is_no_message_is_refused_each_time() -> None:
    repeated = RepeatedMessages()
    for _ in range(2):
        with pytest.raises(MalformedMessageError):
            repeated.decode(BusMessage("beat.device-1", b"\xff"))
