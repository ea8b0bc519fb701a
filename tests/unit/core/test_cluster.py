"""Which prompt worker and which token worker serve a request."""

from __future__ import annotations

from spotwise.core.cluster import ASSIGNMENT_LOST_S, Assignment, WorkerView, choose_workers, could_ever_serve
from spotwise.core.messages import Member, MemberState, Pool
from tests.unit.core.builders import worker_member

SENT_S = 1000.0


def choice(
    *members: Member, prompt_tokens: int = 16, kv_tokens: int = 32, extra: dict[str, int] | None = None
) -> tuple[str, str] | None:
    """Ids of the workers chosen."""
    intended, views = extra or {}, [WorkerView(member) for member in members]
    chosen = choose_workers(
        views, prompt_tokens, kv_tokens - prompt_tokens, lambda worker: intended.get(worker.member.id, 0)
    )
    return None if chosen is None else (chosen[0].member.id, chosen[1].member.id)


class TestShortestQueue:
    """Join the shortest queue, on both sides at once."""

    def test_prompts_go_where_fewest_prompt_tokens_wait(self) -> None:
        """Tokens count, not requests; the token side's length says nothing about prompts."""
        busy = worker_member("p1", Pool.PROMPT, pending=100)
        idle = worker_member("p2", Pool.PROMPT, pending=99, owed=500)
        assert choice(busy, idle, worker_member("t")) == ("p2", "t")

    def test_tokens_go_where_fewest_are_owed(self) -> None:
        """The prompt side's length says nothing about tokens."""
        busy = worker_member("t1", owed=100)
        idle = worker_member("t2", owed=99, pending=500)
        assert choice(worker_member("p", Pool.PROMPT), busy, idle) == ("p", "t2")

    def test_ties_go_to_the_smaller_id(self) -> None:
        """In whatever order the workers are listed."""
        workers = [worker_member("p2", Pool.PROMPT), worker_member("t2"), worker_member("t1")]
        workers.append(worker_member("p1", Pool.PROMPT))
        assert choice(*workers) == ("p1", "t1")

    def test_prompts_meant_for_a_worker_count_before_they_are_sent(self) -> None:
        """Otherwise a burst would choose one prompt worker for all its requests."""
        workers = [worker_member("p1", Pool.PROMPT), worker_member("p2", Pool.PROMPT, pending=5), worker_member("t")]
        assert choice(*workers, extra={"p1": 6}) == ("p2", "t")


class TestPools:
    """Own pool first, then mixed, then the opposite one."""

    def test_the_mixed_pool_serves_where_the_own_pool_is_empty(self) -> None:
        """On either side."""
        mixed = worker_member("m", Pool.MIXED)
        assert choice(worker_member("p", Pool.PROMPT), mixed) == ("p", "m")
        assert choice(worker_member("t"), mixed) == ("t", "t")

    def test_a_mesh_of_one_pool_serves_both_phases_in_place(self) -> None:
        """Prompt workers alone, token workers alone, mixed workers alone: each is a mesh."""
        for pool in Pool:
            assert choice(worker_member("w1", pool, owed=5), worker_member("w2", pool)) == ("w2", "w2")

    def test_who_is_outside_the_prompt_pool_computes_prompts_only_for_itself(self) -> None:
        """Two workers with both phases can never wait for blocks on one another."""
        mixed = [worker_member("m1", Pool.MIXED, pending=9), worker_member("m2", Pool.MIXED, owed=9)]
        assert choice(*mixed) == ("m1", "m1")
        assert choice(worker_member("t"), *mixed) == ("t", "t")

    def test_prompt_workers_compute_prompts_for_all_others(self) -> None:
        """With all three pools present the mixed one rests."""
        pools = [worker_member("p", Pool.PROMPT), worker_member("m", Pool.MIXED), worker_member("t")]
        assert choice(*pools) == ("p", "t")

    def test_a_pool_none_of_whose_members_is_ready_counts_as_empty(self) -> None:
        """Starting and draining workers take nothing, nor does one that reports no blocks."""
        for state in (MemberState.STARTING, MemberState.DRAINING):
            assert choice(worker_member("t", state=state), worker_member("p", Pool.PROMPT)) == ("p", "p")
        assert choice(worker_member("t", blocks=0), worker_member("p", Pool.PROMPT)) == ("p", "p")
        assert choice(worker_member("p", Pool.PROMPT, state=MemberState.DRAINING), worker_member("t")) == ("t", "t")

    def test_a_full_pool_is_not_an_empty_one(self) -> None:
        """A request waits for its pool and does not spill over into another."""
        assert choice(worker_member("t", free=0), worker_member("m", Pool.MIXED)) is None


