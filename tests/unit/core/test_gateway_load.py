"""What a gateway reports of its load: each sequence once."""

from __future__ import annotations

import pytest

from spotwise.core.gateway import commands as g
from spotwise.core.gateway.load_meter import IDLE_REPORT_S, LATE_S, LOAD_REPORT_S, MOST_ARRIVALS, LoadMeter
from spotwise.core.gateway.recovery import RecoveryLimits
from spotwise.core.gateway.role import GatewayRole
from spotwise.core.messages import mesh as m
from spotwise.core.requests.request import FinishReason
from tests.unit.core.builders import only
from tests.unit.core.gateway_bench import GatewayBench

LIMITS = RecoveryLimits(recovery_s=5.0, retry_pause_s=0.5)


@pytest.fixture
def bench() -> GatewayBench:
    """A gateway that has made its first report, of nothing."""
    made = GatewayBench()
    made.role = GatewayRole("g", LIMITS, 7, load_report_s=LOAD_REPORT_S)
    assert reports(made.tick()) == [m.LoadReported("g", 7, 1)]
    return made


def reports(commands: list[g.GatewayCommand]) -> list[m.LoadReported]:
    return [command.report for command in only(commands, g.PublishLoad)]


def next_report(bench: GatewayBench) -> m.LoadReported:
    """The one report of the next second."""
    (report,) = reports(bench.tick(LOAD_REPORT_S))
    return report


def counts(report: m.LoadReported) -> tuple[int, int, int, int]:
    """(arrivals, prompt tokens, finished, output tokens)."""
    return len(report.arrivals_s), report.prompt_tokens, report.finished, report.output_tokens


def test_a_request_counts_at_its_arrival_and_its_output_at_its_end(bench: GatewayBench) -> None:
    bench.open()
    arrived_s = bench.now
    bench.tokens((0, 50))
    assert next_report(bench) == m.LoadReported("g", 7, 2, (arrived_s,), prompt_tokens=30)
    bench.tokens((1, 51), (2, 52), finish=FinishReason.LENGTH)
    assert next_report(bench) == m.LoadReported("g", 7, 3, finished=1, output_tokens=3)


def test_a_recovered_request_counts_once(bench: GatewayBench) -> None:
    """Neither its attempts nor the tokens before a loss count again; its prompt counts without its output."""
    bench.open()
    bench.tokens((0, 50), (1, 51))
    bench.error(index=2)
    bench.assigned(epoch=2)
    bench.tokens((2, 52), stream=2, finish=FinishReason.STOP)
    assert counts(next_report(bench)) == (1, 30, 1, 3)


def test_a_request_that_its_client_leaves_has_come_and_not_finished(bench: GatewayBench) -> None:
    bench.open()
    bench.tokens((0, 50))
    bench.feed(g.RequestClosed("r"))
    assert counts(next_report(bench)) == (1, 30, 0, 0)


def test_a_stop_string_ends_a_request_in_order(bench: GatewayBench) -> None:
    """The gateway ends it with the tokens so far; the end is counted once."""
    bench.open()
    bench.tokens((0, 50), (1, 51))
    bench.feed(g.RequestClosed("r", text_ended=True))
    bench.feed(g.RequestClosed("r", text_ended=True))
    assert counts(next_report(bench)) == (1, 30, 1, 2)


def test_the_close_that_follows_an_end_counts_nothing(bench: GatewayBench) -> None:
    bench.open()
    bench.tokens((0, 50), finish=FinishReason.LENGTH)
    bench.feed(g.RequestClosed("r"))
    assert counts(next_report(bench)) == (1, 30, 1, 1)


@pytest.mark.parametrize("code", [m.RejectCode.MESH_FULL, m.RejectCode.NO_WORKERS, m.RejectCode.QUEUE_TIMEOUT])
def test_a_rejected_request_is_load(bench: GatewayBench, code: m.RejectCode) -> None:
    """The mesh is too small for it, which the planner has to know."""
    bench.open(workers=None)
    bench.rejected(code=code)
    assert counts(next_report(bench)) == (1, 30, 0, 0)


def test_a_request_without_a_scheduler_is_load(bench: GatewayBench) -> None:
    bench.open(workers=None)
    bench.feed(g.SubmitFailed("r", 1, "no scheduler"))
    assert counts(next_report(bench)) == (1, 30, 0, 0)


def test_a_request_that_fails_or_is_aborted_has_not_finished(bench: GatewayBench) -> None:
    bench.open("a")
    bench.open("b")
    bench.error(stream=1, retryable=False)
    bench.tokens((0, 50), stream=2, finish=FinishReason.ABORT)
    assert bench.role.open_requests == 0
    assert counts(next_report(bench)) == (2, 60, 0, 0)


def test_each_choice_of_a_request_counts(bench: GatewayBench) -> None:
    for index in range(3):
        bench.open(f"r#{index}")
        bench.tokens((0, 50), stream=index + 1, finish=FinishReason.LENGTH)
    assert counts(next_report(bench)) == (3, 90, 3, 3)


def test_reports_come_each_second_and_each_five_while_there_is_nothing(bench: GatewayBench) -> None:
    bench.open()
    assert reports(bench.tick(0.5)) == []
    assert next_report(bench).number == 2
    ticks = [reports(bench.tick(0.5)) for _ in range(11)]
    assert [bool(made) for made in ticks] == [False] * 9 + [True, False]
    assert ticks[9] == [m.LoadReported("g", 7, 3)]
    assert IDLE_REPORT_S == 9 * 0.5 + 0.5


def test_a_request_without_a_token_for_long_is_late(bench: GatewayBench) -> None:
    """Each report says it anew until its first token comes; one that decodes for long is not late."""
    bench.open("a")
    bench.open("b")
    bench.tokens((0, 50), stream=2)
    bench.now += LATE_S
    assert next_report(bench).late == 1
    (later,) = [report for _ in range(10) for report in reports(bench.tick(0.5))]
    assert (later.late, later.arrivals_s) == (1, ())
    bench.tokens((0, 50), stream=1)
    (last,) = [report for _ in range(10) for report in reports(bench.tick(0.5))]
    assert last.late == 0


def test_a_gateway_without_an_interval_reports_nothing() -> None:
    bench = GatewayBench()
    bench.open()
    assert reports(bench.tick(10.0)) == []


def test_many_arrivals_take_several_reports() -> None:
    """None is left out or counted twice, and the totals belong to the arrivals beside them."""
    meter = LoadMeter("g", 7)
    meter.reports(0, 0.0)
    moments_s = [index / 10_000 for index in range(2 * MOST_ARRIVALS + 5)]
    for at_s in moments_s:
        meter.arrived(3, at_s)
    meter.finished(8)
    made = meter.reports(2, 1.0)
    assert [counts(report) for report in made] == [
        (MOST_ARRIVALS, 3 * MOST_ARRIVALS, 0, 0),
        (MOST_ARRIVALS, 3 * MOST_ARRIVALS, 0, 0),
        (5, 15, 1, 8),
    ]
    assert [report.number for report in made] == [2, 3, 4]
    assert [report.late for report in made] == [0, 0, 2]
    assert [at_s for report in made for at_s in report.arrivals_s] == moments_s


def test_a_full_report_is_not_followed_by_an_empty_one() -> None:
    meter = LoadMeter("g", 7)
    for _ in range(MOST_ARRIVALS):
        meter.arrived(1, 0.0)
    assert [counts(report) for report in meter.reports(0, 0.0)] == [(MOST_ARRIVALS, MOST_ARRIVALS, 0, 0)]
    assert not meter.is_due(0.5)
