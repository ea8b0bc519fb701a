"""How long a member could receive no messages."""

from __future__ import annotations

import pytest

from spotwise.mesh.process.pulse import Attention


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class TestAttention:
    """Ticks every 0.2 s, heartbeats every 0.25 s."""

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def attention(self, clock: Clock) -> Attention:
        return Attention(0.25, 0.2, clock)

    def test_in_time_and_hearing_itself_it_is_never_away(self, clock: Clock, attention: Attention) -> None:
        for _ in range(20):
            clock.now += 0.6
            attention.received_own_heartbeat()
            assert attention.away_s() == 0.0

    def test_a_suspended_process_was_away(self, clock: Clock, attention: Attention) -> None:
        clock.now += 3.0
        assert attention.away_s() == pytest.approx(3.0)
        attention.received_own_heartbeat()
        clock.now += 0.2
        assert attention.away_s() == 0.0

    def test_a_suspended_broker_is_time_away(self, clock: Clock, attention: Attention) -> None:
        """A suspended broker counts as away from the third missing heartbeat until one arrives."""
        away_s = 0.0
        for _ in range(15):
            clock.now += 0.2
            away_s += attention.away_s()
        assert away_s == pytest.approx(3.0 - 0.6)
        attention.received_own_heartbeat()
        clock.now += 0.2
        assert attention.away_s() == 0.0
