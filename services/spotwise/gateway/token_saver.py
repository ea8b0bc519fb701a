"""Saves the tokens of kept requests, of all streams at once and every second, so that another gateway can go on with them.

A token costs an append to a list here. What was not saved when this process ended is computed again, with the same result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from spotwise.core.gateway.kept_request import KeptTokens
from spotwise.core.messages import TokenBatch, TokenDelta
from spotwise.gateway.generation import EarlierTokens
from spotwise.mesh.request_store import KeptRequestStore
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode

#: What a gateway's death costs its streams, at most, is so much computing.
SAVE_EVERY_S = 1.0


@dataclass(slots=True, eq=False)
class _Unsaved:
    owner: str
    deltas: list[TokenDelta] = field(default_factory=list)
    has_left: bool = False


class TokenSaver:
    """The tokens that are not saved yet.

    Args:
        store: keeps them.
        digest_of: gives the digest of the weights that draw a choice's tokens.
        taken: called with each choice that another gateway has taken over.
    """

    def __init__(
        self, store: KeptRequestStore, digest_of: Callable[[str], str | None], taken: Callable[[str], None]
    ) -> None:
        self._store = store
        self._digest_of = digest_of
        self._taken = taken
        self._unsaved: dict[str, _Unsaved] = {}
        self._turn = asyncio.Lock()
        #: What the next round saves, in order, and the round, once somebody waits for it.
        self._wanted: dict[str, None] = {}
        self._next: asyncio.Task[None] | None = None

    def watch(self, choice_id: str, owner: str) -> None:
        """Begin with a choice."""
        self._unsaved[choice_id] = _Unsaved(owner)

    def add(self, choice_id: str, deltas: Sequence[TokenDelta]) -> None:
        """Take its next tokens."""
        if (unsaved := self._unsaved.get(choice_id)) is not None:
            unsaved.deltas.extend(deltas)

    def leave(self, choice_id: str) -> None:
        """End with a choice, once its last tokens are saved."""
        if (unsaved := self._unsaved.get(choice_id)) is not None:
            unsaved.has_left = True
            if not unsaved.deltas:
                del self._unsaved[choice_id]

    async def save_all(self) -> None:
        """Save what there is, and find out what has another owner; raises `MeshError`, and keeps the tokens then."""
        await self._save(self._unsaved)

    async def save(self, *choice_ids: str) -> None:
        """Save the tokens of some choices now; raises `MeshError`."""
        await self._save(choice_ids)

    async def _save(self, choice_ids: Iterable[str]) -> None:
        """Take part in the next round; thousands of choices may end in the same second."""
        self._wanted.update(dict.fromkeys(choice_ids))
        if self._next is None:
            self._next = asyncio.ensure_future(self._round())
            self._next.add_done_callback(_seen)
        await asyncio.shield(self._next)

    async def _round(self) -> None:
        async with self._turn:  # chunks of a choice stay in order
            wanted, self._wanted, self._next = self._wanted, {}, None
            by_owner: dict[str, dict[str, _Unsaved]] = {}
            for choice_id in wanted:
                if (unsaved := self._unsaved.get(choice_id)) is not None:
                    by_owner.setdefault(unsaved.owner, {})[choice_id] = unsaved
            for owner, choices in by_owner.items():
                await self._save_of(owner, choices)

    async def _save_of(self, owner: str, choices: dict[str, _Unsaved]) -> None:
        counts = {choice_id: len(unsaved.deltas) for choice_id, unsaved in choices.items()}
        tokens = [
            KeptTokens(subjects.request_id_of(choice_id), self._chunk(choice_id, unsaved))
            for choice_id, unsaved in choices.items()
        ]
        lost = await self._store.save_tokens(owner, tokens)
        for choice_id, unsaved in choices.items():
            self._saved(choice_id, unsaved, counts[choice_id])
            # unless this gateway itself has taken it over meanwhile, from itself
            is_current = self._unsaved.get(choice_id, unsaved) is unsaved
            if is_current and subjects.request_id_of(choice_id) in lost:
                self._taken(choice_id)

    def _chunk(self, choice_id: str, unsaved: _Unsaved) -> bytes:
        if not unsaved.deltas:
            return b""
        batch = TokenBatch(self._digest_of(choice_id) or "", tuple(unsaved.deltas))
        return choice_id.partition("#")[2].encode() + b" " + encode(batch)

    def _saved(self, choice_id: str, unsaved: _Unsaved, count: int) -> None:
        del unsaved.deltas[:count]
        if unsaved.has_left and not unsaved.deltas and self._unsaved.get(choice_id) is unsaved:
            del self._unsaved[choice_id]


def _seen(done: asyncio.Task[None]) -> None:
    """Take note of a failure that nobody waits for any more; the tokens are kept, and saved later."""
    if not done.cancelled():
        done.exception()


def read_chunks(chunks: Iterable[bytes], choices: int) -> list[EarlierTokens]:
    """Return what was saved of each choice; of tokens that were saved twice, before and after a take-over, the first."""
    deltas: list[list[TokenDelta]] = [[] for _ in range(choices)]
    digests: list[str | None] = [None] * choices
    for chunk in chunks:
        index, _, payload = chunk.partition(b" ")
        batch = decode(payload)
        assert isinstance(batch, TokenBatch)
        of_choice = deltas[int(index or 0)]
        digests[int(index or 0)] = batch.worker_id or None
        for delta in batch.deltas:
            if delta.token_index == len(of_choice):
                of_choice.append(delta)
    return [EarlierTokens(0, tuple(each), digest) for each, digest in zip(deltas, digests, strict=True)]
