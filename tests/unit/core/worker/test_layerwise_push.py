"""KV that is handed off while its prompt is computed."""

from __future__ import annotations

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.costs.cost_model import LinkCost
from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.messages.hand_offs import PushMode
from spotwise.core.requests.record import KvHandoff
from spotwise.core.worker import commands as c
from spotwise.core.worker.kv.push_policy import ConfiguredPushMode, PushCosts
from spotwise.core.worker.policy import Reserve, WorkerPolicy
from tests.unit.core.builders import ledger, only, sent
from tests.unit.core.worker.bench import STOP_TOKEN, TARGET, WorkerBench, deltas, error_delta, rows

LAYERWISE = WorkerPolicy(BatchLimits(), Reserve.MAX_TOKENS, prefix_caching=False, kv_push=ConfiguredPushMode.LAYERWISE)


class TestLayerwise:
    """A prompt's KV leaves while it is computed."""

    def test_the_push_is_opened_before_the_iteration_and_committed_after_it(self) -> None:
        """The push has the prompt's blocks; after the first token only the commit remains."""
        bench = WorkerBench(policy=LAYERWISE)
        commands = bench.prefill("r", prompt=30)
        kinds = [type(command) for command in commands]
        assert kinds.index(h.OpenPush) < kinds.index(c.RunIteration)
        assert only(commands, h.OpenPush) == [h.OpenPush("r", 1, TARGET, (0, 1), 30, 0)]
        commands = bench.iterate(r=50)
        assert only(commands, h.CommitPush) == [h.CommitPush(KvHandoff("r", 1, 30, 50))]
        assert only(commands, c.PushKv) == []
        commands = bench.feed(h.HandoffDelivered("r", 1, 4096, 0.25, "shm", 0.05, PushMode.LAYERWISE))
        (facts,) = ledger(commands, "handed_off")
        assert (facts["transfer_s"], facts["visible_s"], facts["mode"]) == (0.25, 0.05, "layerwise")
        bench.assert_empty()

    def test_a_prompt_in_parts_opens_one_push(self) -> None:
        bench = WorkerBench(
            policy=WorkerPolicy(
                BatchLimits(4, 12, 12), Reserve.MAX_TOKENS, prefix_caching=False, kv_push=ConfiguredPushMode.LAYERWISE
            )
        )
        commands = bench.prefill("r", prompt=30) + bench.iterate() + bench.iterate() + bench.iterate(r=50)
        assert len(only(commands, h.OpenPush)) == len(only(commands, h.CommitPush)) == 1
        assert len(only(commands, c.RunIteration)) == 3

    def test_blocks_that_are_computed_already_are_named(self) -> None:
        """A prompt that begins like one before it."""
        bench = WorkerBench(policy=WorkerPolicy(kv_push=ConfiguredPushMode.LAYERWISE))
        known = tuple(range(40))
        bench.start("a", prompt=40)
        bench.load("a", prompt=known)
        bench.iterate(a=50)
        bench.delivered("a")
        bench.start("b", prompt=40)
        (push,) = only(bench.load("b", prompt=known), h.OpenPush)
        assert push.written_tokens == 32

    def test_a_prompt_for_this_worker_opens_none(self) -> None:
        bench = WorkerBench(policy=LAYERWISE)
        assert only(bench.in_place("r"), h.OpenPush) == []

    def test_one_that_is_cancelled_is_called_off_and_keeps_its_blocks_until_then(self) -> None:
        """The cancelled prompt's blocks become free once its iteration and its push have ended, in either order."""
        for push_first in (True, False):
            bench = WorkerBench(policy=LAYERWISE)
            bench.prefill("r")
            commands = bench.feed(m.CancelRequest("r", 1))
            assert only(commands, h.AbortPush) == [h.AbortPush("r", 1)]
            assert sent(commands, "t") == [m.CancelRequest("r", 1)]
            ends: list[c.WorkerEvent] = [c.IterationFinished(()), h.HandoffFailed("r", 1, "called off")]
            bench.feed(ends[push_first])
            assert bench.pool.free_blocks == 18
            assert bench.feed(ends[not push_first]) == [c.DropSequence("r@1")]
            bench.assert_empty()

    def test_one_that_ends_with_its_first_token_is_called_off(self) -> None:
        """There is nothing to hand over."""
        bench = WorkerBench(policy=LAYERWISE)
        bench.prefill("r")
        commands = bench.iterate(r=STOP_TOKEN)
        assert only(commands, h.AbortPush) == [h.AbortPush("r", 1)]
        assert only(commands, h.CommitPush) == []
        bench.feed(h.HandoffFailed("r", 1, "called off"))
        bench.assert_empty()

    def test_a_push_that_fails_before_its_prompt_is_computed_ends_the_attempt(self) -> None:
        """The attempt ends at once; its blocks are freed with the iteration, whose token is dropped."""
        bench = WorkerBench(policy=LAYERWISE)
        bench.prefill("r")
        commands = bench.feed(h.HandoffFailed("r", 1, "connection lost"))
        delta = error_delta(commands)
        assert (delta.retryable, delta.token_index) == (True, 0)
        assert only(commands, h.AbortPush) == []
        assert sent(commands, "t") == [m.CancelRequest("r", 1)]
        assert deltas(bench.iterate(r=50)) == []
        bench.assert_empty()

    def test_a_prompt_whose_iterations_fail_keeps_its_push_until_it_is_given_up(self) -> None:
        """The push is opened once; layers reported as written are whole, and are written again with the same content."""
        bench = WorkerBench(policy=LAYERWISE)
        assert only(bench.prefill("r"), h.OpenPush)
        commands = bench.feed(c.IterationFailed("out of memory"))
        assert rows(commands) == ["r@1"]
        assert only(commands, h.OpenPush) == only(commands, h.AbortPush) == []
        assert only(bench.feed(c.IterationFailed("out of memory")), h.AbortPush) == [h.AbortPush("r", 1)]
        bench.feed(h.HandoffFailed("r", 1, "called off"))
        bench.assert_empty()

    def test_one_on_its_way_is_called_off_as_well(self, bench: WorkerBench) -> None:
        """A serial push on its way is cancelled when its client leaves."""
        bench.prefill("r")
        bench.iterate(r=50)
        assert only(bench.feed(m.CancelRequest("r", 1)), h.AbortPush) == [h.AbortPush("r", 1)]
        bench.delivered("r")
        bench.assert_empty()

    def test_what_was_measured_decides(self) -> None:
        """The first two prompts of a pair try both ways; then the cheaper one is taken."""
        bench = WorkerBench(policy=WorkerPolicy(prefix_caching=False, kv_push=ConfiguredPushMode.AUTO))
        layerwise, costs = [], PushCosts()
        line = LinkCost(0.001, 1e9)
        for name in "abcd":
            layerwise.append(bool(only(bench.prefill(name), h.OpenPush)))
            bench.iterate(**{name: 50})
            costs = (
                PushCosts(line, costs.layerwise) if not layerwise[-1] else PushCosts(costs.serial, LinkCost(0.0, 1e12))
            )
            bench.feed(c.PushesMeasured("t", costs))
            bench.delivered(name)
        assert layerwise == [False, True, True, True]
        bench.assert_empty()
