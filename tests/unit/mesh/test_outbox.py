"""What waits for the broker."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from spotwise.mesh.service.outbox import Outbox


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
