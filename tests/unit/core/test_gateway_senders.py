"""Tests of token senders: whose tokens count, and the effect of missing ones."""

from __future__ import annotations

import pytest

from spotwise.core.gateway.recovery import RecoveryLimits
from spotwise.core.messages import mesh as m
from spotwise.core.requests.request import FinishReason
from tests.unit.core.builders import ledger, worker_member
from tests.unit.core.gateway_bench import GatewayBench, delivered, submitted

ERROR = m.TokenDelta(1, 0, None, FinishReason.ERROR, "broken", retryable=True)


def batch(number: int | None, *deltas: tuple[int, int, int], worker: str = "t", incarnation: int = 1) -> m.TokenBatch:
    """A worker's batch of (stream, index, token id)."""
    return m.TokenBatch(worker, tuple(m.TokenDelta(*delta) for delta in deltas), incarnation, number)


def beat(batches_sent: int, *, to: int = 0, incarnation: int = 1) -> m.Member:
    """The token worker's heartbeat."""
    return worker_member("t", incarnation=incarnation, gateways=(m.GatewayStreams("g", to, batches_sent),))


@pytest.fixture
def bench() -> GatewayBench:
    """One request, at workers `p` and `t`."""
    made = GatewayBench()
    made.open()
    return made


class TestSenders:
    """A token counts from the attempt's workers only."""

    def test_another_worker_is_ignored(self, bench: GatewayBench) -> None:
        """Whatever stream it names, be it a token or an ending."""
        assert bench.feed(batch(1, (1, 0, 66), worker="stranger")) == []
        assert bench.feed(m.TokenBatch("stranger", (ERROR,), 1, 2)) == []
        assert delivered(bench.tokens((0, 50), worker="p")) == [50]

    def test_a_scheduler_may_end_an_attempt(self, bench: GatewayBench) -> None:
        """A scheduler's error ends an attempt although its batch has no number."""
        assert submitted(bench.feed(m.TokenBatch("s", (ERROR,)))) == [(2, 2, ())]

    def test_without_the_schedulers_word_tokens_name_their_worker(self) -> None:
        """The sender's loss is the attempt's, and the first token is the prompt worker's, whatever comes first."""
        for order in ((0, 1), (1, 0)):
            bench = GatewayBench()
            bench.feed(worker_member("t"))
            bench.open(workers=None)
            batches = [batch(1, (1, 0, 50), worker="p"), batch(1, (1, 1, 51))]
            reported = [delivered(bench.feed(batches[number])) for number in order]
            assert [*reported[0], *reported[1]] == [50, 51]
            assert bench.feed(worker_member("p", state=m.MemberState.LEFT)) == []
            assert submitted(bench.feed(worker_member("t", state=m.MemberState.LEFT))) == [(2, 2, (50, 51))]

    def test_the_schedulers_word_may_come_after_the_tokens(self) -> None:
        """From the scheduler's late message on only the named sender counts; losing the prompt worker does not matter."""
        bench = GatewayBench()
        bench.open(workers=None)
        bench.feed(batch(1, (1, 0, 50), worker="p"))
        bench.feed(batch(1, (1, 1, 51)))
        bench.assigned()
        assert bench.feed(batch(1, (1, 2, 66), worker="stranger")) == []
        bench.feed(worker_member("p"))
        assert bench.feed(worker_member("p", state=m.MemberState.LEFT)) == []
        assert delivered(bench.feed(batch(2, (1, 2, 52)))) == [52]


