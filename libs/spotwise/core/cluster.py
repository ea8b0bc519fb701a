"""Which prompt worker and which token worker serve a request.

Law: join the shortest queue, counted in pending tokens, for both phases at the same time (Splitwise, section 4.2). The
prompt side counts prompt tokens not yet computed, the token side tokens still owed, among workers with room for the
request's KV. Each side looks in its own pool, then in the mixed pool, then in the opposite one where the first two are empty.

A worker outside the prompt pool computes prompts only for itself: the reservation becomes the sequence and nothing is
transferred. Were two mixed workers to compute prompts for one another, each could fill up with reservations whose prompts
wait for blocks on the other, for ever.

A worker's queue is what its last heartbeat reported plus what was assigned to it since, matched by assignment number: counts
are derived from reports and cannot drift.

Invariants: ties go to the smaller worker id; a worker that is not READY is never chosen; a token worker is chosen only if its
known free blocks hold what it reserves for the request, and all its blocks the whole request; prompts for another worker are
computed in the prompt pool only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from spotwise.core.messages import Member, MemberState, Pool, WorkerLoad

#: An order that no heartbeat has shown after so long never arrived.
ASSIGNMENT_LOST_S = 5.0


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one order adds to a worker's queues until its heartbeat shows it."""

    number: int
    sent_s: float
    prompt_tokens: int = 0
    owed_tokens: int = 0
    kv_blocks: int = 0


@dataclass(slots=True)
class WorkerView:
    """A worker as the scheduler sees it."""

    member: Member
    unseen: list[Assignment] = field(default_factory=list)

    def heard(self, member: Member, scheduler_id: str, now: float) -> None:
        """Replace the report, and forget the assignments that it includes, or that were lost on their way."""
        self.member = member
        seen = dict(self.load.assignments_seen).get(scheduler_id, 0)
        lost_before_s = now - ASSIGNMENT_LOST_S
        self.unseen = [a for a in self.unseen if a.number > seen and a.sent_s > lost_before_s]

    @property
    def load(self) -> WorkerLoad:
        """The last reported load."""
        return self.member.load or WorkerLoad()

    @property
    def is_ready(self) -> bool:
        """Whether it takes new requests."""
        return self.member.state is MemberState.READY and self.load.kv_blocks_total > 0

    @property
    def pending_prompt_tokens(self) -> int:
        """Length of its prompt queue."""
        return self.load.pending_prompt_tokens + sum(assignment.prompt_tokens for assignment in self.unseen)

    @property
    def owed_tokens(self) -> int:
        """Length of its token queue."""
        return self.load.owed_tokens + sum(assignment.owed_tokens for assignment in self.unseen)

    @property
    def free_blocks(self) -> int:
        """KV blocks that a newcomer may have and that nobody has been promised."""
        return (
            self.load.kv_blocks_free
            - self.load.kv_blocks_kept
            - sum(assignment.kv_blocks for assignment in self.unseen)
        )

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` tokens fill on this worker."""
        return -(-tokens // self.load.kv_block_size)

    def blocks_to_reserve(self, prompt_tokens: int, max_new_tokens: int) -> int:
        """Blocks that this worker takes for a request when it reserves them."""
        ahead = self.load.reserved_new_tokens
        return self.blocks_for(prompt_tokens + (max_new_tokens if ahead is None else min(max_new_tokens, ahead)))

    def could_ever_hold(self, tokens: int) -> bool:
        """Tell whether the worker, empty, would hold the request."""
        return self.blocks_for(tokens) <= self.load.kv_blocks_total


_PROMPT_ORDER = (Pool.PROMPT, Pool.MIXED, Pool.TOKEN)
_TOKEN_ORDER = (Pool.TOKEN, Pool.MIXED, Pool.PROMPT)


def _first_pool(workers: Iterable[WorkerView], order: tuple[Pool, ...]) -> list[WorkerView]:
    """Return the ready workers of the first pool in `order` that has any."""
    ready = [worker for worker in workers if worker.is_ready]
    for pool in order:
        members = [worker for worker in ready if worker.member.pool is pool]
        if members:
            return members
    return []


def choose_workers(
    workers: Iterable[WorkerView], prompt_tokens: int, max_new_tokens: int, extra: Callable[[WorkerView], int]
) -> tuple[WorkerView, WorkerView] | None:
    """Return the prompt worker and the token worker of a request, or `None` where none has room now.

    Args:
        workers: all of them.
        prompt_tokens: of the request; a prompt worker whose cache cannot hold them is passed over.
        max_new_tokens: of the request.
        extra: prompt tokens meant for a worker and not yet sent to it.
    """
    views = list(workers)
    roomy = [
        worker
        for worker in _first_pool(views, _TOKEN_ORDER)
        if worker.could_ever_hold(prompt_tokens + max_new_tokens)
        and worker.free_blocks >= worker.blocks_to_reserve(prompt_tokens, max_new_tokens)
    ]
    token_worker = min(roomy, key=lambda worker: (worker.owed_tokens, worker.member.id), default=None)
    if token_worker is None:
        return None
    prompt_pool = _first_pool(views, _PROMPT_ORDER)
    if prompt_pool[0].member.pool is not Pool.PROMPT or token_worker.member.pool is Pool.PROMPT:
        return token_worker, token_worker
    able = [w for w in prompt_pool if w.could_ever_hold(prompt_tokens)]
    prompt_worker = min(able, key=lambda w: (w.pending_prompt_tokens + extra(w), w.member.id), default=None)
    return None if prompt_worker is None else (prompt_worker, token_worker)


def could_ever_serve(workers: Iterable[WorkerView], prompt_tokens: int, kv_tokens: int) -> bool:
    """Tell whether an idle mesh of these workers would serve the request."""
    views = list(workers)
    if not any(w.could_ever_hold(kv_tokens) for w in _first_pool(views, _TOKEN_ORDER)):
        return False
    prompt_pool = _first_pool(views, (Pool.PROMPT,))
    return not prompt_pool or any(w.could_ever_hold(prompt_tokens) for w in prompt_pool)
