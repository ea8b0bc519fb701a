"""The window of the load against all arrivals of the reports that came."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.fleet.demand import KNOWN_S, MOST_AHEAD_S, DemandWindow
from spotwise.core.gateway.load_meter import LOAD_REPORT_S, LoadMeter
from spotwise.core.messages.fleet import LoadReported
from spotwise.core.parallel.arrivals import LEAST_GAPS

WINDOW_S, LEAST_SPAN_S = 30.0, 5.0
GATEWAYS = ("a", "b", "c")
#: Quarters of a second are exact, so that the bounds of the window are met.
SECONDS = st.integers(0, 240).map(lambda quarters: 1000.0 + quarters / 4)
ARRIVAL = st.tuples(SECONDS, st.sampled_from(GATEWAYS), st.integers(1, 50))
ARRIVALS = st.lists(ARRIVAL, min_size=30, max_size=90) | st.lists(ARRIVAL, max_size=5)
#: Of a report: whether it is lost, by how much it is late, how often it comes.
FATES = st.lists(st.tuples(st.booleans(), st.integers(0, 80).map(lambda late: late / 4), st.integers(1, 3)), min_size=8)

Heard = list[tuple[float, LoadReported]]


def heard(arrivals: list[tuple[float, str, int]], fates: list[tuple[bool, float, int]]) -> Heard:
    """The reports as they come: metered each second, some lost, late or repeated; each request ends with as many tokens."""
    reports: Heard = []
    number = 0
    for name in GATEWAYS:
        meter = LoadMeter(name, 1)
        mine = sorted((at_s, tokens) for at_s, gateway, tokens in arrivals if gateway == name)
        for second in range(1001, 1066):
            for at_s, tokens in [each for each in mine if second - 1 <= each[0] < second]:
                meter.arrived(tokens, at_s)
                meter.finished(2 * tokens)
            for report in meter.reports(0, float(second)) if meter.is_due(float(second)) else ():
                is_lost, late_s, times = fates[number % len(fates)]
                number += 1
                if not is_lost:
                    reports += [(second + late_s + 3 * time, report) for time in range(times)]
    return sorted(reports, key=lambda each: (each[0], each[1].gateway_id, each[1].number))


def in_order(reports: Heard) -> Heard:
    """Those that count: of each gateway the ascending ones."""
    last: dict[str, int] = {}
    counted: Heard = []
    for at_s, report in reports:
        if report.number > last.get(report.gateway_id, 0):
            last[report.gateway_id] = report.number
            counted.append((at_s, report))
    return counted


def fed(reports: Heard) -> DemandWindow:
    window = DemandWindow(WINDOW_S, least_span_s=LEAST_SPAN_S, input_tokens=7, output_tokens=9)
    for at_s, report in reports:
        window.add(report, at_s)
    return window


def state(window: DemandWindow, now: float) -> tuple[float, float | None, int, int]:
    return window.rate(now), window.cv(now), window.input_tokens, window.output_tokens


def expected(counted: Heard, now: float) -> tuple[float, float | None, int, int]:
    """The same from the whole history."""
    if not counted:
        return 0.0, None, 7, 9
    restarts = [0] + [index + 1 for index, (one, other) in enumerate(pairwise(counted)) if other[0] - one[0] > KNOWN_S]
    began_s = counted[restarts[-1]][0] - LOAD_REPORT_S
    arrivals_s = sorted(
        at_s
        for _, report in counted[restarts[-1] :]
        for at_s in report.arrivals_s
        if at_s >= began_s and at_s > now - WINDOW_S
    )
    rate = len(arrivals_s) / max(LEAST_SPAN_S, min(WINDOW_S, now - began_s))
    gaps_s = [later - earlier for earlier, later in pairwise(arrivals_s)]
    cv = None
    if len(gaps_s) >= LEAST_GAPS and any(gaps_s):
        mean_s = sum(gaps_s) / len(gaps_s)
        cv = math.sqrt(sum((gap_s - mean_s) ** 2 for gap_s in gaps_s) / len(gaps_s)) / mean_s
    inputs = [(at_s, len(report.arrivals_s), report.prompt_tokens) for at_s, report in counted]
    outputs = [(at_s, report.finished, report.output_tokens) for at_s, report in counted]
    return rate, cv, _mean(inputs, 7), _mean(outputs, 9)


def _mean(counts: list[tuple[float, int, int]], unknown: int) -> int:
    some = [each for each in counts if each[1]]
    recent = [each for each in some if each[0] > some[-1][0] - WINDOW_S]
    return max(1, round(sum(each[2] for each in recent) / sum(each[1] for each in recent))) if recent else unknown


@given(ARRIVALS, FATES, SECONDS)
def test_the_window_is_what_the_history_says(
    arrivals: list[tuple[float, str, int]], fates: list[tuple[bool, float, int]], later_s: float
) -> None:
    """Whatever is lost, late, repeated or out of order, at each moment."""
    reports = heard(arrivals, fates)
    window = DemandWindow(WINDOW_S, least_span_s=LEAST_SPAN_S, input_tokens=7, output_tokens=9)
    for index, (at_s, report) in enumerate(reports):
        window.add(report, at_s)
        if index % 7 == 0:
            assert state(window, at_s) == pytest.approx(expected(in_order(reports[: index + 1]), at_s))
    counted = in_order(reports)
    now = max(later_s, reports[-1][0] if reports else 0.0)
    assert state(window, now) == pytest.approx(expected(counted, now))
    assert window.is_known(now) == any(now - at_s <= KNOWN_S for at_s, _ in counted)


@given(ARRIVALS, FATES)
def test_repetitions_change_nothing(
    arrivals: list[tuple[float, str, int]], fates: list[tuple[bool, float, int]]
) -> None:
    reports = heard(arrivals, fates)
    now = reports[-1][0] if reports else 1000.0
    assert state(fed(reports), now) == state(fed(in_order(reports)), now)


@given(ARRIVALS, st.data())
def test_a_lost_report_costs_its_own_arrivals(arrivals: list[tuple[float, str, int]], data: st.DataObject) -> None:
    """The rate is less by as many, where the rest of the gateways' reports come."""
    reports = heard(arrivals, [(False, 0.0, 1)])
    lost = data.draw(st.integers(1, len(reports) - 2))
    now = reports[-1][0]
    in_window = [at_s for at_s in reports[lost][1].arrivals_s if at_s > now - WINDOW_S]
    without = fed(reports[:lost] + reports[lost + 1 :])
    assert without.rate(now) == pytest.approx(fed(reports).rate(now) - len(in_window) / WINDOW_S)


