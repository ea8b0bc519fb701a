"""Simulated time, and links of machines and what shares them: transfers, hand-offs, host memory, stages of an engine."""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.requests.record import KvHandoff, KvTarget
from spotwise.core.worker import commands as c
from spotwise.simulator.world.events import EventQueue
from spotwise.simulator.world.hand_offs import HandOffs
from spotwise.simulator.world.network import HostLink, Link, LinkTransfer, Network
from spotwise.simulator.world.orders import Pipeline
from tests.unit.simulator.world.worlds import settings


class Wires:
    """A network, and when which transfer was sent."""

    def __init__(self, private_bytes_per_s: float | None = None) -> None:
        self.queue = EventQueue()
        self.network = Network(self.queue, private_bytes_per_s)
        self.sent: dict[str, float] = {}

    def send(self, label: str, sender: Link, receiver: Link, num_bytes: float, at_s: float = 0.0) -> LinkTransfer:
        transfer = LinkTransfer(label, sender, receiver, self._note)
        self.queue.at(at_s, lambda _: self.network.add(transfer, num_bytes, is_last=True))
        return transfer

    def _note(self, transfer: LinkTransfer) -> None:
        self.sent[transfer.label] = self.queue.now


class TestNetwork:
    """The network divides a link's bandwidth among transfers."""

    def test_alone_a_transfer_goes_at_the_rate_of_the_slower_end(self) -> None:
        wires = Wires()
        wires.send("up", Link(100.0), Link(50.0), 100.0)
        wires.send("down", Link(25.0), Link(50.0), 100.0)
        wires.queue.run()
        assert wires.sent == {"up": 2.0, "down": 4.0}

    def test_two_from_one_sender_share_its_link(self) -> None:
        """Two transfers share the sender's link, and the longer one has the full rate after the shorter: 2 s at
        half, 1 s at full.
        """
        wires, sender = Wires(), Link(100.0)
        wires.send("short", sender, Link(100.0), 100.0)
        wires.send("long", sender, Link(100.0), 200.0)
        wires.queue.run()
        assert wires.sent == {"short": pytest.approx(2.0), "long": pytest.approx(3.0)}

    def test_private_links_are_not_shared(self) -> None:
        """Transfers pass through one another at one rate, whatever their ends carry; what was carried is counted."""
        wires, sender, receiver = Wires(50.0), Link(100.0), Link(10.0)
        wires.send("first", sender, receiver, 100.0)
        wires.send("second", sender, receiver, 200.0, at_s=1.0)
        wires.queue.run()
        assert wires.sent == {"first": pytest.approx(2.0), "second": pytest.approx(5.0)}
        assert (sender.carried_bytes, receiver.carried_bytes) == (300.0, 300.0)

    def test_two_to_one_receiver_share_its_link(self) -> None:
        """One that begins later takes its half from then on."""
        wires, receiver = Wires(), Link(100.0)
        wires.send("first", Link(100.0), receiver, 200.0)
        wires.send("second", Link(100.0), receiver, 50.0, at_s=1.0)
        wires.queue.run()
        assert wires.sent == {"second": pytest.approx(2.0), "first": pytest.approx(2.5)}

    def test_what_is_added_on_the_way_is_sent_too(self) -> None:
        """A transfer that has not got all its bytes yet is not over when it runs dry."""
        wires = Wires()
        transfer = LinkTransfer("parts", Link(100.0), Link(100.0), wires._note)
        for at_s, num_bytes, is_last in ((0.0, 100.0, False), (3.0, 100.0, False), (3.5, 50.0, True)):
            wires.queue.at(at_s, lambda add: wires.network.add(transfer, add[0], is_last=add[1]), (num_bytes, is_last))
        wires.queue.run()
        assert wires.sent == {"parts": pytest.approx(4.5)}
        assert transfer.sender.carried_bytes == pytest.approx(250.0)

    def test_a_last_part_without_bytes_ends_it_at_once(self) -> None:
        wires = Wires()
        transfer = LinkTransfer("dry", Link(100.0), Link(100.0), wires._note)
        wires.queue.at(0.0, lambda _: wires.network.add(transfer, 100.0, is_last=False))
        wires.queue.at(2.0, lambda _: wires.network.add(transfer, 0.0, is_last=True))
        wires.queue.run()
        assert wires.sent == {"dry": 2.0}

    def test_one_that_is_called_off_leaves_its_share_to_others(self) -> None:
        wires, sender = Wires(), Link(100.0)
        gone = wires.send("gone", sender, Link(100.0), 1000.0)
        wires.send("stays", sender, Link(100.0), 150.0)
        wires.queue.at(1.0, lambda _: wires.network.call_off(gone))
        wires.queue.run()
        assert wires.sent == {"stays": pytest.approx(2.0)}
        assert sender.carried_bytes == pytest.approx(200.0)
        assert gone.receiver.carried_bytes == pytest.approx(50.0)


