"""The scheduler and pools: placement, its ledger entries, and changes of home pools."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import Pool
from spotwise.core.scheduler.policy import PoolPolicy
from tests.unit.core.builders import ledger, one, only, sent, worker_member
from tests.unit.core.scheduler_bench import PROMPT, TOKEN, SchedulerBench, accepted, refused, reserved, submission

TIGHT = PoolPolicy(max_pending_prompt_tokens=40, repurpose_window_s=10.0, break_even=False)
FULL = worker_member("p", Pool.PROMPT, pending=30)


class TestSpill:
    """A pool over its threshold gets help."""

    def test_a_prompt_in_place_is_ordered_from_one_worker(self) -> None:
        """One worker gets the request in place, and the ledger names the placement rule."""
        bench = SchedulerBench(FULL, TOKEN, policy=TIGHT)
        assert one(sent(bench.feed(submission()), "t"), m.StartPrefill)
        commands = bench.feed(accepted())
        assert sent(commands, "g") == [m.RequestAssigned("r", 1, "t", "t")]
        assert ledger(commands, "assigned")[0]["placed_by"] == "conversion"

    def test_a_converted_worker_takes_the_next_ones_too(self) -> None:
        policy = replace(TIGHT, max_pending_prompt_tokens=60)
        full = worker_member("p", Pool.PROMPT, pending=40)
        bench = SchedulerBench(full, TOKEN, worker_member("t2"), policy=policy)
        assert bench.placements(submission("a")) == [("a", "t")]
        assert bench.placements(submission("b")) == [("b", "t")]
        assert bench.placements(submission("c")) == [("c", "t2")]

    def test_a_refusal_brings_a_converted_worker_home(self) -> None:
        bench = SchedulerBench(FULL, TOKEN, policy=TIGHT)
        bench.feed(submission())
        assert bench.role.pools["t"].is_off_pool
        bench.feed(refused())
        bench.feed(m.CloseRequest("r", 1, finished=False))
        bench.feed(worker_member("t", seen=(("s", 1),)))
        assert not bench.role.pools["t"].is_off_pool

    def test_a_closed_request_brings_it_home_as_well(self) -> None:
        bench = SchedulerBench(FULL, TOKEN, policy=TIGHT)
        bench.feed(submission())
        bench.feed(m.CloseRequest("r", 1, finished=False))
        bench.feed(worker_member("t", seen=(("s", 1),)))
        assert not bench.role.pools["t"].is_off_pool

    def test_the_heartbeat_after_the_work_brings_it_home(self) -> None:
        """No message, and no state of the scheduler's own."""
        bench = SchedulerBench(FULL, TOKEN, policy=TIGHT)
        bench.assign()
        bench.feed(worker_member("t", prompts_in_place=1, seen=(("s", 1),)))
        assert bench.role.pools["t"].is_off_pool
        bench.feed(worker_member("t", decoding=1, seen=(("s", 1),)))
        assert not bench.role.pools["t"].is_off_pool


