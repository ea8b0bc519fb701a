"""The decision for each request on an instance that ends."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from spotwise.core.costs.cost_model import LinkCost
from spotwise.core.migration.deployment import RunningRequest
from spotwise.core.migration.interruption.arrangement import (
    Arrangement,
    DecodePace,
    Disposition,
    Notice,
    RemoteHolder,
    arrange,
    rearrange,
)

NOW = 1_000.0


def prompt_s(tokens: int) -> float:
    """A prompt token costs 10 ms."""
    return tokens / 100


#: A token's KV takes 1 ms of the link; an iteration takes 0.25 s.
NOTICE = Notice(NOW + 30.0, DecodePace(0.0, 0.25), LinkCost(0.0, 1e6), 1_000, RemoteHolder(prompt_s))
#: A token's KV takes as long as to compute it twice anew.
SLOW = replace(NOTICE, link=LinkCost(0.0, 5e4))


def running(name: str, tokens: int, remaining: int = 10_000) -> RunningRequest:
    return RunningRequest(name, tokens, 0, remaining)


def fates(arranged: tuple[Arrangement, ...]) -> dict[str, Disposition]:
    return {each.choice_id: each.disposition for each in arranged}


class TestChoice:
    """Whichever costs its user least."""

    def test_a_request_that_ends_in_time_finishes(self) -> None:
        (found,) = arrange(NOW, NOTICE, [running("short", 500, remaining=100)])
        assert found == Arrangement("short", Disposition.FINISH, 100, NOW + 25.0)

    def test_a_request_that_ends_just_before_the_deadline_finishes(self) -> None:
        """A copy needs time before the deadline; ending needs none."""
        assert fates(arrange(NOW, NOTICE, [running("just", 500, 119), running("late", 500, 121)])) == {
            "just": Disposition.FINISH,
            "late": Disposition.MOVE,
        }

    def test_a_request_that_cannot_end_moves_if_a_copy_costs_less_than_a_prompt(self) -> None:
        """1 ms a token, and not 10."""
        (found,) = arrange(NOW, NOTICE, [running("long", 500)])
        assert found.disposition is Disposition.MOVE
        assert found.wait_s < prompt_s(500)

    def test_a_request_computed_faster_than_copied_is_recomputed(self) -> None:
        """The request stops at once, so that its prompt does not grow."""
        assert arrange(NOW, SLOW, [running("long", 500)]) == (
            Arrangement("long", Disposition.RECOMPUTE, 0, NOW, wait_s=5.0),
        )

    def test_where_all_move_at_once_no_request_is_waited_for(self) -> None:
        """Neither one that would end in time, nor one that would be computed sooner; each copy begins now."""
        at_once = replace(SLOW, at_once=True)
        found = arrange(NOW, at_once, [running("short", 500, remaining=10), running("long", 500)])
        assert {(each.disposition, each.copy_start_s) for each in found} == {(Disposition.MOVE, NOW)}
        assert rearrange(NOW + 5.0, at_once, found, [running("long", 520)]) == (found[1],)

    def test_queues_elsewhere_count(self) -> None:
        """A prompt that must wait costs its wait; so does a copy that finds no place."""
        slow = arrange(NOW, replace(SLOW, remote=RemoteHolder(prompt_s, queue_s=5.1)), [running("long", 500)])
        assert fates(slow) == {"long": Disposition.MOVE}
        fast = arrange(NOW, replace(NOTICE, remote=RemoteHolder(prompt_s, resume_s=4.6)), [running("long", 500)])
        assert fates(fast) == {"long": Disposition.RECOMPUTE}

    def test_what_has_no_kv_has_nothing_to_move(self) -> None:
        """A request whose prompt waits, or was not computed to its end, has no KV."""
        notice = replace(NOTICE, remote=RemoteHolder(prompt_s, queue_s=9.0))
        assert fates(arrange(NOW, notice, [running("waits", 0)])) == {"waits": Disposition.RECOMPUTE}

    def test_an_unknown_end_is_not_counted_on(self) -> None:
        """`remaining` 0 means unknown, and no request is expected to finish by it."""
        assert fates(arrange(NOW, NOTICE, [running("unknown", 500, remaining=0)])) == {"unknown": Disposition.MOVE}

    def test_without_notice_all_are_computed_elsewhere(self) -> None:
        """After the deadline every request is recomputed, even with one step to go."""
        requests = [running("last step", 9, 1), running("long", 500)]
        for now in (NOTICE.deadline_s, NOTICE.deadline_s + 7.0):
            found = arrange(now, NOTICE, requests)
            assert {each.disposition for each in found} == {Disposition.RECOMPUTE}
            assert {(each.steps, each.stop_s) for each in found} == {(0, now)}

    def test_the_iteration_under_way_ends_first_if_there_is_time(self) -> None:
        """A request stops and is copied only after the current iteration's end, where the deadline permits."""
        notice = replace(NOTICE, pace=DecodePace(0.5, 0.25))
        assert fates(arrange(NOW, notice, [running("a", 500, 118)])) == {"a": Disposition.MOVE}
        assert fates(arrange(NOW, notice, [running("a", 500, 117)])) == {"a": Disposition.FINISH}
        (slow,) = arrange(NOW, replace(SLOW, pace=DecodePace(0.5, 0.25)), [running("a", 500)])
        assert slow.stop_s == NOW + 0.5
        (cut,) = arrange(NOTICE.deadline_s - 0.4, notice, [running("a", 500)])
        assert (cut.disposition, cut.stop_s) == (Disposition.RECOMPUTE, NOTICE.deadline_s - 0.4)

    def test_a_request_given_twice_is_refused(self) -> None:
        with pytest.raises(ValueError, match="same id"):
            arrange(NOW, NOTICE, [running("a", 1), running("a", 2)])