class TestRoom:
    """A token worker is chosen only with room for what it reserves."""

    def test_the_shortest_queue_without_room_is_passed_over(self) -> None:
        """33 tokens fill 3 blocks of 16."""
        workers = [worker_member("p", Pool.PROMPT), worker_member("t1", free=2), worker_member("t2", free=3, owed=900)]
        assert choice(*workers, kv_tokens=33) == ("p", "t2")
        assert choice(*workers, kv_tokens=49) is None

    def test_a_worker_that_reserves_on_demand_needs_room_for_the_first_token_only(self) -> None:
        """16 prompt tokens and one more fill 2 blocks of 16, whatever comes later; its whole cache must hold all of it."""
        assert choice(worker_member("t", free=2, reserved_new_tokens=1), kv_tokens=900) == ("t", "t")
        assert choice(worker_member("t", free=1, reserved_new_tokens=1), kv_tokens=900) is None
        assert choice(worker_member("t", blocks=3, reserved_new_tokens=1), kv_tokens=49) is None

    def test_what_a_worker_keeps_for_those_it_has_is_no_room(self) -> None:
        """Sequences that wait there for blocks, or grow, come before a newcomer."""
        assert choice(worker_member("t", free=4, kept=2)) == ("t", "t")
        assert choice(worker_member("t", free=4, kept=3)) is None

    def test_a_prompt_worker_that_could_never_hold_the_prompt_is_passed_over(self) -> None:
        """A busy one may wait for blocks; a small one would wait for ever."""
        small = worker_member("p1", Pool.PROMPT, blocks=1)
        busy = worker_member("p2", Pool.PROMPT, blocks=2, free=0, pending=900)
        assert choice(small, busy, worker_member("t"), prompt_tokens=17) == ("p2", "t")
        assert choice(small, worker_member("t"), prompt_tokens=17) is None

    def test_no_workers_no_choice(self) -> None:
        """An empty mesh has no room."""
        assert choice() is None


class TestCouldEverServe:
    """What not even an idle mesh would serve is refused at once."""

    @staticmethod
    def could(*members: Member, prompt_tokens: int = 16, kv_tokens: int = 32) -> bool:
        return could_ever_serve([WorkerView(member) for member in members], prompt_tokens, kv_tokens)

    def test_only_the_size_counts_and_not_what_is_free(self) -> None:
        """A full worker comes free some day."""
        assert self.could(worker_member("t", blocks=2, free=0))
        assert not self.could(worker_member("t", blocks=2), kv_tokens=33)
        assert not self.could()

    def test_both_sides_must_hold_their_part(self) -> None:
        """The prompt must fit some prompt worker, where there is a prompt pool."""
        small = worker_member("p", Pool.PROMPT, blocks=1)
        assert not self.could(small, worker_member("t"), prompt_tokens=17)
        assert self.could(small, worker_member("p2", Pool.PROMPT), worker_member("t"), prompt_tokens=17)

    def test_the_token_side_is_the_pool_that_would_be_chosen(self) -> None:
        """A large worker of another pool does not help while the token pool has members."""
        assert not self.could(worker_member("t", blocks=1), worker_member("m", Pool.MIXED))


class TestWorkerView:
    """A queue is the last report plus what was assigned since."""

    def test_assignments_count_until_a_report_includes_them(self) -> None:
        """They are matched by number, for this scheduler alone."""
        view = WorkerView(worker_member("w", blocks=50, free=40, pending=7, owed=9))
        view.unseen += [Assignment(3, SENT_S, prompt_tokens=10), Assignment(4, SENT_S, owed_tokens=20, kv_blocks=5)]
        assert (view.pending_prompt_tokens, view.owed_tokens, view.free_blocks) == (17, 29, 35)

        report = worker_member("w", blocks=50, free=40, pending=16, owed=9, seen=(("other", 9), ("s", 3)))
        view.heard(report, "s", SENT_S)
        assert (view.pending_prompt_tokens, view.owed_tokens, view.free_blocks) == (16, 29, 35)

        view.heard(worker_member("w", blocks=50, free=35, pending=2, owed=29, seen=(("s", 4),)), "s", SENT_S)
        assert (view.pending_prompt_tokens, view.owed_tokens, view.free_blocks) == (2, 29, 35)
        assert view.unseen == []

    def test_a_report_that_has_seen_nothing_forgets_nothing(self) -> None:
        """A worker that has not heard of this scheduler yet includes none of its orders."""
        view = WorkerView(worker_member("w"))
        view.unseen.append(Assignment(1, SENT_S, kv_blocks=5))
        view.heard(worker_member("w", seen=(("other", 9),)), "s", SENT_S)
        assert view.free_blocks == 95

    def test_an_order_that_no_report_shows_in_time_was_lost_and_counts_no_more(self) -> None:
        """Its blocks would else be promised for ever; orders sent since still count."""
        view = WorkerView(worker_member("w"))
        view.unseen += [Assignment(1, SENT_S, kv_blocks=5), Assignment(2, SENT_S + 1.0, kv_blocks=7)]
        view.heard(worker_member("w"), "s", SENT_S + ASSIGNMENT_LOST_S - 0.1)
        assert view.free_blocks == 88
        view.heard(worker_member("w"), "s", SENT_S + ASSIGNMENT_LOST_S)
        assert view.free_blocks == 93
