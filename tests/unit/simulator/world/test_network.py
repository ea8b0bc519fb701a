"""Transfers that share links."""

from __future__ import annotations

import pytest

from spotwise.simulator.world.events import EventQueue
from spotwise.simulator.world.network import Link, LinkTransfer, Network


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
        """A transfer whose last part is empty ends at once if all earlier bytes were sent."""
        wires = Wires()
        transfer = LinkTransfer("dry", Link(100.0), Link(100.0), wires._note)
        wires.queue.at(0.0, lambda _: wires.network.add(transfer, 100.0, is_last=False))
        wires.queue.at(2.0, lambda _: wires.network.add(transfer, 0.0, is_last=True))
        wires.queue.run()
        assert wires.sent == {"dry": 2.0}

    def test_one_that_is_called_off_leaves_its_share_to_others(self) -> None:
        """The bytes sent before the cancellation count as carried, and no end is reported."""
        wires, sender = Wires(), Link(100.0)
        gone = wires.send("gone", sender, Link(100.0), 1000.0)
        wires.send("stays", sender, Link(100.0), 150.0)
        wires.queue.at(1.0, lambda _: wires.network.call_off(gone))
        wires.queue.run()
        assert wires.sent == {"stays": pytest.approx(2.0)}
        assert sender.carried_bytes == pytest.approx(200.0)
        assert gone.receiver.carried_bytes == pytest.approx(50.0)
