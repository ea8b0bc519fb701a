"""Prompts that begin alike: what is computed once, and what always is."""

from __future__ import annotations

import pytest

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.requests.sampling import Pooling, SampledToken, SamplingParams
from spotwise.core.worker import commands as c
from spotwise.core.worker.policy import WorkerPolicy
from tests.unit.core.builders import ledger, only
from tests.unit.core.worker.bench import HERE, WorkerBench, deltas

POLICY = WorkerPolicy(watermark=0.0)
TEXT = tuple(range(100, 200))


def bench_of(blocks: int = 20, policy: WorkerPolicy = POLICY) -> WorkerBench:
    return WorkerBench(blocks=blocks, policy=policy)


def prompt(
    bench: WorkerBench,
    choice_id: str,
    tokens: tuple[int, ...],
    sampling: SamplingParams | None = None,
    salt: str = "",
) -> tuple[int, int, tuple[int, ...]]:
    """Compute a prompt for another worker, whole; returns first position, tokens and blocks of its row."""
    commands = bench.start(choice_id, prompt=len(tokens)) + bench.load(
        choice_id, prompt=tokens, sampling=sampling, salt=salt
    )
    (order,) = only(commands, c.RunIteration)
    (row,) = order.batch.rows
    return row.first_position, row.num_tokens, row.block_ids


def hand_off(bench: WorkerBench, choice_id: str) -> list[c.WorkerCommand]:
    commands = bench.iterate(**{choice_id: 50})
    bench.delivered(choice_id)
    return commands


@pytest.fixture
def bench() -> WorkerBench:
    return bench_of()


class TestReuse:
    """Prefix reuse on a worker that computes prompts."""

    def test_full_blocks_of_a_prompt_that_began_alike_are_not_computed_again(self, bench: WorkerBench) -> None:
        """Two blocks of 16 are shared; the hand-off pushes them all, and gateway and ledger get the cached count."""
        assert prompt(bench, "a", TEXT[:40]) == (0, 40, (0, 1, 2))
        hand_off(bench, "a")
        first, tokens, blocks = prompt(bench, "b", (*TEXT[:36], 7, 7))
        assert (first, tokens, blocks[:2]) == (32, 6, (0, 1))
        commands = bench.iterate(b=50)
        (push,) = only(commands, c.PushKv)
        assert (push.source_block_ids, push.handoff.num_tokens) == (blocks, 38)
        assert [delta.cached_tokens for delta in deltas(commands)] == [32]
        assert ledger(commands, "prefilled")[0]["cached_tokens"] == 32
        bench.delivered("b")
        bench.assert_empty()

    def test_the_last_token_of_a_prompt_is_always_computed(self, bench: WorkerBench) -> None:
        """The last token's logits give the first new token, so its block is computed again."""
        prompt(bench, "a", TEXT[:32])
        hand_off(bench, "a")
        first, tokens, blocks = prompt(bench, "b", TEXT[:32])
        assert (first, tokens) == (16, 16)
        assert (blocks[0], blocks[1] == 1) == (0, False)

    def test_a_block_is_shared_while_its_first_owner_still_uses_it(self, bench: WorkerBench) -> None:
        prompt(bench, "a", TEXT[:40])
        assert bench.start("b", prompt=40) + bench.load("b", prompt=TEXT[:40]) == [c.LoadRecord("b", 1)]
        (order,) = only(bench.iterate(a=50), c.RunIteration)
        assert (order.batch.rows[0].first_position, order.batch.rows[0].block_ids) == (32, (0, 1, 3))
        assert bench.pool.used_blocks == 4
        bench.delivered("a")
        assert bench.pool.used_blocks == 3
        hand_off(bench, "b")
        bench.assert_empty()

    def test_another_beginning_shares_nothing_though_a_later_block_is_the_same(self, bench: WorkerBench) -> None:
        """The KV of a token depends on all tokens before it."""
        prompt(bench, "a", TEXT[:40])
        hand_off(bench, "a")
        assert prompt(bench, "b", (7, *TEXT[1:40]))[:2] == (0, 40)

    def test_a_prompt_with_requested_scores_is_computed_whole(self, bench: WorkerBench) -> None:
        """Scores need the logits of every position, a mean its hidden states; what it computes may be reused by others."""
        for name, sampling in (
            ("a", SamplingParams(prompt_logprobs=0)),
            ("b", SamplingParams(prompt_logprobs=0)),
            ("c", SamplingParams(pooling=Pooling.MEAN)),
        ):
            assert prompt(bench, name, TEXT[:40], sampling)[:2] == (0, 40)
            hand_off(bench, name)
        assert prompt(bench, "d", TEXT[:40])[:2] == (32, 8)
        hand_off(bench, "d")
        assert prompt(bench, "e", TEXT[:40], SamplingParams(pooling=Pooling.LAST))[:2] == (32, 8)

    def test_tenants_find_their_own_blocks_only(self, bench: WorkerBench) -> None:
        """The same prompt with another salt, or without one, is computed whole; each salt finds its own blocks again."""
        for name, salt in (("a", "acme"), ("b", "other"), ("d", "")):
            assert prompt(bench, name, TEXT[:40], salt=salt)[:2] == (0, 40)
            hand_off(bench, name)
        for name, salt in (("e", "acme"), ("f", "other"), ("g", "")):
            assert prompt(bench, name, TEXT[:40], salt=salt)[:2] == (32, 8)
            hand_off(bench, name)

    def test_it_can_be_turned_off(self) -> None:
        bench = bench_of(policy=WorkerPolicy(prefix_caching=False))
        for name in ("a", "b"):
            assert prompt(bench, name, TEXT[:40])[:2] == (0, 40)
            hand_off(bench, name)

    def test_what_was_given_away_is_computed_again(self) -> None:
        """Two prompts fill the cache in turn; each finds nothing of itself."""
        bench = bench_of(blocks=3)
        for name, tokens in (("a", TEXT[:40]), ("b", TEXT[50:90]), ("c", TEXT[:40])):
            assert prompt(bench, name, tokens)[:2] == (0, 40)
            hand_off(bench, name)

    def test_the_rest_of_a_prompt_counts_for_its_budget_and_not_the_whole(self) -> None:
        """Forty tokens of which 32 are there take 8 of the sixteen."""
        bench = bench_of(policy=WorkerPolicy(BatchLimits(4, 2048, 16), watermark=0.0))
        bench.prefill("z", prompt=1)
        bench.start("a", prompt=40)
        bench.load("a", prompt=TEXT[:40])
        hand_off(bench, "z")
        for _ in range(2):
            bench.iterate()
        hand_off(bench, "a")
        assert prompt(bench, "b", TEXT[:40])[:2] == (32, 8)


