"""A worker as the scheduler sees it: its load, what it was sent since, and its hazard of ending.

Law: rates of one class differ by less than a factor of two, so that the first of each class is nearly the best of it.

Law: a worker's queues are its last heartbeat's, plus the orders that the heartbeat cannot include yet.
Orders are numbered, and a heartbeat echoes the last number seen; an order not echoed within `ASSIGNMENT_LOST_S` was lost.
A worker is in its home pool, or in the mixed pool while it has off-pool work (Splitwise, section 4.2); derived, never
stored. Off-pool are token phases in the prompt pool, from their reservation on, and prompt phases in the token pool.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from spotwise.core.lives.survival import PiecewiseHazard
from spotwise.core.messages.members import Member, MemberState, Pool, WorkerLoad

#: A class follows from the ends over so many seconds: about the time of a long answer.
CLASS_HORIZON_S = 60.0
#: Below 2**-26 ends a second (one in two years) and from 1/2 on there is one class each, so that classes are few.
_RAREST, _SOONEST = -26, 0


@dataclass(slots=True)
class WorkerLife:
    """A worker's hazard, and its age in it at the last report; never changed.

    Attributes:
        life_class: ends a second to a power of two.
        per_s, steady_s: its hazard at that age, and for how many seconds it stays that.
    """

    hazard: PiecewiseHazard
    age_s: float
    life_class: int
    per_s: float
    steady_s: float

    @classmethod
    def of(cls, hazard: PiecewiseHazard, age_s: float) -> WorkerLife:
        """Return the life at an age in seconds."""
        per_s = hazard.expected_ends(age_s, CLASS_HORIZON_S) / CLASS_HORIZON_S
        life_class = math.frexp(per_s)[1] if per_s else _RAREST
        return cls(hazard, age_s, min(max(life_class, _RAREST), _SOONEST), *hazard.at(age_s))


#: Seconds after which an order that no heartbeat has shown counts as lost.
ASSIGNMENT_LOST_S = 5.0


@dataclass(slots=True)
class Assignment:
    """What one order adds to a worker's queues until its heartbeat includes it; never changed."""

    number: int
    sent_s: float
    prompt_tokens: int = 0
    remaining_tokens: int = 0
    kv_blocks: int = 0


def has_off_pool_work(home_pool: Pool | None, load: WorkerLoad) -> bool:
    """Tell whether a worker of that home pool reports work of the opposite pool."""
    if home_pool is Pool.PROMPT:
        return load.decoding + load.prompts_in_place + load.waiting_for_kv > 0
    if home_pool is Pool.TOKEN:
        return load.prompts_in_place + load.prompts_to_hand_off > 0
    return False