class TestJustInTime:
    """A copy begins as late as it may."""

    def test_a_request_decodes_until_its_copy_must_begin(self) -> None:
        """117 steps are 29.25 s, after which 617 tokens take 0.617 s; with 118 the copy would end at 30.118 s."""
        (found,) = arrange(NOW, NOTICE, [running("long", 500)])
        assert found.steps == 117
        assert found.stop_s == found.copy_start_s == NOW + 29.25
        assert found.copy_end_s == pytest.approx(NOW + 29.25 + 0.617)
        assert found.wait_s == pytest.approx(0.617)

    def test_a_margin_is_kept(self) -> None:
        (found,) = arrange(NOW, replace(NOTICE, margin_s=10.0), [running("long", 500)])
        assert found.steps == 77
        assert found.copy_end_s is not None
        assert found.copy_end_s <= NOTICE.deadline_s - 10.0

    def test_copies_run_one_after_another_the_smallest_first(self) -> None:
        found = arrange(NOW, NOTICE, [running("large", 3_000), running("small", 1_000), running("middle", 2_000)])
        by_start = sorted(found, key=lambda each: each.copy_start_s or 0.0)
        assert [each.choice_id for each in by_start] == ["small", "middle", "large"]
        for one, next_one in pairwise(by_start):
            assert one.copy_end_s is not None and next_one.copy_start_s is not None
            assert one.copy_end_s <= next_one.copy_start_s
        assert by_start[0].stop_s > NOW + 20.0

    def test_the_link_goes_to_the_requests_that_save_most(self) -> None:
        """30 s carry one of 20 s, or two of 14 s: these save more together, though each less than the one."""
        requests = [running("one", 20_000), running("two", 14_000), running("three", 14_000)]
        found = fates(arrange(NOW, NOTICE, requests))
        assert found == {"one": Disposition.RECOMPUTE, "two": Disposition.MOVE, "three": Disposition.MOVE}

    def test_what_saves_most_per_second_is_not_all(self) -> None:
        """The greedy choice takes the request worth most per second, and then has no time for the other two."""
        remote = RemoteHolder(lambda tokens: {16_000: 200.0, 14_500: 160.0}[tokens])
        notice = replace(NOTICE, remote=remote)
        requests = [running("dense", 16_000), running("two", 14_500), running("three", 14_500)]
        assert fates(arrange(NOW, notice, requests)) == {
            "dense": Disposition.RECOMPUTE,
            "two": Disposition.MOVE,
            "three": Disposition.MOVE,
        }

    def test_a_link_that_is_busy_is_waited_for(self) -> None:
        requests = [running("a", 14_000), running("b", 14_500)]
        free = arrange(NOW, NOTICE, requests)
        assert [each.disposition for each in free] == [Disposition.MOVE, Disposition.MOVE]
        busy = arrange(NOW, NOTICE, requests, link_free_s=NOW + 10.0)
        assert [each.disposition for each in busy] == [Disposition.RECOMPUTE, Disposition.MOVE]

    def test_a_recomputed_request_decodes_until_a_worker_takes_it(self) -> None:
        """A request to be recomputed decodes until another instance takes it: decoding here delays no other."""
        notice = replace(SLOW, remote=RemoteHolder(prompt_s, ready_s=NOW + 10.1))
        (found,) = arrange(NOW, notice, [running("long", 500)])
        assert (found.steps, found.stop_s) == (40, NOW + 10.0)
        assert found.wait_s == pytest.approx(0.1 + 5.4)

    def test_a_worker_that_is_ready_too_late_delays_all(self) -> None:
        """No copy begins before a late remote holder is ready, however short the copy."""
        notice = replace(NOTICE, remote=RemoteHolder(prompt_s, ready_s=NOW + 40.0))
        (moved,) = arrange(NOW, notice, [running("long", 500)])
        assert moved.steps == 117
        assert moved.wait_s == pytest.approx(10.75)
        (computed,) = arrange(NOW, replace(SLOW, remote=notice.remote), [running("long", 500)])
        assert (computed.steps, computed.stop_s) == (119, NOW + 29.75)