class TestInPlace:
    """Prefix reuse on a worker with both phases."""

    def begin(self, bench: WorkerBench, choice_id: str, tokens: tuple[int, ...], max_new: int = 20) -> c.RunIteration:
        bench.start(choice_id, prompt=len(tokens), new=max_new, target=HERE)
        (order,) = only(bench.load(choice_id, prompt=tokens, max_new=max_new), c.RunIteration)
        return order

    def test_a_prompt_begins_with_what_an_answer_left(self, bench: WorkerBench) -> None:
        """The next turn of a chat finds its whole history."""
        self.begin(bench, "a", TEXT[:20])
        for position in range(20, 34):
            bench.iterate(a=TEXT[position])
        bench.iterate(a=2)
        bench.assert_empty()
        order = self.begin(bench, "b", TEXT[:40])
        (row,) = order.batch.rows
        assert (row.first_position, row.num_tokens, row.block_ids[:2]) == (32, 8, (0, 1))
        assert bench.pool.used_blocks == 3

    def test_a_preempted_sequence_finds_its_own_blocks_again(self) -> None:
        """The sequence finds its blocks that were not reused, and its reported cached tokens stay those of its prompt."""
        bench = bench_of(blocks=4)
        bench.decode("a")
        bench.decode("b")
        bench.iterate(a=51)
        commands = bench.iterate(a=52, b=51)
        assert len(ledger(commands, "preempted")) == 1
        (order,) = only(bench.iterate(a=2), c.RunIteration)
        (row,) = order.batch.rows
        assert (row.sequence_id, row.first_position, row.num_tokens) == ("b@1", 16, 16)
        assert [delta.cached_tokens for delta in deltas(bench.iterate(b=52))] == [None]


@pytest.mark.parametrize("is_ill", [False, True])
def test_blocks_whose_numbers_were_none_are_no_prefix_of_another_request(is_ill: bool, bench: WorkerBench) -> None:
    """The engine has made zeros of them, which would give their next user wrong tokens. Other failures say nothing of KV."""
    prompt(bench, "a", TEXT)
    bench.feed(c.IterationFinished((SampledToken("a@1", 0, failure="no number", may_be_ill=is_ill),)))
    first, _, _ = prompt(bench, "b", TEXT)
    assert (first > 0) == (not is_ill)