class WorkerView:
    """One worker: its last report, and the orders sent since.

    Attributes:
        pending_prompt_tokens, remaining_tokens: lengths of its prompt queue and of its token queue.
        free_tokens: KV tokens that are free and not promised, in whole blocks; `kv_tokens` is its whole cache.
        reserves_ahead: the most new tokens of a request for which it reserves blocks.
        decoding: sequences in their token phase, or about to be.
        numerics_class: in which it computes.
        life: its hazard, as far as it is known (`lives.py`); `None`: it stays, or nothing is known.
        unseen_prompts, unseen_decodes: prompt and token phases given to it that no report includes yet.
    """

    __slots__ = (
        "_intended",
        "_reports_off_pool_work",
        "_unseen",
        "decoding",
        "free_tokens",
        "id",
        "kv_tokens",
        "life",
        "load",
        "member",
        "numerics_class",
        "pending_prompt_tokens",
        "remaining_tokens",
        "reserves_ahead",
        "unseen_decodes",
        "unseen_prompts",
    )

    def __init__(self, member: Member) -> None:
        self._unseen: deque[Assignment] = deque()
        self._intended: dict[str, int] = {}
        self.id = member.id
        self.life: WorkerLife | None = None
        self.member, self.load, self.numerics_class = member, member.load or WorkerLoad(), member.numerics_class
        self._recount()

    def reported(self, member: Member, scheduler_id: str, now: float) -> None:
        """Replace the report, and drop the assignments that it includes or that were lost on their way."""
        if member.numerics is not self.member.numerics:
            self.numerics_class = member.numerics_class
        self.member, self.load = member, member.load or WorkerLoad()
        seen = 0
        for id_, number in self.load.assignments_seen:
            if id_ == scheduler_id:
                seen = number
        lost_before_s = now - ASSIGNMENT_LOST_S
        unseen = self._unseen
        while unseen and (unseen[0].number <= seen or unseen[0].sent_s <= lost_before_s):
            unseen.popleft()
        self._recount()

    def assign(self, assignment: Assignment) -> None:
        """Count an order that is sent now; numbers ascend."""
        self._unseen.append(assignment)
        self._count(assignment)

    def intend(self, choice_id: str, prompt_tokens: int) -> None:
        """Count a prompt that will be sent once the reservation is made."""
        self.drop_intended(choice_id)
        self._intended[choice_id] = prompt_tokens
        self.pending_prompt_tokens += prompt_tokens
        self.unseen_prompts += 1

    def drop_intended(self, choice_id: str) -> bool:
        """Stop counting an intended prompt: it was sent, or will not be; tell whether it was counted."""
        prompt_tokens = self._intended.pop(choice_id, None)
        if prompt_tokens is None:
            return False
        self.pending_prompt_tokens -= prompt_tokens
        self.unseen_prompts -= 1
        return True

    def _recount(self) -> None:
        load = self.load
        self.pending_prompt_tokens = load.pending_prompt_tokens + sum(self._intended.values())
        self.remaining_tokens = load.remaining_tokens
        self.decoding = load.decoding
        self.unseen_prompts, self.unseen_decodes = len(self._intended), 0
        self.kv_tokens = load.kv_blocks_total * load.kv_block_size
        self.free_tokens = (load.kv_blocks_free - load.kv_blocks_kept) * load.kv_block_size
        self.reserves_ahead = self.kv_tokens if load.reserved_new_tokens is None else load.reserved_new_tokens
        self._reports_off_pool_work = has_off_pool_work(self.member.pool, load)
        for assignment in self._unseen:
            self._count(assignment)

    def _count(self, assignment: Assignment) -> None:
        self.pending_prompt_tokens += assignment.prompt_tokens
        self.remaining_tokens += assignment.remaining_tokens
        self.free_tokens -= assignment.kv_blocks * self.load.kv_block_size
        if assignment.prompt_tokens:
            self.unseen_prompts += 1
        if assignment.remaining_tokens:
            self.unseen_decodes += 1
            self.decoding += 1

    @property
    def life_class(self) -> int | None:
        """Its class of life; `None` for all that stay, or of which nothing is known."""
        return None if self.life is None else self.life.life_class

    @property
    def is_ready(self) -> bool:
        """Whether it takes new requests."""
        return self.member.state is MemberState.READY and self.load.kv_blocks_total > 0

    @property
    def tokens_to_wait_behind(self) -> int:
        """Pending prompt tokens if a prompt or a preempted sequence waits there; else 0, since a new prompt is next."""
        load = self.load
        next_prompts = 0 if load.pending_prompt_tokens else 1
        waits = load.waiting or load.preempted or self.unseen_prompts > next_prompts
        return self.pending_prompt_tokens if waits else 0

    @property
    def home_pool(self) -> Pool:
        """Its home pool; the mixed pool where it names none."""
        return self.member.pool or Pool.MIXED

    @property
    def is_off_pool(self) -> bool:
        """Whether it is in the mixed pool instead of its own: it has, or was sent, off-pool work."""
        if self._reports_off_pool_work:
            return True
        home_pool = self.member.pool
        if home_pool is Pool.TOKEN:
            return self.unseen_prompts > 0
        return home_pool is Pool.PROMPT and self.unseen_decodes > 0

    def blocks_to_reserve(self, prompt_tokens: int, max_new_tokens: int) -> int:
        """KV blocks that it reserves for a request."""
        return -(-self._tokens_to_reserve(prompt_tokens, max_new_tokens) // self.load.kv_block_size)

    def has_capacity(self, prompt_tokens: int, max_new_tokens: int) -> bool:
        """Tell whether it can reserve a request's blocks now, and could hold all of the request."""
        if prompt_tokens + max_new_tokens > self.kv_tokens:
            return False
        ahead = self.reserves_ahead  # `_tokens_to_reserve`, which a search has no time to call
        return prompt_tokens + (max_new_tokens if max_new_tokens < ahead else ahead) <= self.free_tokens

    def _tokens_to_reserve(self, prompt_tokens: int, max_new_tokens: int) -> int:
        ahead = self.reserves_ahead
        return prompt_tokens + (max_new_tokens if max_new_tokens < ahead else ahead)

    def could_ever_hold(self, tokens: int) -> bool:
        """Tell whether its cache could hold so many tokens when idle."""
        return tokens <= self.kv_tokens
