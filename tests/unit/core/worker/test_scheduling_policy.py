"""Scheduling policies: by priority, by remaining tokens, and by queues with tenants' turns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.costs.cost_model import BatchShape, LinearIterationCost
from spotwise.core.kv.blocks import BlockPool
from spotwise.core.messages.worker import StreamRef
from spotwise.core.requests.record import QueueLevel
from spotwise.core.requests.request import RequestState, StopCriteria
from spotwise.core.worker.kv.prefix_cache import PrefixCache
from spotwise.core.worker.policy import Scheduling, WorkerPolicy
from spotwise.core.worker.scheduling.mlfq import MlfqPolicy
from spotwise.core.worker.scheduling.policies import MlfqSchedulingPolicy, queues_for, scheduling_policy_of
from spotwise.core.worker.scheduling.policy import KeyedPolicy, by_priority, by_tokens_left
from spotwise.core.worker.sequences.sequence import Sequence
from spotwise.core.worker.sequences.table import SequenceTable

#: A decode takes 1 s, a prompt token a tenth more; others beside it make it no longer.
COST = LinearIterationCost(fixed_s=1.0, prompt_token_s=0.1, prompt_context_s=0.0, decode_s=0.0, decode_context_s=0.0)
#: Quanta 1, 2, 4, 8 s.
QUEUES = MlfqPolicy(first_quantum_s=1.0, queues=4, starve_limit_s=100.0)
BLOCK_SIZE = 4


class Floor:
    """Some sequences, and the order under test."""

    def __init__(self, policy: MlfqPolicy = QUEUES, width: int = 2) -> None:
        self.pool = BlockPool(100, BLOCK_SIZE)
        self.table = SequenceTable("w", self.pool)
        self.prefixes = PrefixCache(self.table, enabled=True)
        self.order = MlfqSchedulingPolicy(policy, COST, width, self.table, self.prefixes)

    def add(self, name: str, prompt: int, now: float = 0.0, tenant: str = "", priority: int = 0) -> Sequence:
        sequence = self.table.add(name, 1, StreamRef("g", 1), RequestState.WAITING, now)
        sequence.stop, sequence.max_new_tokens = StopCriteria(1000), 1000
        sequence.token_ids = list(range(prompt))
        sequence.known_tokens = prompt
        sequence.tenant, sequence.priority, sequence.may_reuse = tenant, priority, True
        return sequence

    def names(self, now: float = 0.0) -> list[str]:
        return [sequence.choice_id for sequence in self.order.order(list(self.table), now)]

    def run(self, now: float, *sequences: Sequence) -> None:
        """An iteration of whole prompts, or of decodes, ends."""
        members = [(sequence, sequence.uncomputed_tokens) for sequence in sequences]
        for sequence, tokens in members:
            sequence.computed_tokens += tokens
        self.order.ran(members, now)
        for sequence in sequences:
            sequence.count_tokens(1)


@pytest.fixture
def floor() -> Floor:
    return Floor()


class TestQueues:
    """Skip-join MLFQ over sequences."""

    def test_a_short_prompt_goes_before_a_long_one_that_came_earlier(self, floor: Floor) -> None:
        floor.add("long", 60)
        floor.add("short", 5)
        assert floor.names() == ["short", "long"]

    def test_what_is_cached_of_a_prompt_does_not_count(self, floor: Floor) -> None:
        """The first iteration takes as long as the uncached part of the prompt."""
        first = floor.add("first", 60)
        first.block_ids = floor.pool.allocate(first.sequence_id, 60)
        first.computed_tokens = 60
        floor.prefixes.enter_computed(first)
        middle, again = floor.add("middle", 9), floor.add("again", 60)
        middle.token_ids = [7, *middle.token_ids[1:]]
        again.token_ids = list(range(60))
        floor.names()
        assert again.queue_state is not None and middle.queue_state is not None
        assert (again.queue_state.queue, middle.queue_state.queue) == (2, 2)  # 4 of 60 tokens; 9 of 9

    def test_each_is_charged_what_its_tokens_cost_alone(self, floor: Floor) -> None:
        """A decode beside a long prompt is charged the cost of a decode, not the duration of the batch (the prototype's
        error).
        """
        decode, prompt = floor.add("decode", 15), floor.add("prompt", 60)
        floor.names()
        floor.run(2.5, decode)
        assert decode.queue_state is not None and prompt.queue_state is not None
        used_s = decode.queue_state.used_s
        floor.run(8.0, decode, prompt)
        assert decode.queue_state.used_s == used_s + 1.0

    def test_a_used_up_quantum_lets_newcomers_pass(self, floor: Floor) -> None:
        old = floor.add("old", 5)  # 1.5 s: Q2
        floor.names()
        floor.run(1.5, old)
        assert old.queue_state is not None and old.queue_state.queue == 2
        floor.run(2.5, old)  # 2.5 s of 2
        assert old.queue_state.queue == 3
        floor.add("new", 15)  # 2.5 s: Q3 as well, but later there
        floor.add("short", 5)
        assert floor.names(2.5) == ["short", "old", "new"]

    def test_one_that_moved_in_keeps_its_queue(self, floor: Floor) -> None:
        """A sequence that migrated keeps its queue and the part of its quantum that it had used."""
        moved = floor.add("moved", 5)
        moved.arrived_level = QueueLevel(3, 0.875)
        floor.add("new", 15)
        assert floor.names() == ["moved", "new"]
        assert moved.queue_state is not None and (moved.queue_state.queue, moved.queue_state.used_s) == (3, 3.5)

    def test_a_starving_sequence_is_promoted_with_as_much_as_its_next_iteration_takes(self) -> None:
        """A long prompt behind a stream of short ones runs whole, and is demoted after."""
        floor = Floor(replace(QUEUES, starve_limit_s=10.0))
        starving = floor.add("starving", 60)  # 7 s: Q4
        floor.names(0.0)
        floor.add("new", 5, now=9.0)
        assert floor.names(9.9) == ["new", "starving"]
        assert floor.names(10.0) == ["starving", "new"]
        assert starving.queue_state is not None and starving.queue_state.extra_s == 7.0
        floor.run(17.0, starving)
        assert starving.queue_state.queue == 1  # 7 s of 8
        floor.run(18.0, starving)
        assert starving.queue_state.queue == 2  # its next iteration is a decode

    def test_only_a_sequence_that_waited_the_limit_comes_before_all_newcomers(self) -> None:
        """A promotion starts the wait anew, with the turn that it gives."""
        floor = Floor(replace(QUEUES, starve_limit_s=10.0))
        old = floor.add("old", 5)
        floor.names(1.0)
        assert not floor.order.comes_before(old, None, 9.0)
        assert floor.order.comes_before(old, None, 10.0)

    def test_expected_runs_follow_the_order(self) -> None:
        """ENST: higher-ranked sequences run first, and the work ahead of one is divided by the batch's width."""
        floor = Floor(width=2)
        sequences = [floor.add("a", 5), floor.add("b", 5), floor.add("c", 60)]
        ordered = floor.order.order(sequences, 0.0)
        assert floor.order.next_runs_s(ordered, 0.0) == [0.0, 2 / 2, 2 * (2 + 4) / 2]
        assert floor.order.next_runs_s(ordered[::-1], 0.0) == [6.0, 1.0, 0.0]

    def test_a_lower_priority_is_expected_after_the_others(self) -> None:
        floor = Floor(width=1)
        high, low = floor.add("high", 60), floor.add("low", 5, priority=1)
        runs_s = floor.order.next_runs_s(floor.order.order([high, low], 0.0), 0.0)
        assert runs_s == [0.0, 8.0]


