"""What transfers take, and the paper's estimate."""

from __future__ import annotations

import pytest

from spotwise.core.migration.deployment import Device
from spotwise.core.migration.planning.link_times import Links, Ports, paper_seconds

LINKS = Links(within_bytes_per_s=100.0, between_bytes_per_s=20.0, storage_bytes_per_s=5.0, transfer_s=0.5, groups_s=2.0)
A0, A1, B0, C0 = Device("a", 0), Device("a", 1), Device("b", 0), Device("c", 0)


class TestPorts:
    """Devices 0 and 1 are of instance 0, device 2 of instance 1."""

    def test_each_way_has_its_rate(self) -> None:
        ports = Ports(LINKS, [0, 0, 1])
        assert ports.seconds(0, 1, 100) == pytest.approx(1.5)
        assert ports.seconds(0, 2, 100) == pytest.approx(5.5)
        assert ports.seconds(None, 2, 100) == pytest.approx(20.5)

    def test_devices_of_an_instance_share_its_network_and_its_storage_but_not_their_own_ports(self) -> None:
        """A device has separate ports for sending and receiving, so both directions run at once."""
        ports = Ports(LINKS, [0, 0, 1])
        assert ports.of(0, 2) == ports.of(1, 2)
        assert ports.of(None, 0) == ports.of(None, 1) != ports.of(None, 2)
        assert not {*ports.of(0, 2)} & {*ports.of(2, 0)}
        assert not {*ports.of(0, 1)} & {*ports.of(1, 0)}

    def test_an_instance_receives_over_its_downlink_its_storage_and_its_devices_entries(self) -> None:
        ports = Ports(LINKS, [0, 0, 1])
        assert {*ports.into(0)} == {ports.of(2, 0)[1], ports.of(None, 0)[1], ports.of(0, 1)[1], ports.of(1, 0)[1]}
        assert len({port for instance in (0, 1) for port in ports.into(instance)}) == 7


class TestPaperSeconds:
    """The most over the network, the most inside, and what is fixed."""

    def test_the_busier_direction_of_the_busiest_instance_counts(self) -> None:
        """Device a0 sends 100 to each of two; 120 move within a."""
        moved = [(A0, B0, 100), (A0, C0, 100), (B0, C0, 60), (A0, A1, 120)]
        assert paper_seconds(LINKS, moved) == pytest.approx(200 / 20 + 120 / 100 + 2.0)

    def test_storage_is_a_term_of_its_own(self) -> None:
        """The paper leaves it out; loading takes its time all the same."""
        assert paper_seconds(LINKS, [(None, A0, 30), (None, A1, 20), (None, B0, 40)]) == pytest.approx(50 / 5 + 2.0)

    def test_nothing_moved_costs_what_is_fixed(self) -> None:
        """A plan without bytes costs the fixed part, for groups are built anew."""
        assert paper_seconds(LINKS, []) == 2.0


@pytest.mark.parametrize("wrong", [{"between_bytes_per_s": 0.0}, {"transfer_s": -1.0}])
def test_links_that_carry_nothing_or_gain_time_are_refused(wrong: dict[str, float]) -> None:
    rates = {"within_bytes_per_s": 1.0, "between_bytes_per_s": 1.0, "storage_bytes_per_s": 1.0}
    with pytest.raises(ValueError, match=r"must carry|fixed cost"):
        Links(**{**rates, **wrong})