class Host:
    """A link, and the times of its reports."""

    def __init__(self) -> None:
        self.queue = EventQueue()
        self.reported: list[tuple[str, float]] = []
        self.link = HostLink(1000.0, 100, self.queue, self._report)

    def _report(self, event: Any) -> None:
        assert isinstance(event, c.Swapped)
        self.reported.append((event.sequence_id, round(self.queue.now, 9)))

    def out(self, sequence_id: str, blocks: int) -> None:
        self.link.swap_out(c.SwapOut(sequence_id, (0,) * blocks, (0,) * blocks))

    def back(self, sequence_id: str, blocks: int) -> None:
        self.link.swap_in(c.SwapIn(sequence_id, (0,) * blocks, (0,) * blocks))


@pytest.mark.parametrize(
    ("out", "back", "reported"),
    [
        ([("a", 20, 0.0)], [], [("a", 2.0)]),
        ([("a", 10, 0.0), ("b", 5, 0.0)], [], [("a", 1.0), ("b", 1.5)]),
        ([("a", 10, 0.0)], [("b", 5, 0.0)], [("b", 0.5), ("a", 1.0)]),
        ([("a", 10, 0.0), ("b", 10, 5.0)], [], [("a", 1.0), ("b", 6.0)]),
    ],
    ids=["a copy", "one after the other", "both directions at once", "after a pause"],
)
def test_copies_of_one_direction_follow_one_another(
    out: list[tuple[str, int, float]], back: list[tuple[str, int, float]], reported: list[tuple[str, float]]
) -> None:
    """Each takes what its bytes take."""
    host = Host()
    for name, blocks, at_s in out:
        host.queue.at(at_s, partial(host.out, name), blocks)
    for name, blocks, at_s in back:
        host.queue.at(at_s, partial(host.back, name), blocks)
    host.queue.run()
    assert host.reported == reported
    assert (host.link.out_bytes, host.link.in_bytes) == tuple(100 * sum(each[1] for each in way) for way in (out, back))


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


@pytest.mark.parametrize(
    ("stages", "entered", "ends_s"),
    [
        (4, [(8.0, 100.0)], [108.0]),
        (2, [(2.0, 0.0)] * 3, [2.0, 3.0, 4.0]),
        (2, [(10.0, 0.0), (2.0, 1.0)], [10.0, 11.0]),
        (2, [(2.0, 0.0), (10.0, 0.0)], [2.0, 11.0]),
        (3, [(3.0, 0.0), (3.0, 50.0)], [3.0, 53.0]),
    ],
    ids=["alone", "one every stage time", "short behind long", "a bubble behind short", "run dry"],
)
def test_a_pipelines_stages_are_passed_in_turn(
    stages: int, entered: list[tuple[float, float]], ends_s: list[float]
) -> None:
    """Two stages compute two batches in the time of one and a half; a long one leaves those behind it idle, as in Orca."""
    pipeline = Pipeline(stages)
    assert [pipeline.entered(seconds, at_s) for seconds, at_s in entered] == pytest.approx(ends_s)


class TestEventQueue:
    """The order of events."""

    def test_events_happen_in_order_of_time_and_then_of_scheduling(self) -> None:
        queue = EventQueue()
        happened: list[str] = []
        for time_s, name in ((2.0, "late"), (1.0, "first"), (1.0, "second")):
            queue.at(time_s, happened.append, name)
        queue.run()
        assert happened == ["first", "second", "late"]
        assert queue.now == 2.0

    def test_what_an_event_schedules_for_now_comes_after_what_was_scheduled_for_now_before(self) -> None:
        queue = EventQueue()
        happened: list[str] = []

        def first(name: str) -> None:
            happened.append(name)
            queue.at(queue.now, happened.append, "caused")

        queue.at(1.0, first, "first")
        queue.at(1.0, happened.append, "second")
        queue.run()
        assert happened == ["first", "second", "caused"]

    @pytest.mark.parametrize("time_s", [0.5, math.nan])
    def test_the_past_and_no_time_at_all_are_refused(self, time_s: float) -> None:
        """A wrong sum of seconds must not go unnoticed."""
        queue = EventQueue()
        queue.at(1.0, lambda _: None)
        queue.run()
        with pytest.raises(ValueError, match="nothing can happen"):
            queue.at(time_s, lambda _: None)
        with pytest.raises(ValueError, match="nothing can happen"):
            queue.in_turn(time_s, lambda _: None, None)

    @given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 3))))
    def test_what_is_scheduled_in_turn_happens_when_it_would_otherwise(self, plan: list[tuple[bool, int, int]]) -> None:
        def run(*, with_turns: bool) -> list[tuple[float, int]]:
            queue = EventQueue()
            happened: list[tuple[float, int]] = []

            def happen(number: int) -> None:
                happened.append((queue.now, number))
                if number < len(plan):
                    in_turn, _, delay_s = plan[number]
                    schedule = queue.in_turn if in_turn and with_turns else queue.at
                    schedule(queue.now + delay_s, happen, number + len(plan))

            for number, (in_turn, time_s, _) in enumerate(plan):
                (queue.in_turn if in_turn and with_turns else queue.at)(time_s, happen, number)
            queue.run(3.0)
            happened.append((queue.now, -1))
            queue.run()
            assert queue.is_empty
            return happened

        assert run(with_turns=True) == run(with_turns=False)
