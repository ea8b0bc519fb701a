"""Placements for the tests: the chosen workers and the rule that chose them."""

from __future__ import annotations

from spotwise.core.messages.members import Member, Pool
from spotwise.core.scheduler.placement import Placer
from spotwise.core.scheduler.placements import PlacedBy, Placement, RequestDemand
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.pools import Pools
from tests.unit.core.builders import worker_member

#: A queue of 100 prompt tokens is full, and the pools' rules decide alone.
TIGHT = PoolPolicy(max_pending_prompt_tokens=100, break_even=False)
#: The same where delays are compared.
WEIGHED = PoolPolicy(max_pending_prompt_tokens=100)


def placed(
    *members: Member,
    prompt_tokens: int = 16,
    kv_tokens: int = 32,
    policy: PoolPolicy = TIGHT,
    held: dict[str, int] | None = None,
    intended: dict[str, int] | None = None,
) -> Placement | None:
    pools = Pools(policy.decode_queue)
    for member in members:
        pools.join(member)
    for worker_id, tokens in (intended or {}).items():
        pools.intend(worker_id, "another", tokens)
    return Placer(pools, policy).place(RequestDemand(prompt_tokens, kv_tokens - prompt_tokens, held or {}))


def choice(*members: Member, **demand: object) -> tuple[str, str] | None:
    """Ids of the workers chosen."""
    found = placed(*members, **demand)  # type: ignore[arg-type]
    return None if found is None else (found.prompt_worker.id, found.token_worker.id)


def chosen(*members: Member, **demand: object) -> tuple[str, str, PlacedBy] | None:
    """Ids of the workers chosen, and by which rule."""
    found = placed(*members, **demand)  # type: ignore[arg-type]
    return None if found is None else (found.prompt_worker.id, found.token_worker.id, found.by)


def prompt_worker(worker_id: str, **fields: object) -> Member:
    return worker_member(worker_id, Pool.PROMPT, **fields)  # type: ignore[arg-type]


def mixed_worker(worker_id: str, **fields: object) -> Member:
    return worker_member(worker_id, Pool.MIXED, **fields)  # type: ignore[arg-type]