@given(ARRIVALS, st.permutations(GATEWAYS))
def test_the_order_among_gateways_is_of_no_account(arrivals: list[tuple[float, str, int]], order: list[str]) -> None:
    """Reports that come at one time give the same window in any order of their gateways."""
    reports = heard(arrivals, [(False, 0.0, 1)])
    other = sorted(reports, key=lambda each: (each[0], order.index(each[1].gateway_id), each[1].number))
    now = reports[-1][0]
    assert state(fed(other), now) == state(fed(reports), now)


@given(ARRIVALS, st.floats(MOST_AHEAD_S, 1e6))
def test_a_clock_that_is_ahead_is_set_back(arrivals: list[tuple[float, str, int]], ahead_s: float) -> None:
    reports = [
        (at_s, LoadReported("a", 1, number, tuple(arrived_s + ahead_s + 1.0 for arrived_s in report.arrivals_s)))
        for number, (at_s, report) in enumerate(heard(arrivals, [(False, 0.0, 1)]), 1)
    ]
    window = fed(reports)
    now = reports[-1][0]
    counted = [arrived_s for at_s, report in reports for arrived_s in report.arrivals_s if at_s > now - WINDOW_S + 1]
    assert window.rate(now) * WINDOW_S >= len(counted) - 1e-6
    assert window.rate(now + WINDOW_S + MOST_AHEAD_S) == 0.0