class TestMissingTokens:
    """Missing tokens are noticed within a second, and only the attempts that lack them fail."""

    def test_an_index_that_is_passed_over_is_lost_after_a_second(self, bench: GatewayBench) -> None:
        bench.tokens((0, 50), (2, 52))
        assert bench.tick(after_s=0.9) == []
        commands = bench.tick(after_s=0.2)
        assert submitted(commands) == [(2, 2, (50,))]
        assert ledger(commands, "attempt_lost")[0]["reason"] == "tokens were lost on their way"

    def test_one_that_comes_late_costs_nothing(self, bench: GatewayBench) -> None:
        bench.tokens((0, 50), (2, 52), (4, 54))
        assert delivered(bench.tokens((1, 51), after_s=0.9)) == [51, 52]
        assert bench.tick(after_s=0.9) == []
        assert submitted(bench.tick(after_s=0.2)) == [(2, 2, (50, 51, 52))]

    def test_a_lost_batch_costs_those_that_bring_nothing_more(self) -> None:
        """A lost batch's tokens are unknown: streams that continue without a gap lost none, and the others are retried."""
        bench = GatewayBench()
        for choice_id in ("goes on", "waits", "elsewhere"):
            bench.open(choice_id, workers=("p", "t") if choice_id != "elsewhere" else ("p", "other"))
        bench.feed(batch(1, (1, 0, 50), (2, 0, 60)))
        bench.feed(batch(3, (1, 1, 51)))
        assert submitted(bench.tick(after_s=1.1)) == [(2, 4, (60,))]

    def test_a_last_batch_is_missed_by_its_workers_count(self, bench: GatewayBench) -> None:
        """No token follows the last batch: its loss shows only in the heartbeats' count, which may overtake it."""
        bench.feed(batch(1, (1, 0, 50)))
        for _ in range(5):
            assert submitted(bench.feed(beat(2), after_s=0.19)) == []
        assert bench.tick() == []
        assert submitted(bench.tick(after_s=0.3)) == [(2, 2, (50,))]

    def test_a_lost_batch_costs_the_next_attempt_nothing(self, bench: GatewayBench) -> None:
        """Though it is at the same worker: what was lost was the last attempt's."""
        bench.feed(batch(1))
        bench.feed(batch(3))
        assert submitted(bench.feed(m.TokenBatch("s", (ERROR,)))) == [(2, 2, ())]
        bench.feed(m.RequestAccepted("r", 2))
        bench.assigned(epoch=2)
        assert bench.tick(after_s=1.5) == []

    def test_a_last_batch_is_missed_once(self, bench: GatewayBench) -> None:
        """Heartbeats count it ever after; the next attempt, at the same worker, lacks nothing."""
        bench.feed(batch(1, (1, 0, 50)))
        bench.feed(beat(2))
        assert submitted(bench.tick(after_s=1.1)) == [(2, 2, (50,))]
        bench.feed(m.RequestAccepted("r", 2))
        bench.assigned(epoch=2)
        for _ in range(10):
            assert submitted([*bench.feed(beat(2), after_s=0.3), *bench.tick()]) == []

    def test_counts_of_what_came_or_was_meant_for_others_cost_nothing(self, bench: GatewayBench) -> None:
        """The gateway before this one, and a late word of the worker before this one."""
        bench.feed(batch(1, (1, 0, 50), incarnation=2))
        for heartbeat in (beat(1, incarnation=2), beat(9, to=4, incarnation=2), beat(9, incarnation=1)):
            bench.feed(heartbeat)
        assert bench.tick(after_s=1.5) == []

    def test_a_batch_that_overtakes_its_count_closes_the_gap(self, bench: GatewayBench) -> None:
        bench.feed(beat(1))
        bench.feed(batch(1, (1, 0, 50)), after_s=0.5)
        assert bench.tick(after_s=0.9) == []

    def test_a_worker_that_forgot_the_gateway_counts_from_one(self, bench: GatewayBench) -> None:
        bench.feed(batch(1, (1, 0, 50)))
        bench.feed(batch(2, (1, 1, 51)))
        bench.feed(batch(1, (1, 2, 52)))
        bench.feed(batch(2, (1, 3, 53)))
        assert bench.tick(after_s=1.5) == []

    def test_time_away_is_no_gap(self) -> None:
        """The time of a gateway's suspension does not count toward a gap, since no message could arrive."""
        bench = GatewayBench(RecoveryLimits(member_timeout_s=1e9))
        bench.open()
        bench.tokens((0, 50), (2, 52))
        bench.feed(beat(7))
        assert bench.feed(m.Tick(away_s=3.0), after_s=3.0) == []
        assert submitted(bench.tick(after_s=1.1)) == [(2, 2, (50,))]


class TestTimeAway:
    """A gateway that could receive nothing takes no worker for lost."""

    def test_silence_while_the_gateway_was_away_loses_no_worker(self) -> None:
        """Silence during a gateway's suspension neither loses a worker nor stalls a stream; silence after it does."""
        bench = GatewayBench(RecoveryLimits(stall_s=60.0))
        bench.open()
        bench.feed(worker_member("t"))
        assert bench.feed(m.Tick(away_s=100.0), after_s=100.0) == []
        assert bench.tick(after_s=1.9) == []
        assert submitted(bench.tick(after_s=0.2)) == [(2, 2, ())]
