"""A worker as the scheduler sees it: its last report, and what was ordered since."""

from __future__ import annotations

from typing import Any

import pytest

from spotwise.core.messages.members import Member, Pool
from spotwise.core.scheduler.views import ASSIGNMENT_LOST_S, Assignment, WorkerView
from tests.unit.core.builders import worker_member

SENT_S = 1000.0


def counts(view: WorkerView) -> tuple[int, int, int]:
    return view.pending_prompt_tokens, view.remaining_tokens, view.free_tokens


class TestCounts:
    """A queue is the last report plus what was assigned since."""

    def test_assignments_count_until_a_report_includes_them(self) -> None:
        view = WorkerView(worker_member("w", blocks=50, free=40, pending=7, owed=9))
        view.assign(Assignment(3, SENT_S, prompt_tokens=10))
        view.assign(Assignment(4, SENT_S, remaining_tokens=20, kv_blocks=5))
        assert counts(view) == (17, 29, 16 * 35)

        report = worker_member("w", blocks=50, free=40, pending=16, owed=9, seen=(("other", 9), ("s", 3)))
        view.reported(report, "s", SENT_S)
        assert counts(view) == (16, 29, 16 * 35)

        view.reported(worker_member("w", blocks=50, free=35, pending=2, owed=29, seen=(("s", 4),)), "s", SENT_S)
        assert counts(view) == (2, 29, 16 * 35)

    def test_a_report_that_has_seen_nothing_forgets_nothing(self) -> None:
        """A report from before the worker received this scheduler's first order confirms none of them."""
        view = WorkerView(worker_member("w"))
        view.assign(Assignment(1, SENT_S, kv_blocks=5))
        view.reported(worker_member("w", seen=(("other", 9),)), "s", SENT_S)
        assert view.free_tokens == 16 * 95

    def test_an_order_that_no_report_shows_in_time_was_lost_and_counts_no_more(self) -> None:
        """The lost order's blocks would otherwise stay promised; orders sent since still count."""
        view = WorkerView(worker_member("w"))
        view.assign(Assignment(1, SENT_S, kv_blocks=5))
        view.assign(Assignment(2, SENT_S + 1.0, kv_blocks=7))
        view.reported(worker_member("w"), "s", SENT_S + ASSIGNMENT_LOST_S - 0.1)
        assert view.free_tokens == 16 * 88
        view.reported(worker_member("w"), "s", SENT_S + ASSIGNMENT_LOST_S)
        assert view.free_tokens == 16 * 93

    def test_a_prompt_that_is_computed_now_does_not_wait(self) -> None:
        """Only waiting prompts count, preempted ones included; the first prompt sent to an idle worker does not wait."""
        assert WorkerView(worker_member("w", pending=7, waiting=0)).tokens_to_wait_behind == 0
        assert WorkerView(worker_member("w", pending=7, waiting=1)).tokens_to_wait_behind == 7
        assert WorkerView(worker_member("w", pending=7, waiting=0, preempted=1)).tokens_to_wait_behind == 7
        idle, busy = WorkerView(worker_member("w")), WorkerView(worker_member("w", pending=7, waiting=0))
        for view, lengths in ((idle, [0, 20]), (busy, [17, 27])):
            for number, expected in enumerate(lengths, start=1):
                view.intend(f"r{number}", 10)
                assert view.tokens_to_wait_behind == expected

    def test_intended_prompts_count_until_they_are_ordered_or_given_up(self) -> None:
        """Intended prompts count across reports, which do not contain them, and a repeated intent counts once."""
        view = WorkerView(worker_member("w", pending=7))
        view.intend("r", 10)
        view.intend("r", 12)
        view.reported(worker_member("w", pending=5), "s", SENT_S)
        assert view.pending_prompt_tokens == 17
        view.drop_intended("r")
        view.drop_intended("r")
        assert view.pending_prompt_tokens == 5

    def test_reservations_under_way_count_as_sequences_that_decode(self) -> None:
        view = WorkerView(worker_member("w", decoding=2))
        view.assign(Assignment(1, SENT_S, remaining_tokens=20, kv_blocks=5))
        assert view.decoding == 3


class TestPool:
    """The pool that a worker is in follows from what it holds."""

    @pytest.mark.parametrize(
        ("home", "native", "foreign"),
        [
            (Pool.PROMPT, {"prompts_to_hand_off": 1, "pending": 9}, {"decoding": 1}),
            (Pool.PROMPT, {"prompts_to_hand_off": 1, "pending": 9}, {"waiting_for_kv": 1}),
            (Pool.PROMPT, {"prompts_to_hand_off": 1, "pending": 9}, {"prompts_in_place": 1}),
            (Pool.TOKEN, {"decoding": 1, "waiting_for_kv": 1, "preempted": 1, "pending": 9}, {"prompts_in_place": 1}),
            (Pool.TOKEN, {"decoding": 1, "waiting_for_kv": 1}, {"prompts_to_hand_off": 1}),
        ],
    )
    def test_a_worker_is_in_the_mixed_pool_while_it_reports_off_pool_work(
        self, home: Pool, native: dict[str, Any], foreign: dict[str, Any]
    ) -> None:
        """A worker with off-pool work is in the mixed pool, and in its home pool with any amount of its own work."""
        view = WorkerView(worker_member("w", home, **native))
        assert not view.is_off_pool
        view.reported(worker_member("w", home, **native, **foreign), "s", SENT_S)
        assert (view.home_pool, view.is_off_pool) == (home, True)
        view.reported(worker_member("w", home, **native), "s", SENT_S)
        assert not view.is_off_pool

    def test_a_token_worker_is_in_it_from_the_moment_that_a_prompt_is_meant_for_it(self) -> None:
        """A token worker is in the mixed pool from the placement on, so that the next request does not convert another."""
        view = WorkerView(worker_member("w"))
        view.intend("r", 10)
        assert view.is_off_pool
        view.drop_intended("r")
        assert not view.is_off_pool
        view.assign(Assignment(2, SENT_S, prompt_tokens=10))
        assert view.is_off_pool
        view.reported(worker_member("w", seen=(("s", 2),)), "s", SENT_S)
        assert not view.is_off_pool

    def test_a_prompt_worker_is_in_it_from_the_moment_that_tokens_are_owed_there(self) -> None:
        view = WorkerView(worker_member("w", Pool.PROMPT))
        view.intend("r", 10)
        view.assign(Assignment(1, SENT_S, prompt_tokens=10))
        assert not view.is_off_pool
        view.assign(Assignment(2, SENT_S, remaining_tokens=10, kv_blocks=2))
        assert view.is_off_pool
        view.reported(worker_member("w", Pool.PROMPT, seen=(("s", 2),)), "s", SENT_S)
        assert not view.is_off_pool

    def test_workers_at_home_in_the_mixed_pool_stay_there(self) -> None:
        """A worker of the mixed home pool, or without a home pool, has no off-pool work and stays there."""
        member = worker_member("w", Pool.MIXED)
        homeless = Member("w", member.kind, 1, member.state, "host", 1, "", load=member.load)
        for of_both in (member, homeless):
            view = WorkerView(of_both)
            assert (view.home_pool, view.is_off_pool) == (Pool.MIXED, False)
