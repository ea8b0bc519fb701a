"""Members, and the parts of commands that the tests of several roles look at."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from spotwise.core.messages import mesh as m
from spotwise.core.messages.numerics import Numerics

T = TypeVar("T")

#: Two classes with the same KV, and one with another.
DOT, AMX = Numerics("bfloat16", "dot", "k"), Numerics("bfloat16", "amx", "k")
FMA = Numerics("float32", "fma", "k")


def worker_member(
    worker_id: str,
    pool: m.Pool = m.Pool.TOKEN,
    *,
    incarnation: int = 1,
    state: m.MemberState = m.MemberState.READY,
    blocks: int = 100,
    free: int | None = None,
    kept: int = 0,
    reserved_new_tokens: int | None = None,
    pending: int = 0,
    owed: int = 0,
    seen: tuple[tuple[str, int], ...] = (),
    model_digest: str | None = None,
    numerics: Numerics | None = None,
    **load_fields: Any,
) -> m.Member:
    """A worker's heartbeat; its blocks hold 16 tokens each. `load_fields` are further ones of its load. Pending
    prompt tokens are of a waiting prompt, or of a running one with `waiting=0`.
    """
    load_fields.setdefault("waiting", 1 if pending else 0)
    load = m.WorkerLoad(
        pending_prompt_tokens=pending,
        remaining_tokens=owed,
        kv_blocks_total=blocks,
        kv_blocks_free=blocks if free is None else free,
        kv_blocks_kept=kept,
        kv_block_size=16,
        reserved_new_tokens=reserved_new_tokens,
        assignments_seen=seen,
        **load_fields,
    )
    kind = m.MemberKind.PROMPT_WORKER if pool is m.Pool.PROMPT else m.MemberKind.TOKEN_WORKER
    address = f"{worker_id}:2"
    named = worker_id, kind, incarnation, state, "host", 1, "host:1", pool, address, "model"
    return m.Member(*named, load, model_digest, numerics=numerics)


def plain_member(
    member_id: str, kind: m.MemberKind, *, incarnation: int = 1, state: m.MemberState = m.MemberState.READY
) -> m.Member:
    """The heartbeat of a member that is no worker."""
    return m.Member(member_id, kind, incarnation, state, "host", 1, "host:1")


def sent(commands: Iterable[object], recipient_id: str) -> list[m.Message]:
    """Return the messages that the commands put into one inbox, in order."""
    return [c.message for c in commands if isinstance(c, m.Send) and c.recipient_id == recipient_id]


def only(commands: Iterable[object], kind: type[T]) -> list[T]:
    """The commands of one kind, or the messages sent that are of that kind, in order."""
    flat = (c.message if isinstance(c, m.Send) else c for c in commands)
    return [c for c in flat if isinstance(c, kind)]


def one(messages: Iterable[object], kind: type[T]) -> T:
    """The only message of a list, which is of this kind."""
    (message,) = messages
    assert isinstance(message, kind)
    return message


def ledger(commands: Iterable[object], stage: str) -> list[dict[str, Any]]:
    """The facts of the ledger entries of one stage."""
    entries = (c.entry for c in commands if isinstance(c, m.RecordLedger))
    return [dict(entry.facts) for entry in entries if entry.stage == stage]
