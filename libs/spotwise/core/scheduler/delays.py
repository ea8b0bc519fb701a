"""Estimates how many seconds placements delay a request: joint JSQ compares them across pools (Splitwise, section 4.2; ADR 15).

Law: a placement's delay is the wait behind all prompt tokens that its prompt worker has not computed yet, those of iterations
that run among them; the prompt's own computing, once more for each sequence that decodes there; a split's hand-off; the seconds
that the token worker's decodes and prompts add to the answer's tokens; and an interruption's seconds times its chance.
Every term is in seconds, so that none outranks a queue. A figure holds up to the length that it was measured at
(`tokens_timed`). Beyond it a worker counts as fast as the fastest one compared, and a hand-off takes as long as one of that
length.

A worker that is wrongly taken for fast computes one long prompt, and is known from then on; one wrongly taken for slow would
stay idle beside a queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from spotwise.core.lives.survival import expected_cost_s
from spotwise.core.scheduler.answer_times import AnswerTimes, place
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.views import WorkerView

if TYPE_CHECKING:
    from spotwise.core.scheduler.placements import RequestDemand

#: What a token of another sequence in the batch adds to a token's seconds, as a share of them; until a worker has measured it.
BATCH_SHARE = 0.01


class Delays:
    """The delays of one request's placements, on workers that are as fast as `views` at least beyond what they have
    measured."""

    def __init__(
        self, policy: PoolPolicy, times: AnswerTimes, demand: RequestDemand, views: Iterable[WorkerView]
    ) -> None:
        self._policy = policy
        self._times = times
        self._demand = demand
        measured = [token_s for view in views if (token_s := view.load.prompt_token_s) is not None]
        self._batch_token_s = policy.token_s * BATCH_SHARE
        self._fastest_s = min(measured, default=self._batch_token_s)

    def compute_s(self, view: WorkerView, tokens: int) -> float:
        """Return the seconds of so many prompt tokens."""
        load = view.load
        token_s, timed, fastest_s = load.prompt_token_s, load.prompt_tokens_timed, self._fastest_s
        if token_s is None:
            return tokens * fastest_s
        if timed is None or tokens <= timed or token_s <= fastest_s:
            return tokens * token_s
        return timed * token_s + (tokens - timed) * fastest_s

    def wait_s(self, view: WorkerView) -> float:
        """Return less than the delay of any placement whose prompt is computed there."""
        return view.pending_prompt_tokens * self._fastest_s

    def prompt_s(self, view: WorkerView) -> float:
        """Return the seconds until the prompt is computed there, and what that delays those who decode there."""
        uncomputed = self._demand.uncomputed(view)
        all_s = self.compute_s(view, view.pending_prompt_tokens + uncomputed)
        return all_s + self.compute_s(view, uncomputed) * view.decoding if view.decoding else all_s

    def hand_off_s(self, view: WorkerView) -> float | None:
        """Return the seconds of the prompt's hand-off from a worker; `None` where it has measured none."""
        push_s, timed, tokens = view.load.kv_push_token_s, view.load.kv_push_tokens_timed, self._demand.prompt_tokens
        return None if push_s is None else push_s * (tokens if timed is None else min(tokens, timed))

    def answer_s(self, view: WorkerView) -> float:
        """Return what other decodes there, and its expected life, add to the answer."""
        new_tokens = self._demand.max_new_tokens
        beside = min(view.remaining_tokens, view.decoding * new_tokens) if view.decoding else 0
        load_s = beside * self._batch_token_s
        interruption_s = self._policy.interruption_s
        if view.life is None or not interruption_s:
            return load_s
        return expected_cost_s(place(view, load_s), self._times.lengths(new_tokens).seconds, interruption_s)

    def partner_s(self, view: WorkerView) -> float:
        """Return what a worker adds to an answer whose prompt another one computes: its own prompts hold decodes up."""
        pending = view.pending_prompt_tokens
        return self.answer_s(view) + (self.compute_s(view, pending) if pending else 0.0)

    def split_s(self, prompt_worker: WorkerView, token_worker: WorkerView) -> float:
        """Return the delay of a placement on two workers."""
        return self.prompt_s(prompt_worker) + (self.hand_off_s(prompt_worker) or 0.0) + self.partner_s(token_worker)

    def in_place_s(self, view: WorkerView) -> float:
        """Return the delay of a placement on one worker."""
        return self.prompt_s(view) + self.answer_s(view)

    def slack_s(self, prompt_worker: WorkerView) -> float:
        """Return by how much a placement may be worse than the best one: a hand-off, or the prompt's computing once, before any
        hand-off was measured, so that one is.
        """
        hand_off_s = self.hand_off_s(prompt_worker)
        return (
            self.compute_s(prompt_worker, self._demand.uncomputed(prompt_worker)) if hand_off_s is None else hand_off_s
        )