class TestAgain:
    """A second notice, or another deadline, while requests are arranged."""

    REQUESTS = [running("small", 4_000), running("large", 9_000)]

    def test_an_earlier_deadline_moves_everything_forward(self) -> None:
        """Copies that have not begun end by the new one."""
        before = arrange(NOW, NOTICE, self.REQUESTS)
        assert all(each.copy_end_s is not None and each.copy_end_s > NOW + 15 for each in before)
        earlier = replace(NOTICE, deadline_s=NOW + 15.0)
        after = rearrange(NOW + 1.0, earlier, before, self.REQUESTS)
        assert [each.disposition for each in after] == [Disposition.MOVE, Disposition.MOVE]
        assert all(each.copy_end_s is not None and each.copy_end_s <= earlier.deadline_s for each in after)

    def test_what_has_no_room_any_more_is_computed(self) -> None:
        """A request whose copy no longer fits is recomputed, and the link's time is shared anew."""
        before = arrange(NOW, NOTICE, self.REQUESTS)
        after = rearrange(NOW + 1.0, replace(NOTICE, deadline_s=NOW + 12.0), before, self.REQUESTS)
        assert fates(after) == {"small": Disposition.RECOMPUTE, "large": Disposition.MOVE}

    def test_a_copy_that_runs_is_kept_if_it_ends_in_time(self) -> None:
        """A running copy that ends in time is kept, and the others wait for the link."""
        before = arrange(NOW, NOTICE, self.REQUESTS)
        small = before[0]
        assert small.copy_start_s is not None and small.copy_end_s is not None
        now = (small.copy_start_s + small.copy_end_s) / 2
        after = rearrange(now, replace(NOTICE, deadline_s=NOW + 29.0), before, self.REQUESTS)
        assert after[0] == small
        large = after[1]
        assert large.disposition is Disposition.RECOMPUTE or (large.copy_start_s or 0.0) >= small.copy_end_s

    def test_a_copy_that_runs_is_given_up_if_it_cannot_end(self) -> None:
        """The request has waited since it stopped, and the link becomes free at once."""
        before = arrange(NOW, NOTICE, self.REQUESTS)
        small = before[0]
        assert small.copy_start_s is not None and small.copy_end_s is not None
        now = small.copy_start_s + 0.5
        after = rearrange(now, replace(NOTICE, deadline_s=small.copy_end_s - 0.5), before, self.REQUESTS)
        assert (after[0].disposition, after[0].stop_s) == (Disposition.RECOMPUTE, small.stop_s)
        assert after[0].wait_s == pytest.approx(now - small.stop_s + prompt_s(4_000))

    def test_a_request_recomputed_elsewhere_stays_there(self) -> None:
        """A longer notice does not call back a request that is computed on another instance already."""
        before = arrange(NOW, replace(NOTICE, deadline_s=NOW + 1.0), self.REQUESTS)
        assert {each.disposition for each in before} == {Disposition.RECOMPUTE}
        assert rearrange(NOW + 0.5, NOTICE, before, self.REQUESTS) == before

    def test_an_ended_request_leaves_the_link_to_others(self) -> None:
        notice = replace(NOTICE, deadline_s=NOW + 12.0)
        before = arrange(NOW, notice, self.REQUESTS)
        assert fates(before)["small"] is Disposition.RECOMPUTE
        waiting = replace(notice, remote=RemoteHolder(prompt_s, ready_s=NOW + 6.0))
        before = arrange(NOW, waiting, self.REQUESTS)
        assert before[0].stop_s > NOW + 1.0
        assert fates(rearrange(NOW + 1.0, waiting, before, self.REQUESTS[:1])) == {"small": Disposition.MOVE}

    def test_a_request_that_comes_meanwhile_is_arranged_as_well(self) -> None:
        before = arrange(NOW, NOTICE, self.REQUESTS)
        after = rearrange(NOW + 1.0, NOTICE, before, [running("new", 100), *self.REQUESTS])
        assert [each.choice_id for each in after] == ["new", "small", "large"]