class TestPrefixes:
    """Prompts go where their beginning was sent before."""

    LONG = replace(submission(prompt=200), prefix_spans=(1, 2, 3))

    def test_a_prompt_goes_to_the_worker_that_was_sent_its_beginning(self) -> None:
        """A prompt goes to the worker with its prefix even if another queue is shorter by less than the prefix."""
        bench = SchedulerBench(PROMPT, worker_member("p2", Pool.PROMPT), TOKEN)
        bench.feed(replace(self.LONG, choice_id="first"))
        bench.feed(reserved("first"))  # on p
        bench.feed(worker_member("p", Pool.PROMPT, pending=100, seen=(("s", 9),)))
        bench.feed(replace(self.LONG, choice_id="alike", prefix_spans=(1, 2, 7)))
        assert only(bench.feed(reserved("alike", number=3)), m.RequestAssigned)[0].prompt_worker == "p"
        bench.feed(replace(self.LONG, choice_id="other", prefix_spans=(8, 9, 10)))
        assert only(bench.feed(reserved("other", number=5)), m.RequestAssigned)[0].prompt_worker == "p2"

    def test_what_a_worker_holds_does_not_lengthen_its_queue(self) -> None:
        """Of 200 tokens only the 8 after the shared prefix add to the queue."""
        bench = SchedulerBench()
        bench.feed(replace(self.LONG, choice_id="first"))
        bench.feed(reserved("first"))
        bench.feed(replace(self.LONG, choice_id="alike"))
        assert bench.role.pools["p"].pending_prompt_tokens == 200 + 8
        bench.feed(reserved("alike", number=3))
        assert bench.role.pools["p"].pending_prompt_tokens == 200 + 8

    def test_a_restarted_worker_holds_nothing(self) -> None:
        """A restarted worker has an empty prefix cache, so it attracts no prompts."""
        bench = SchedulerBench(PROMPT, worker_member("p2", Pool.PROMPT), TOKEN)
        bench.feed(replace(self.LONG, choice_id="first"))
        bench.feed(reserved("first"))
        bench.feed(worker_member("p", Pool.PROMPT, incarnation=2, pending=10))
        bench.feed(replace(self.LONG, choice_id="alike"))
        assert only(bench.feed(reserved("alike", number=3)), m.RequestAssigned)[0].prompt_worker == "p2"


class TestHomes:
    """A worker that works for the other pool for long is given to it."""

    def test_the_order_goes_to_the_worker_at_the_end_of_a_window(self) -> None:
        """The order is sent once; the scheduler believes the change when the worker reports it."""
        away = worker_member("t", prompts_in_place=1)
        bench = SchedulerBench(FULL, away, worker_member("t2"), policy=TIGHT)
        bench.feed(m.Tick())
        bench.feed(submission())
        for _ in range(9):
            for member in (FULL, away, worker_member("t2")):
                bench.feed(member)
            assert only(bench.feed(m.Tick(), after_s=1.0), m.ChangeHomePool) == []
        for member in (FULL, away, worker_member("t2")):
            bench.feed(member)
        commands = bench.feed(m.Tick(), after_s=1.0)
        assert sent(commands, "t")[-1] == m.ChangeHomePool("t", Pool.PROMPT)
        assert only(bench.feed(m.Tick()), m.ChangeHomePool) == []
        assert bench.role.pools["t"].home_pool is Pool.TOKEN
        bench.feed(worker_member("t", Pool.PROMPT))
        assert (bench.role.pools["t"].home_pool, bench.role.pools.ready_at(Pool.PROMPT)) == (Pool.PROMPT, 2)


class TestRestart:
    """A new scheduler rebuilds its state from the members' reports alone."""

    def test_reports_restore_every_workers_pool(self) -> None:
        reported = [
            worker_member("p", Pool.PROMPT, pending=30, prompts_to_hand_off=1, seen=(("s", 900),)),
            worker_member("t", prompts_in_place=1, pending=5, owed=9, free=50, seen=(("s", 901),)),
            worker_member("u", Pool.PROMPT, decoding=2, owed=20),
        ]
        old = SchedulerBench(PROMPT, TOKEN, worker_member("u"), policy=TIGHT)
        old.assign("before")
        for member in reported:
            old.feed(member)
        new = SchedulerBench(*reported, policy=TIGHT)
        for role in (old.role, new.role):
            assert {view.id: (view.home_pool, view.is_off_pool) for view in role.pools} == {
                "p": (Pool.PROMPT, False),
                "t": (Pool.TOKEN, True),
                "u": (Pool.PROMPT, True),
            }
            counts = [(view.pending_prompt_tokens, view.remaining_tokens, view.free_tokens) for view in role.pools]
            assert counts == [(30, 0, 16 * 100), (5, 9, 16 * 50), (0, 20, 16 * 100)]
        after = submission("after", prompt=5)
        assert old.placements(after) == new.placements(after) == [("after", "t")]
