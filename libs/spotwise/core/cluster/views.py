"""A worker as the scheduler sees it.

Law: a worker's queues are what its last heartbeat reported, plus the orders that it cannot have counted yet. Every order has a
number; a heartbeat carries the last one that the worker has seen; orders up to it are forgotten, because the report includes
them. An order that no heartbeat has shown for `ASSIGNMENT_LOST_S` never arrived. Which pool a worker is *in* is derived in
the same way and stored nowhere: its home, or the mixed pool while it holds work that is foreign to its home (Splitwise,
section 4.2). It returns home by itself when that work is done.

Foreign to a home in the prompt pool is every token phase, from its reservation on; foreign to one in the token pool every
prompt phase, until its first token, or until its KV is handed over where the worker was of the prompt pool before.

Invariants: counts equal a recount from the last report and the unseen orders at any time; nothing is incremented when a
request starts and decremented when it ends.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from spotwise.core.members import Member, MemberState, Pool, WorkerLoad

#: An order that no heartbeat has shown after so long never arrived.
ASSIGNMENT_LOST_S = 5.0


@dataclass(slots=True)
class Assignment:
    """What one order adds to a worker's queues until its heartbeat shows it; never changed."""

    number: int
    sent_s: float
    prompt_tokens: int = 0
    remaining_tokens: int = 0
    kv_blocks: int = 0


def has_off_pool_work(home: Pool | None, load: WorkerLoad) -> bool:
    """Tell whether a worker of that home reports work of the opposite pool."""
    if home is Pool.PROMPT:
        return load.decoding + load.prompts_in_place + load.waiting_for_kv > 0
    if home is Pool.TOKEN:
        return load.prompts_in_place + load.prompts_to_hand_off > 0
    return False


class WorkerView:
    """One worker: its last report, and what was ordered since.

    Attributes:
        member: the last report.
        load: its load.
        pending_prompt_tokens: length of its prompt queue.
        remaining_tokens: length of its token queue.
        free_tokens: tokens of KV that a newcomer may have and that nobody has been promised; whole blocks of them.
        kv_tokens: tokens that its whole KV cache holds.
        reserves_ahead: of a request's new tokens, for how many it reserves blocks at most.
        decoding: sequences in their token phase, or about to be.
        unseen_prompts, unseen_decodes: prompt and token phases that it is given, or about to be, and that no report shows yet.
    """

    __slots__ = (
        "_intended",
        "_reports_foreign_work",
        "_unseen",
        "decoding",
        "free_tokens",
        "id",
        "kv_tokens",
        "load",
        "member",
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
        self.member, self.load = member, member.load or WorkerLoad()
        self._recount()

    # --- what happens to it -------------------------------------------------------------------------------------------

    def heard(self, member: Member, scheduler_id: str, now: float) -> None:
        """Replace the report, and forget the assignments that it includes, or that were lost on their way."""
        self.member, self.load = member, member.load or WorkerLoad()
        seen = next((number for id_, number in self.load.assignments_seen if id_ == scheduler_id), 0)
        lost_before_s = now - ASSIGNMENT_LOST_S
        unseen = self._unseen
        while unseen and (unseen[0].number <= seen or unseen[0].sent_s <= lost_before_s):
            unseen.popleft()
        self._recount()

    def assign(self, assignment: Assignment) -> None:
        """Count an order that is sent now; numbers grow from order to order."""
        self._unseen.append(assignment)
        self._count(assignment)

    def intend(self, choice_id: str, prompt_tokens: int) -> None:
        """Count a prompt that will be ordered from it once the reservation stands."""
        self.intend_no_more(choice_id)
        self._intended[choice_id] = prompt_tokens
        self.pending_prompt_tokens += prompt_tokens
        self.unseen_prompts += 1

    def intend_no_more(self, choice_id: str) -> None:
        """The prompt was ordered, or will not be."""
        prompt_tokens = self._intended.pop(choice_id, None)
        if prompt_tokens is not None:
            self.pending_prompt_tokens -= prompt_tokens
            self.unseen_prompts -= 1

    def _recount(self) -> None:
        load = self.load
        self.pending_prompt_tokens = load.pending_prompt_tokens + sum(self._intended.values())
        self.remaining_tokens = load.remaining_tokens
        self.decoding = load.decoding
        self.unseen_prompts, self.unseen_decodes = len(self._intended), 0
        self.kv_tokens = load.kv_blocks_total * load.kv_block_size
        self.free_tokens = (load.kv_blocks_free - load.kv_blocks_kept) * load.kv_block_size
        self.reserves_ahead = self.kv_tokens if load.reserved_new_tokens is None else load.reserved_new_tokens
        self._reports_foreign_work = has_off_pool_work(self.member.pool, load)
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

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether it takes new requests."""
        return self.member.state is MemberState.READY and self.load.kv_blocks_total > 0

    @property
    def tokens_to_wait_behind(self) -> int:
        """Prompt tokens pending there, if a prompt or a preempted sequence waits; none behind those that are computed now, or
        about to be: who comes is next."""
        load = self.load
        about_to_be = 0 if load.pending_prompt_tokens else 1
        waits = load.waiting or load.preempted or self.unseen_prompts > about_to_be
        return self.pending_prompt_tokens if waits else 0

    @property
    def home_pool(self) -> Pool:
        """The pool that it belongs to; a worker that names none belongs to the mixed one."""
        return self.member.pool or Pool.MIXED

    @property
    def is_away(self) -> bool:
        """Whether it is in the mixed pool, not its own: it holds work of the opposite pool, or was ordered to."""
        if self._reports_foreign_work:
            return True
        home = self.member.pool
        if home is Pool.TOKEN:
            return self.unseen_prompts > 0
        return home is Pool.PROMPT and self.unseen_decodes > 0

    # --- what fits ----------------------------------------------------------------------------------------------------

    def blocks_to_reserve(self, prompt_tokens: int, max_new_tokens: int) -> int:
        """Blocks that this worker takes for a request when it reserves them."""
        return -(-self._tokens_to_reserve(prompt_tokens, max_new_tokens) // self.load.kv_block_size)

    def has_room(self, prompt_tokens: int, max_new_tokens: int) -> bool:
        """Tell whether it can reserve blocks for a request now, and hold all of it ever."""
        if prompt_tokens + max_new_tokens > self.kv_tokens:
            return False
        return self._tokens_to_reserve(prompt_tokens, max_new_tokens) <= self.free_tokens

    def _tokens_to_reserve(self, prompt_tokens: int, max_new_tokens: int) -> int:
        ahead = self.reserves_ahead
        return prompt_tokens + (max_new_tokens if max_new_tokens < ahead else ahead)

    def could_ever_hold(self, tokens: int) -> bool:
        """Tell whether an idle worker of this size could."""
        return tokens <= self.kv_tokens
