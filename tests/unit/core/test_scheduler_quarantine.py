"""Tests of quarantine: what a scheduler learns from requests whose hand-offs failed."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.messages import mesh as m
from spotwise.core.scheduler.quarantine import FIRST_S
from spotwise.core.scheduler.role import SchedulerLimits
from tests.unit.core.builders import ledger, only
from tests.unit.core.scheduler_bench import PROMPT, TOKEN, SchedulerBench, submission

PATIENT = SchedulerLimits(member_timeout_s=10_000.0, max_queue_s=10_000.0)
BAD = ("p", "t")


def fail(bench: SchedulerBench, choice_id: str) -> list[m.StartPrefill]:
    """A request's hand-off fails; the orders of its next attempt for one worker alone."""
    bench.assign(choice_id)
    return only(bench.feed(replace(submission(choice_id, 2), avoid=(BAD,))), m.StartPrefill)


def bench_after_failures(*choice_ids: str) -> SchedulerBench:
    bench = SchedulerBench(limits=PATIENT)
    for choice_id in choice_ids:
        fail(bench, choice_id)
    return bench


def test_the_next_attempt_is_served_in_place_with_its_reason() -> None:
    """The attempt is served on the token worker, and its ledger has the rule."""
    bench = SchedulerBench()
    (start,) = fail(bench, "r")
    assert start.target.worker_id == "t"
    commands = bench.feed(m.PrefillAccepted("r", 2, start.assignment, "t"))
    assert ledger(commands, "assigned")[0]["placed_by"] == "bad_pair"


def test_a_pair_that_failed_twice_is_quarantined() -> None:
    """New requests avoid it, and it is shown; after a while it is tried again."""
    bench = bench_after_failures("a")
    assert bench.role.quarantined(bench.now) == ()
    fail(bench, "b")
    assert bench.role.quarantined(bench.now) == (m.QuarantinedPair("p", "t", 2, bench.now + FIRST_S),)
    assert only(bench.feed(submission("c")), m.StartPrefill)
    assert bench.role.quarantined(bench.now + FIRST_S) == ()
    assert only(bench.feed(submission("d"), after_s=FIRST_S), m.ReserveKv)
    assert only(bench.feed(submission("e")), m.StartPrefill)  # while the one before is a trial


def test_a_request_counts_a_failure_once() -> None:
    """Later attempts repeat the failed pair, since they still avoid it."""
    bench = bench_after_failures("a")
    bench.feed(replace(submission("a", 3), avoid=(BAD,)))
    bench.feed(replace(submission("a", 4), avoid=(BAD, ("u",))))
    assert bench.role.quarantined(bench.now) == ()


def test_a_request_that_ends_well_clears_its_pair() -> None:
    """The request must have been placed after the failure and have passed the hand-off."""
    bench = bench_after_failures("a")
    bench.now += 1.0
    bench.assign("b")
    bench.feed(m.CloseRequest("b", 1, finished=True))
    fail(bench, "c")
    assert bench.role.quarantined(bench.now) == ()


def test_a_restarted_worker_starts_anew() -> None:
    """The failures of a pair are dropped when one of its workers restarts or leaves."""
    bench = bench_after_failures("a", "b")
    bench.feed(replace(TOKEN, incarnation=2))
    assert bench.role.quarantined(bench.now) == ()
    bench.feed(replace(PROMPT, state=m.MemberState.LEFT))
    fail_unknown = replace(submission("x"), avoid=(BAD,))
    bench.feed(fail_unknown)
    bench.feed(replace(fail_unknown, choice_id="y"))
    assert bench.role.quarantined(bench.now) == ()


def test_a_new_scheduler_accepts_the_pairs_that_attempts_avoid() -> None:
    """A new scheduler has no record of earlier attempts, so it counts the pairs that later ones avoid."""
    bench = SchedulerBench(limits=PATIENT)
    for choice_id in "ab":
        bench.feed(replace(submission(choice_id, 2), avoid=(BAD,)))
    assert len(bench.role.quarantined(bench.now)) == 1
