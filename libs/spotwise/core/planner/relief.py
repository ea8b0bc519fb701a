"""Moves of requests away from workers that stay: those that run out of KV blocks, and those that left the token pool.

Law: a worker runs short where its free blocks may not last for `STEPS_AHEAD` more tokens of each sequence that decodes there:
soon one would lose its KV and be computed again. The request whose move saves most goes to a worker that keeps `SPARE_SHARE` of
its blocks free, if it saves anything; so no request moves back, and two full workers exchange none.
A worker that changed its home pool from token to another hands its decodes over to the token pool (re-purposing).
One request of a worker moves at a time, and a moved one stays for `REST_S`.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.latest import LatestDict
from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import MemberState, Pool
from spotwise.core.planner.change_cost import ChangeCost
from spotwise.core.planner.policy import PlannerPolicy
from spotwise.core.planner.targets import Targets
from spotwise.core.requests.record import sequence_id

#: Tokens of each decoding sequence for which a worker must have free blocks.
STEPS_AHEAD = 32
#: Share of a target's blocks that stays free.
SPARE_SHARE = 0.25
#: A request that was moved for relief stays for so long.
REST_S = 10.0
#: A survey or an order that is not answered within this was lost.
LOST_AFTER_S = 5.0
#: A worker that changed its pool hands over for so long at most.
HAND_OVER_S = 60.0
_REMEMBERED = 4096


@dataclass(slots=True)
class _Source:
    hands_over: bool
    number: int = 0
    asked_s: float = 0.0
    ordered: str | None = None  #: the sequence that is on its way


class Relief:
    """The workers that are relieved now; of one planner's term."""

    def __init__(self, planner_id: str, term: int, policy: PlannerPolicy, targets: Targets, cost: ChangeCost) -> None:
        self._planner_id = planner_id
        self._term = term
        self._policy = policy
        self._targets = targets
        self._cost = cost
        self._sources: dict[str, _Source] = {}
        self._pools: dict[str, Pool | None] = {}
        self._hands_over_until_s: dict[str, float] = {}
        self._moved_s = LatestDict[str, float](_REMEMBERED)

    def reported(self, member: m.Member, now: float) -> None:
        """Note whether a worker needs relief."""
        before = self._pools.get(member.id)
        self._pools[member.id] = member.pool
        if before is Pool.TOKEN and member.pool is not Pool.TOKEN:
            self._hands_over_until_s[member.id] = now + HAND_OVER_S
        load = member.load
        hands_over = now < self._hands_over_until_s.get(member.id, 0.0) and load is not None and load.decoding > 0
        if member.state is not MemberState.READY or load is None or not (hands_over or _runs_short(load)):
            self._sources.pop(member.id, None)
        elif self._policy.rebalances:
            known = self._sources.setdefault(member.id, _Source(hands_over))
            known.hands_over = hands_over

    def forget(self, worker_id: str) -> None:
        """Drop a worker that leaves or is gone."""
        for known in (self._sources, self._pools, self._hands_over_until_s):
            known.pop(worker_id, None)

    def surveys(self, now: float) -> list[m.Send]:
        """Return the surveys that are due."""
        due = []
        for worker_id, source in self._sources.items():
            waits = source.ordered is not None or source.number > 0
            if now - source.asked_s >= (LOST_AFTER_S if waits else self._policy.survey_s):
                source.number, source.asked_s, source.ordered = source.number + 1, now, None
                due.append(m.Send(worker_id, m.SurveyWorker(self._planner_id, source.number)))
        return due

    def surveyed(self, report: m.WorkerSurveyed, leaving: frozenset[str], now: float) -> list[m.Send]:
        """Order the move that saves most, if any does."""
        source = self._sources.get(report.worker_id)
        if source is None or source.number != report.number or source.ordered is not None:
            return []
        source.number = 0
        without = leaving | frozenset(self._sources) | {report.worker_id}
        for sequence in sorted(report.sequences, key=self._saved_s, reverse=True):
            key = sequence_id(sequence.choice_id, sequence.epoch)
            rests = now - self._moved_s.get(key, -REST_S) < REST_S
            if not sequence.tokens or sequence.target_id or rests or self._saved_s(sequence) <= 0.0:
                continue
            target_id = self._targets.find_spare(
                report.worker_id, sequence, without, SPARE_SHARE, token_pool=source.hands_over
            )
            if target_id is not None:
                self._targets.assign(target_id, sequence, now)
                self._moved_s[key], source.ordered = now, key
                order = m.MoveRequest(sequence.choice_id, sequence.epoch, self._planner_id, target_id, self._term)
                return [m.Send(report.worker_id, order)]
        return []

    def _saved_s(self, sequence: m.SurveyedSequence) -> float:
        """Seconds by which a move is sooner than computing the request again on this worker."""
        recompute_s = sequence.tokens * self._targets.prompt_token_s()
        return recompute_s - self._cost.move_s(sequence.tokens)

    def ended(self, report: m.MoveEnded) -> None:
        """Let the next request of the worker follow."""
        source = self._sources.get(report.worker_id)
        if source is not None and source.ordered == sequence_id(report.choice_id, report.epoch):
            source.ordered = None


def _runs_short(load: m.WorkerLoad) -> bool:
    if load.reserved_new_tokens is None or load.decoding < 2:
        return False  # all that its requests can need is reserved; or the only one cannot do without these blocks
    blocks_ahead = load.decoding * -(-STEPS_AHEAD // load.kv_block_size)
    return load.kv_blocks_total - load.kv_blocks_used < blocks_ahead
