"""Hand-offs of one simulated machine that do not end as they began."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.requests.record import KvHandoff, KvTarget
from spotwise.core.worker import commands as c
from spotwise.simulator.world.events import EventQueue
from spotwise.simulator.world.hand_offs import HandOffs
from spotwise.simulator.world.network import Link, Network
from tests.unit.simulator.world.worlds import settings

TARGET = KvTarget("t", 1, "t", (0, 1))


@pytest.mark.parametrize("after_s", [0.0, 0.5])
def test_a_cancelled_push_is_reported_once_and_frees_its_links(after_s: float) -> None:
    """Cancelled at once or half-way: the sender gets one failure, the receiver nothing, and the next push the whole link."""
    queue = EventQueue()
    reported: list[Any] = []
    received: list[Any] = []
    target = SimpleNamespace(receive_link=Link(1000.0), receive=received.append)
    around: Any = SimpleNamespace(settings=settings(), queue=queue, network=Network(queue), machines={"t": target})
    sender = Link(1000.0)
    hand_offs = HandOffs(sender, reported.append, around)
    hand_offs.ordered(m.StartPrefill("r", 1, m.StreamRef("gateway", 1), "scheduler", 1, 1, TARGET, 5.0, 1))
    hand_offs.push(c.PushKv(KvHandoff("r", 1, 1, 0), TARGET, (0,)))
    queue.at(after_s, lambda _: hand_offs.abort(h.AbortPush("r", 1)))
    queue.at(after_s + 0.01, lambda _: hand_offs.abort(h.AbortPush("r", 1)))
    queue.run()
    assert reported == [h.HandoffFailed("r", 1, "called off")]
    assert received == []
    assert hand_offs.sent == 0
    assert not sender.transfers
    assert not target.receive_link.transfers
    assert sender.carried_bytes == pytest.approx(after_s * 1000.0)
