"""A gateway and clients that do not take their tokens: nothing is generated for them meanwhile."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.gateway import commands as g
from spotwise.core.gateway.recovery import RecoveryLimits
from spotwise.core.messages import mesh as m
from tests.unit.core.builders import ledger, only, plain_member, worker_member
from tests.unit.core.gateway_bench import GatewayBench, delivered, submitted


def parked_bench() -> GatewayBench:
    """A gateway with a request of two tokens whose client stalls."""
    bench = GatewayBench(RecoveryLimits(recovery_s=5.0, stall_s=20.0, unheld_s=10.0))
    for member in (worker_member("p"), worker_member("t")):
        bench.feed(member)
    bench.open()
    bench.tokens((0, 50), (1, 51))
    commands = bench.feed(g.ReaderStalled("r"))
    assert only(commands, g.ParkAttempts) == [g.ParkAttempts(m.CloseRequest("r", 1, finished=False, workers=("t",)))]
    assert ledger(commands, "parked") == [{"tokens": 2}]
    return bench


def test_a_parked_request_goes_on_from_its_tokens_when_its_client_has_read() -> None:
    """It waits without an attempt for as long as it takes, and what still comes of the former one changes nothing."""
    bench = parked_bench()
    assert not bench.role.is_open("r", 1)
    assert delivered(bench.tokens((2, 52))) == []
    for _ in range(60):
        assert not submitted(bench.tick(after_s=1.0))
    assert ledger(bench.feed(g.ReaderCaughtUp("r")), "unparked") == [{}]
    assert submitted(bench.tick()) == [(2, 2, (50, 51))]
    assert delivered(bench.tokens((2, 52), stream=2)) == [52]


def test_holders_of_a_parked_attempt_learn_that_it_is_over() -> None:
    """However the message about its end fared: those that ask, and one to which it moved meanwhile."""
    bench = parked_bench()
    ended = m.AttemptsConfirmed((("r", 1),))
    assert bench.feed(m.ConfirmAttempts("t", (("r", 1),), assigned=True)) == [m.Send("t", ended)]
    moved = m.RequestMoved("r", 1, attempt_id=1, worker_id="t2", source_id="t", hop=1, first_index=1, token_ids=())
    assert bench.feed(moved) == [m.Send("t2", ended)]


def test_losses_are_nothing_to_a_parked_request() -> None:
    """Neither workers, the broker nor a scheduler that takes over begins an attempt, and late answers do not end it."""
    bench = parked_bench()
    scheduler = replace(plain_member("s", m.MemberKind.CLUSTER_SCHEDULER), term=5)
    events = (
        scheduler,
        replace(scheduler, id="s2", term=6),
        g.BusReconnected(),
        g.SubmitFailed("r", 1, "late"),
        m.RequestRejected("r", 1, m.RejectCode.NEVER_FITS, "late"),
        m.RequestAssigned("r", 1, "p", "t"),
        replace(worker_member("t"), state=m.MemberState.LOST),
    )
    for event in events:
        assert not submitted(bench.feed(event))
        assert not submitted(bench.tick(after_s=0.5))
    assert bench.role.open_requests == 1
    bench.feed(g.ReaderCaughtUp("r"))
    assert submitted(bench.tick()) == [(2, 2, (50, 51))]


def test_a_parked_request_ends_with_its_client_and_at_its_deadline() -> None:
    bench = parked_bench()
    assert only(bench.feed(g.RequestClosed("r")), g.CloseAttempts)
    assert bench.role.open_requests == 0
    bench.feed(g.RequestReceived("d", 30, 10, deadline_unix_s=bench.now + 5))
    bench.assigned("d")
    bench.tokens((0, 50), stream=2)
    bench.feed(g.ReaderStalled("d"))
    assert only(bench.tick(after_s=6.0), g.Fail)


def test_only_a_request_with_tokens_is_parked_and_once() -> None:
    bench = GatewayBench()
    bench.open()
    assert bench.feed(g.ReaderStalled("r")) == []
    assert bench.feed(g.ReaderCaughtUp("r")) == []
    assert bench.feed(g.ReaderStalled("unknown")) == []
    bench.tokens((0, 50))
    assert bench.feed(g.ReaderStalled("r"))
    assert bench.feed(g.ReaderStalled("r")) == []
