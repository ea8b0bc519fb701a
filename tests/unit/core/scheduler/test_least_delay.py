"""No rule sends a request behind a minute of queue beside a worker that is idle."""

from __future__ import annotations

from typing import Any

import pytest

from spotwise.core.messages.members import Member
from spotwise.core.scheduler.placements import PlacedBy
from spotwise.core.scheduler.policy import PoolPolicy
from tests.unit.core.builders import worker_member
from tests.unit.core.scheduler.placing import chosen, mixed_worker, prompt_worker

DEFAULT = PoolPolicy()
#: What a worker reports after prompts of a thousand tokens, at 2.9 ms each, and after hand-offs of 12 ms.
KNOWN: dict[str, Any] = {"prompt_token_s": 0.0029, "prompt_tokens_timed": 1000, "blocks": 1000}
HAND_OFF: dict[str, Any] = {"kv_push_token_s": 1.2e-5, "kv_push_tokens_timed": 1000}
#: What a prompt worker reports whose only prompt was a word, with all that an iteration and a first connection take.
ONE_WORD: dict[str, Any] = {
    "prompt_token_s": 0.029,
    "prompt_tokens_timed": 20,
    "kv_push_token_s": 0.04,
    "kv_push_tokens_timed": 20,
    "blocks": 1000,
}
LONG: dict[str, Any] = {
    "pending": 7000,
    "waiting": 0,
    "computing_prompt_tokens": 7000,
    "prompts_in_place": 1,
    "owed": 100,
}


def workers_of_a_thousand(*members: Member, **demand: Any) -> tuple[str, str, PlacedBy]:
    found = chosen(*members, **{"prompt_tokens": 1000, "kv_tokens": 1100, "policy": DEFAULT} | demand)
    assert found is not None
    return found


class TestBesideALongPrompt:
    """A default mesh, one prompt and one token worker; the token worker computes 7,000 tokens; then come 1,000."""

    @pytest.mark.parametrize("idle", [ONE_WORD, {**KNOWN, **HAND_OFF}, {**KNOWN}, {"blocks": 1000}])
    def test_the_newcomer_goes_to_the_idle_worker(self, idle: dict[str, Any]) -> None:
        """Whatever the idle prompt worker has measured: what a single word took says nothing of a thousand tokens."""
        assert workers_of_a_thousand(prompt_worker("p", **idle), worker_member("t", **KNOWN, **LONG))[0] == "p"

    @pytest.mark.parametrize("figures", [{**KNOWN, **HAND_OFF}, {"blocks": 1000}])
    def test_the_other_way_round(self, figures: dict[str, Any]) -> None:
        """The prompt worker computes, be it the first prompt of the mesh: the token worker serves both phases."""
        busy = prompt_worker("p", **figures, pending=7000, waiting=0, prompts_to_hand_off=1)
        assert workers_of_a_thousand(busy, worker_member("t", **figures))[:2] == ("t", "t")

    def test_a_worker_that_is_known_to_be_slow_stays_idle(self) -> None:
        slow = {**KNOWN, **HAND_OFF, "prompt_token_s": 0.09}
        assert workers_of_a_thousand(prompt_worker("p", **slow), worker_member("t", **KNOWN, **LONG))[0] == "t"

    def test_between_two_queues_the_shorter_one_in_seconds(self) -> None:
        """Both compute; the one with more tokens is ten times as fast."""
        fast = {**KNOWN, **HAND_OFF, "prompt_token_s": 0.00029}
        busy = prompt_worker("p", **fast, pending=9000, waiting=0, prompts_to_hand_off=1)
        assert workers_of_a_thousand(busy, worker_member("t", **KNOWN, **LONG))[0] == "p"


class TestRules:
    """What the pools' rules prefer, beside a worker that is idle and that they would not look at."""

    def test_a_queue_within_its_threshold_is_still_a_queue(self) -> None:
        """8,000 tokens are within the threshold of 8,192, and the token worker decodes for eight; a mixed worker is idle."""
        busy = prompt_worker("p", **KNOWN, **HAND_OFF, pending=7000)
        streams = worker_member("t", **KNOWN, decoding=8, owed=100)
        assert workers_of_a_thousand(busy, streams, mixed_worker("m", **KNOWN)) == ("m", "m", PlacedBy.LEAST_DELAY)

    def test_a_stream_is_no_queue_for_a_prompt(self) -> None:
        """Of two mixed workers one computes 7,000 tokens, and one decodes an answer without a bound."""
        computes = mixed_worker("m1", **KNOWN, **LONG)
        decodes = mixed_worker("m2", **KNOWN, decoding=1, owed=8000)
        assert workers_of_a_thousand(computes, decodes)[:2] == ("m2", "m2")

    def test_the_mixed_pool_is_no_reason_to_wait(self) -> None:
        """The prompt pool is over; a token worker that computes prompts already is preferred up to a hand-off."""
        full = prompt_worker("p", **KNOWN, **HAND_OFF, pending=9000)
        away = worker_member("t1", **KNOWN, pending=7000, waiting=0, prompts_in_place=1)
        assert workers_of_a_thousand(full, away, worker_member("t2", **KNOWN))[:2] == ("t2", "t2")

    def test_the_last_resort_of_a_prompt_worker_with_decodes(self) -> None:
        """All token workers are without memory; of the prompt workers the one that decodes has a queue of 20 s."""
        decodes = prompt_worker("p1", **KNOWN, **HAND_OFF, pending=7000, waiting=0, decoding=1)
        idle = prompt_worker("p2", **KNOWN, **HAND_OFF)
        found = workers_of_a_thousand(decodes, idle, worker_member("t", **{**KNOWN, "blocks": 1000}, free=1))
        assert found[:2] == ("p2", "p2")

    def test_a_prefix_saves_what_it_saves_and_no_more(self) -> None:
        """A worker that holds 900 of 1,000 tokens is worth 900 tokens of queue, not 7,000."""
        holder = prompt_worker("p1", **KNOWN, **HAND_OFF, pending=7000)
        idle = prompt_worker("p2", **KNOWN, **HAND_OFF)
        streams = worker_member("t", **KNOWN, decoding=8, owed=800)
        assert workers_of_a_thousand(holder, idle, streams, held={"p1": 900})[0] == "p2"
        near = prompt_worker("p1", **KNOWN, **HAND_OFF, pending=800)
        assert workers_of_a_thousand(near, idle, streams, held={"p1": 900})[0] == "p1"

    def test_rules_alone_can_be_had(self) -> None:
        """`break_even=False` compares nothing, as the published simulator."""
        busy = prompt_worker("p", **KNOWN, **HAND_OFF, pending=7000)
        found = workers_of_a_thousand(busy, worker_member("t", **KNOWN), policy=PoolPolicy(break_even=False))
        assert found == ("p", "t", PlacedBy.HOME_POOL)
