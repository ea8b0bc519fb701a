"""The scheduler's view of a worker never drifts from the worker's own account."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spotwise.core.messages.members import Member, MemberKind, MemberState, Pool, WorkerLoad
from spotwise.core.scheduler.pools import ALL_GROUPS, TOKEN_OFF_POOL, TOKEN_ON_POOL, Pools
from spotwise.core.scheduler.views import ASSIGNMENT_LOST_S, Assignment, WorkerView


def heartbeat(load: WorkerLoad) -> Member:
    return Member("w", MemberKind.TOKEN_WORKER, 1, MemberState.READY, "host", 1, "", Pool.TOKEN, load=load)


class Reconciliation(RuleBasedStateMachine):
    """A scheduler gives orders over one link, a worker reports over another; both are first in, first out, and slow.

    Orders may be lost.
    """

    BLOCKS = 1000

    def __init__(self) -> None:
        super().__init__()
        self.pools = Pools()
        self.pools.join(heartbeat(WorkerLoad(kv_blocks_total=self.BLOCKS, kv_blocks_free=self.BLOCKS)))
        self.intended: dict[str, int] = {}
        self.counted: list[Assignment] = []
        self.now = 1000.0
        self.number = 0
        self.orders: list[Assignment] = []
        self.reports: list[WorkerLoad] = []
        self.held: list[Assignment] = []
        self.seen = 0

    @rule(prompt=st.integers(0, 50), owed=st.integers(0, 50), blocks=st.integers(0, 9))
    def assign(self, prompt: int, owed: int, blocks: int) -> None:
        self.number += 1
        assignment = Assignment(self.number, self.now, prompt, owed, blocks)
        self.pools.assign("w", assignment)
        self.counted.append(assignment)
        self.orders.append(assignment)

    @rule(choice_id=st.sampled_from("abc"), prompt=st.integers(1, 50))
    def intend(self, choice_id: str, prompt: int) -> None:
        self.pools.intend("w", choice_id, prompt)
        self.intended[choice_id] = prompt

    @rule(choice_id=st.sampled_from("abc"))
    def drop_intended(self, choice_id: str) -> None:
        self.pools.drop_intended("w", choice_id)
        self.intended.pop(choice_id, None)

    @rule(seconds=st.floats(0.1, 2 * ASSIGNMENT_LOST_S))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.orders)
    @rule()
    def an_order_is_lost(self) -> None:
        self.orders.pop(0)

    @precondition(lambda self: self.orders)
    @rule(granted=st.booleans())
    def the_worker_gets_an_order(self, granted: bool) -> None:
        """The worker may refuse the order, but has seen it."""
        assignment = self.orders.pop(0)
        self.seen = assignment.number
        if granted:
            self.held.append(assignment)

    @precondition(lambda self: self.held)
    @rule()
    def the_worker_finishes_something(self) -> None:
        self.held.pop(0)

    @rule()
    def the_worker_reports(self) -> None:
        self.reports.append(
            WorkerLoad(
                pending_prompt_tokens=sum(a.prompt_tokens for a in self.held),
                remaining_tokens=sum(a.remaining_tokens for a in self.held),
                kv_blocks_total=self.BLOCKS,
                kv_blocks_free=self.BLOCKS - sum(a.kv_blocks for a in self.held),
                assignments_seen=(("other", 10_000), ("s", self.seen)),
            )
        )

    @precondition(lambda self: self.reports)
    @rule()
    def a_report_arrives(self) -> None:
        self.receive(self.reports.pop(0))

    def receive(self, report: WorkerLoad) -> None:
        self.pools.reported(heartbeat(report), "s", self.now)
        seen = dict(report.assignments_seen)["s"]
        overdue_s = self.now - ASSIGNMENT_LOST_S
        self.counted = [a for a in self.counted if a.number > seen and a.sent_s > overdue_s]

    @property
    def view(self) -> WorkerView:
        return self.pools["w"]

    @invariant()
    def counts_are_those_of_a_recount(self) -> None:
        """The last report, what it cannot include yet, and what is meant for later."""
        load, orders = self.view.load, self.counted
        meant = sum(self.intended.values())
        assert (
            self.view.pending_prompt_tokens == load.pending_prompt_tokens + sum(a.prompt_tokens for a in orders) + meant
        )
        assert self.view.remaining_tokens == load.remaining_tokens + sum(a.remaining_tokens for a in orders)
        assert self.view.free_tokens == load.kv_block_size * (load.kv_blocks_free - sum(a.kv_blocks for a in orders))
        has_prompts = bool(self.intended) or any(a.prompt_tokens for a in orders)
        assert self.view.is_off_pool is has_prompts

    @invariant()
    def it_is_in_one_group(self) -> None:
        assert self.pools.members(*ALL_GROUPS) == [self.view]
        assert self.pools.group_of("w") is (TOKEN_OFF_POOL if self.view.is_off_pool else TOKEN_ON_POOL)

    @invariant()
    def nothing_is_counted_below_zero(self) -> None:
        assert self.view.pending_prompt_tokens >= 0
        assert self.view.remaining_tokens >= 0
        assert self.view.free_tokens <= self.view.kv_tokens

    def teardown(self) -> None:
        """Once all orders and reports have arrived or are overdue, the view is the worker's account, to the token."""
        for choice_id in list(self.intended):
            self.drop_intended(choice_id)
        self.held += self.orders
        if self.orders:
            self.seen = self.orders[-1].number
        self.the_worker_reports()
        self.now += 2 * ASSIGNMENT_LOST_S
        for report in self.reports:
            self.receive(report)
        assert self.counted == []
        assert self.view.pending_prompt_tokens == sum(a.prompt_tokens for a in self.held)
        assert self.view.remaining_tokens == sum(a.remaining_tokens for a in self.held)
        assert self.view.free_tokens == self.view.kv_tokens - self.view.load.kv_block_size * sum(
            a.kv_blocks for a in self.held
        )


TestReconciliation = Reconciliation.TestCase
TestReconciliation.settings = settings(max_examples=50, stateful_step_count=30)