class TestTenants:
    """Turns of tenants, above the queues and below priorities."""

    def test_a_tenant_with_many_requests_does_not_push_others_back(self, floor: Floor) -> None:
        """Rows go to the least served tenant."""
        for number in range(3):
            floor.add(f"many{number}", 5, tenant="many")
        floor.add("one", 5, tenant="one")
        assert floor.names() == ["many0", "one", "many1", "many2"]

    def test_a_served_tenant_waits_for_others(self, floor: Floor) -> None:
        """A tenant is charged prompt tokens once and output tokens twice."""
        a, b = floor.add("a", 20, tenant="a"), floor.add("b", 5, tenant="b")
        floor.names()
        floor.run(3.0, a)
        floor.run(4.5, b)
        assert floor.names(4.5)[0] == "b"
        for _ in range(8):
            floor.run(5.0, b)
        assert floor.names(5.0)[0] == "a"  # 20 against 5 and 8 x 2

    def test_priorities_come_before_turns(self, floor: Floor) -> None:
        """The lower number first, whatever its tenant has had."""
        a, _ = floor.add("a", 20, tenant="a", priority=-1), floor.add("b", 5, tenant="b")
        floor.names()
        floor.run(3.0, a)
        assert floor.names(3.0) == ["a", "b"]


class TestInOrder:
    """Orders by a key."""

    def test_the_lower_priority_number_first_then_by_arrival(self, floor: Floor) -> None:
        sequences = [floor.add("a", 5, priority=1), floor.add("b", 5), floor.add("c", 5, priority=1)]
        ordered = KeyedPolicy(by_priority).order(sequences, 0.0)
        assert [sequence.choice_id for sequence in ordered] == ["b", "a", "c"]

    def test_least_to_compute_first(self, floor: Floor) -> None:
        """Shortest-job-first counts the remaining tokens of prompt and answer together."""
        a, b = floor.add("a", 50), floor.add("b", 5)
        b.max_new_tokens = 1046
        assert KeyedPolicy(by_tokens_left).order([b, a], 0.0) == [a, b]

    def test_without_a_key_they_stay_as_they_came(self, floor: Floor) -> None:
        """Without a key sequences keep their order and precede any newcomer; with one, a newcomer's key is unknown."""
        sequences = [floor.add("a", 50, priority=3), floor.add("b", 5)]
        assert KeyedPolicy().order(sequences, 0.0) == sequences
        assert KeyedPolicy().comes_before(sequences[0], None, 0.0)
        assert not KeyedPolicy(by_priority).comes_before(sequences[0], None, 0.0)
        assert KeyedPolicy().next_runs_s(sequences, 0.0) == [0.0, 1.0]

    @pytest.mark.parametrize(("scheduling", "first"), [("fcfs", "a"), ("priority", "b"), ("srpt", "b"), ("mlfq", "b")])
    def test_a_policy_names_its_order(self, scheduling: str, first: str, floor: Floor) -> None:
        sequences = [floor.add("a", 50, priority=3), floor.add("b", 5)]
        policy = WorkerPolicy(scheduling=Scheduling(scheduling), mlfq=QUEUES, cost=COST)
        assert scheduling_policy_of(policy, floor.table, floor.prefixes).order(sequences, 0.0)[0].choice_id == first


def test_queues_follow_from_what_a_decode_costs() -> None:
    """The first quantum is one decode, and starving begins at 1,500, unless configured."""
    derived = queues_for(COST, quantum_ratio=4.0)
    assert (derived.first_quantum_s, derived.quantum_ratio, derived.starve_limit_s) == (1.0, 4.0, 1500.0)
    assert queues_for(COST, starve_limit_s=0.5).starve_limit_s == 0.5
    assert derived.quantum_s(1) == COST.iteration_s(BatchShape(decodes=1, decode_context=1))
