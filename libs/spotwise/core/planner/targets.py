"""Chooses the workers that a running request can move to.

Law: a target is ready, stays, has the served weights and free blocks for all that the request may ever have here.
Targets of the sequence's numerics class come first; whether there are others: `scheduler/classes.py`.
Workers of the token pool come first, then mixed ones, then those of the prompt pool; of each the shortest token queue.
A target that refused a request is left out for it until the next survey but one.
"""

from __future__ import annotations

from collections.abc import Iterable

from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import MemberKind, Pool
from spotwise.core.planner.policy import PlannerPolicy
from spotwise.core.scheduler.classes import classes_to_move_to
from spotwise.core.scheduler.pools import (
    MIXED,
    PROMPT_OFF_POOL,
    PROMPT_ON_POOL,
    TOKEN_OFF_POOL,
    TOKEN_ON_POOL,
    Group,
    Pools,
    Queue,
)
from spotwise.core.scheduler.ranking import Need
from spotwise.core.scheduler.views import Assignment

_BY_PREFERENCE: tuple[tuple[Group, ...], ...] = (
    (TOKEN_ON_POOL,),
    (MIXED, TOKEN_OFF_POOL),
    (PROMPT_OFF_POOL, PROMPT_ON_POOL),
)
_WORKERS = (MemberKind.PROMPT_WORKER, MemberKind.TOKEN_WORKER)


class Targets:
    """The workers of the mesh, with what was ordered to move to each; orders count until its reports include them."""

    def __init__(self, policy: PlannerPolicy) -> None:
        self._policy = policy
        self._pools = Pools()
        self._assignments = 0

    def joined(self, member: m.Member) -> None:
        """Add a new worker."""
        if member.kind in _WORKERS:
            self._pools.join(member)

    def lost(self, member: m.Member) -> None:
        """Forget a worker that is gone."""
        if member.id in self._pools:
            self._pools.lose(member.id)

    def reported(self, member: m.Member, now: float) -> None:
        """Replace a worker's report."""
        if member.id in self._pools:
            self._pools.reported(member, "", now)

    def find(self, source_id: str, sequence: m.SurveyedSequence, without: Iterable[str]) -> str | None:
        """Return the worker for a sequence that has to leave `source_id`; `None` where none has the blocks."""
        own, excluded = self._class_of(source_id), frozenset(without)
        for numerics_class in classes_to_move_to(own, self._pools.classes, self._policy.crossing):
            if (found := self._find_in(numerics_class, sequence, excluded)) is not None:
                return found
        return None

    def _class_of(self, worker_id: str) -> str:
        return self._pools[worker_id].numerics_class if worker_id in self._pools else ""

    def _find_in(self, numerics_class: str, sequence: m.SurveyedSequence, without: frozenset[str]) -> str | None:
        size = sequence.known_tokens, sequence.remaining
        need = Need(*size, reserves=True, without=without, numerics_class=numerics_class)
        for groups in _BY_PREFERENCE:
            found = self._pools.first_of(Queue.HOME_POOL, groups, need)
            if found:
                return min(found, key=lambda view: (view.remaining_tokens, view.id)).id
        return None

    def find_spare(
        self,
        source_id: str,
        sequence: m.SurveyedSequence,
        without: Iterable[str],
        spare_share: float,
        *,
        token_pool: bool,
    ) -> str | None:
        """Return the worker for a sequence that could stay where it is, of the same class: one that keeps a share of its blocks
        free; of the token pool where that is asked for.
        """
        own, excluded = self._class_of(source_id), set(without)
        while (found := self._find_in(own, sequence, frozenset(excluded))) is not None:
            view = self._pools[found]
            spare = view.free_tokens - sequence.known_tokens - sequence.remaining
            if spare >= spare_share * view.kv_tokens and (not token_pool or view.home_pool is Pool.TOKEN):
                return found
            excluded.add(found)
        return None

    def stays(self, worker_id: str) -> bool:
        """Tell whether a worker takes requests (still)."""
        return self._pools.group_of(worker_id) is not None

    def assign(self, worker_id: str, sequence: m.SurveyedSequence, now: float) -> None:
        """Count a sequence that is about to move to a worker."""
        self._assignments += 1
        blocks = self._pools[worker_id].blocks_to_reserve(sequence.known_tokens, sequence.remaining)
        order = Assignment(self._assignments, now, remaining_tokens=sequence.remaining, kv_blocks=blocks)
        self._pools.assign(worker_id, order)

    def prompt_token_s(self) -> float:
        """Seconds of a prompt token on the fastest worker that has measured it."""
        measured = [view.load.prompt_token_s for view in self._pools if view.is_ready and view.load.prompt_token_s]
        return min(measured, default=self._policy.prompt_token_s)

    def queued_prompt_tokens(self) -> int:
        """Prompt tokens that a new prompt waits behind, where it waits least."""
        return min((view.tokens_to_wait_behind for view in self._pools if view.is_ready), default=0)
