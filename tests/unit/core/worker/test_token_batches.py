"""What a worker sends for an iteration, in batches that a broker takes."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.gateway import commands as g
from spotwise.core.gateway.recovery import RecoveryLimits
from spotwise.core.messages import mesh as m
from spotwise.core.requests.request import FinishReason
from spotwise.core.requests.sampling import TOO_LARGE, TokenLogprobs
from spotwise.core.worker.sequences.table import MOST_BATCH_BYTES, sendable
from spotwise.wire.codec import encode
from tests.unit.core.builders import only
from tests.unit.core.gateway_bench import GatewayBench, submitted

#: What a batch has beside its deltas.
ENVELOPE_BYTES = 200
#: Of the prompt that `GatewayBench` opens.
PROMPT_TOKENS = 30


def scores(tokens: int, alternatives: int, first_id: int = 100_000) -> tuple[TokenLogprobs | None, ...]:
    """Log-probabilities of a prompt; the ids are as long as those of a large vocabulary."""
    ids = tuple(range(first_id, first_id + alternatives))
    return (None, *(TokenLogprobs(-1.0 - index, ids, (-1.5,) * alternatives) for index in range(tokens - 1)))


def large(attempt_id: int, tokens: int = 8000) -> m.TokenDelta:
    """A first token whose prompt's log-probabilities are more than a broker's message holds."""
    return m.TokenDelta(attempt_id, 0, 5, prompt_logprobs=scores(tokens, 20))


@st.composite
def deltas(draw: st.DrawFn) -> m.TokenDelta:
    attempt_id = draw(st.integers(1, 100))
    extras: dict[str, Any] = {}
    if draw(st.booleans()):
        extras["prompt_logprobs"] = scores(draw(st.integers(1, 3000)), draw(st.integers(0, 20)), 2**32 - 100)
    if draw(st.booleans()):
        extras["logprobs"] = TokenLogprobs(-1.0, tuple(range(2**32 - 21, 2**32 - 1)), (-1.0,) * 20)
    if draw(st.booleans()):
        return m.TokenDelta(attempt_id, 0, 5, embedding=(0.5,) * draw(st.integers(1, 60_000)))
    return m.TokenDelta(attempt_id, draw(st.integers(0, 2**32 - 1)), 2**32 - 1, queue_s=1.0, **extras)


@given(st.lists(deltas(), min_size=1, max_size=4))
def test_each_batch_is_within_its_bound_and_nothing_is_lost(given_deltas: list[m.TokenDelta]) -> None:
    """Encoded as it is sent, whatever the deltas have; tokens keep their order, and log-probabilities theirs."""
    batches = sendable(given_deltas)
    for batch in batches:
        encoded = encode(m.TokenBatch("w", batch, 2**63, 2**63))
        assert len(encoded) <= MOST_BATCH_BYTES + ENVELOPE_BYTES
    joined: list[m.TokenDelta] = []
    ahead: list[TokenLogprobs | None] = []
    for part in chain.from_iterable(batches):
        ahead.extend(part.prompt_logprobs or ())
        if part.token_id is not None:
            joined.append(part if part.prompt_logprobs is None else part._replace(prompt_logprobs=tuple(ahead)))
            ahead.clear()
    assert joined == given_deltas
    assert ahead == []


def test_a_large_delta_leaves_its_batch_mates_alone() -> None:
    """They are in other batches, but for what fits beside its last part."""
    small = [m.TokenDelta(number, 3, 7) for number in range(2, 6)]
    batches = sendable([*small[:2], large(1), *small[2:]])
    assert [delta.token_id for delta in batches[0][:2]] == [7, 7]
    assert len(batches) > 4
    assert sum(len(delta.prompt_logprobs or ()) for batch in batches for delta in batch) == 8000
    assert sendable(small) == [tuple(small)]
    assert sendable([]) == [()]


class TestGateway:
    """The gateway joins the parts that came ahead of a first token."""

    @pytest.mark.parametrize("attempts", [1, 2])
    def test_the_client_gets_all_log_probabilities(self, attempts: int) -> None:
        """Parts of an earlier attempt are not among them."""
        bench, all_scores = GatewayBench(), scores(PROMPT_TOKENS, 2)
        bench.open()
        parts = [all_scores[:10], all_scores[10:20]]
        for attempt_id in range(1, attempts + 1):
            for part in parts:
                ahead = m.TokenDelta(attempt_id, 0, None, prompt_logprobs=part)
                assert bench.feed(m.TokenBatch("p", (ahead,))) == []
            if attempt_id < attempts:
                bench.error(stream=attempt_id)
        token = m.TokenDelta(attempts, 0, 50, prompt_logprobs=all_scores[20:])
        (delivered,) = only(bench.feed(m.TokenBatch("p", (token,))), g.Deliver)
        assert delivered.tokens == (token._replace(prompt_logprobs=all_scores),)

    def test_a_lost_part_costs_an_attempt(self) -> None:
        """The token is not delivered without it."""
        bench, all_scores = GatewayBench(RecoveryLimits()), scores(PROMPT_TOKENS, 2)
        bench.open()
        token = m.TokenDelta(1, 0, 50, prompt_logprobs=all_scores[20:])
        commands = bench.feed(m.TokenBatch("p", (token,)))
        assert only(commands, g.Deliver) == []
        assert submitted(commands) == [(2, 2, ())]

    def test_what_no_message_holds_fails_with_a_code_of_its_own(self) -> None:
        """Sent again it would meet the same."""
        bench = GatewayBench()
        bench.open()
        ended = m.TokenDelta(1, 0, None, FinishReason.ERROR, f"{TOO_LARGE}: of 9 bytes")
        (failed,) = only(bench.feed(m.TokenBatch("p", (ended,))), g.Fail)
        assert failed.code == g.FAIL_TOO_LARGE
