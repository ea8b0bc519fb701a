"""Saves the tokens of kept requests, of all streams at once and every second, so that another gateway can continue from them.

A token costs an append to a list here. What was not saved when this process ended is computed again, with the same result. What
the store has lost is written again: the tokens of a choice are remembered, as they are saved, until its request has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog

from spotwise.core.gateway.kept_request import KeptTokens, NotSaved
from spotwise.core.messages.mesh import TokenDelta
from spotwise.gateway.generate.generation import EarlierTokens
from spotwise.gateway.resume.kept_forms import read_chunks, written_chunk
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.ports.requests import KeptRequestStore
from spotwise.wire import subjects

_log = structlog.get_logger(__name__)

#: What a gateway's death costs its streams, at most, is so much computing.
SAVE_EVERY_S = 1.0
#: Chunks of one level that become one of the next once they are saved: a chunk may have one token, and take ten times its room.
#: Larger ones stay as they are, so that none is too large for a message.
_MERGED, _MERGED_BYTES = 16, 64 << 10
#: After so many bytes of chunks the loop has a turn: a prompt's log-probabilities are hundreds of kilobytes.
_PACKED_BYTES = 64 << 10
#: Tokens, those of prompts that have log-probabilities included, that are written on the event loop.
_WRITTEN_ENTRIES = 2000


@dataclass(slots=True, eq=False)
class _Choice:
    """The tokens of one choice.

    Attributes:
        deltas: tokens that are in no chunk yet.
        chunks: in order, without a gap, from the first token on.
        levels: level of each chunk: how often its tokens were merged.
        saved: how many tokens the store has, as far as is known.
        digest: digest of the weights that drew them; `numerics_classes`: those that they were computed in, the latest last.
        is_taken: its request has another owner.
        has_no_room: its request is not kept any more, since its tokens had no room in the store.
    """

    request_id: str
    index: int
    owner: str
    deltas: list[TokenDelta] = field(default_factory=list)
    chunks: list[KeptTokens] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)
    saved: int = 0
    digest: str | None = None
    numerics_classes: tuple[str, ...] = ()
    is_taken: bool = False
    has_no_room: bool = False

    @property
    def lacks(self) -> bool:
        """Whether the store, which is still this owner's to write to, has fewer tokens than are in chunks."""
        return self.saved < self.ready and not self.is_taken and not self.has_no_room

    @property
    def ready(self) -> int:
        """How many tokens are in chunks."""
        return self.chunks[-1].first + self.chunks[-1].count if self.chunks else 0

    async def pack(self) -> int:
        """Put what came since into a chunk, once what is saved takes no more room than it has to; return the bytes of it."""
        while self._has_chunks_to_merge:
            merged, first = self.chunks[-_MERGED:], self.chunks[-_MERGED].first
            earlier = read_chunks((each.chunk for each in merged), self.index + 1)[self.index]
            chunk = written_chunk(self.index, earlier.deltas, earlier.model_digest, earlier.numerics_classes)
            self.chunks[-_MERGED:] = [self._kept(first, len(earlier.deltas), chunk)]
            self.levels[-_MERGED:] = [self.levels[-1] + 1]
        if not self.deltas:
            return 0
        deltas, self.deltas = self.deltas, []
        written = partial(written_chunk, self.index, deltas, self.digest, self.numerics_classes)
        entries = sum(1 + len(delta.prompt_logprobs or ()) for delta in deltas)
        chunk = await asyncio.to_thread(written) if entries > _WRITTEN_ENTRIES else written()
        self.chunks.append(self._kept(self.ready, len(deltas), chunk))
        self.levels.append(0)
        return len(chunk)

    @property
    def _has_chunks_to_merge(self) -> bool:
        last = self.chunks[-_MERGED:]
        return (
            len(last) == _MERGED
            and not self.lacks
            and len(set(self.levels[-_MERGED:])) == 1
            and sum(len(each.chunk) for each in last) <= _MERGED_BYTES
        )

    def _kept(self, first: int, count: int, chunk: bytes) -> KeptTokens:
        return KeptTokens(self.request_id, self.owner, self.index, first, count, chunk)

    def go_on(self, earlier: EarlierTokens) -> None:
        """Begin with the tokens that are saved, as one chunk."""
        self.digest, self.numerics_classes = earlier.model_digest, earlier.numerics_classes
        self.chunks, self.levels = [self._kept(0, len(earlier.deltas), earlier.chunk)], [0]
        self.saved = self.ready

    def unsaved(self) -> list[KeptTokens]:
        """Return the chunks that the store lacks; without any, a question how many tokens it has."""
        lacking = [chunk for chunk in self.chunks if chunk.first + chunk.count > self.saved]
        return lacking or [KeptTokens(self.request_id, self.owner, self.index, self.saved)]


class TokenSaver:
    """The tokens of the choices that run here.

    Args:
        store: keeps them.
        origin_of: gives the digest of the weights that draw a choice's tokens, and the numerics classes of these.
        taken: called with each choice that another gateway has taken over.
    """

    def __init__(
        self,
        store: KeptRequestStore,
        origin_of: Callable[[str], tuple[str | None, tuple[str, ...]]],
        taken: Callable[[str], None],
    ) -> None:
        self._store = store
        self._origin_of = origin_of
        self._taken = taken
        self._choices: dict[str, _Choice] = {}
        self._turn = asyncio.Lock()
        #: What the next round saves, in order, and the round, once a request waits for it.
        self._wanted: dict[str, None] = {}
        self._next: asyncio.Task[None] | None = None
        self._forgotten: Callable[[str], Awaitable[bool]] = _pass_on

    def when_forgotten(self, forgotten: Callable[[str], Awaitable[bool]]) -> None:
        """Await a call for each request that the store has forgotten, before its tokens are saved again; it answers whether
        they are to be.
        """
        self._forgotten = forgotten

    def watch(self, choice_id: str, owner: str, earlier: EarlierTokens | None = None) -> None:
        """Begin with a choice, and the tokens of it that are saved."""
        index = int(choice_id.partition("#")[2] or 0)
        choice = self._choices[choice_id] = _Choice(subjects.request_id_of(choice_id), index, owner)
        if earlier is not None and earlier.deltas:
            choice.go_on(earlier)

    def add(self, choice_id: str, deltas: Sequence[TokenDelta]) -> None:
        """Take its next tokens."""
        if (choice := self._choices.get(choice_id)) is not None and not choice.has_no_room:
            choice.deltas.extend(deltas)
            digest, numerics_classes = self._origin_of(choice_id)
            choice.digest = digest or choice.digest
            choice.numerics_classes = numerics_classes or choice.numerics_classes

    def forget(self, choice_id: str, owner: str) -> None:
        """End with a choice of an owner, whose request has ended or has another one."""
        if (choice := self._choices.get(choice_id)) is not None and choice.owner == owner:
            del self._choices[choice_id]

    async def save_all(self) -> None:
        """Save what there is, and find out what has another owner; raises `MeshError`, and keeps the tokens then."""
        await self._save(self._choices)

    async def save(self, *choice_ids: str) -> None:
        """Save the tokens of some choices now; raises `MeshError`, also where the store lacks some of them all the same."""
        await self._save(choice_ids)
        choices = [self._choices[choice_id] for choice_id in choice_ids if choice_id in self._choices]
        if any(choice.lacks for choice in choices):
            raise MeshError("the store loses tokens that it has taken")

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
            choices = {
                each: choice
                for each in wanted
                if (choice := self._choices.get(each)) is not None and not choice.has_no_room
            }
            packed_bytes = 0
            for choice in choices.values():
                packed_bytes += await choice.pack()
                if packed_bytes >= _PACKED_BYTES:
                    packed_bytes = 0
                    await asyncio.sleep(0)
            lacking = await self._lacking(choices)
            if lacking:
                await self._lacking(lacking)

    async def _lacking(self, choices: dict[str, _Choice]) -> dict[str, _Choice]:
        """Save the chunks of some choices; return those of which the store has lost tokens, which it will take now."""
        tokens = {choice_id: choice.unsaved() for choice_id, choice in choices.items()}
        answers = iter(await self._store.save_tokens([each for chunks in tokens.values() for each in chunks]))
        forgotten: dict[str, None] = {}
        for choice_id, chunks in tokens.items():
            choice, saved = choices[choice_id], [next(answers) for _ in chunks][-1]
            if saved is NotSaved.TAKEN:
                choice.is_taken = True
                # unless this gateway itself has taken it over meanwhile, from itself
                if self._choices.get(choice_id, choice) is choice:
                    self._taken(choice_id)
            elif saved is NotSaved.NO_ROOM:
                self._give_up(choice.request_id)
            elif saved is NotSaved.FORGOTTEN:
                choice.saved = 0
                forgotten[choice.request_id] = None
            else:
                choice.saved = saved
        for request_id in forgotten:
            if not await self._forgotten(request_id):
                self._give_up(request_id)
        return {
            each: choice
            for each, choice in choices.items()
            if choice.lacks or (choice.request_id in forgotten and not choice.has_no_room)
        }

    def _give_up(self, request_id: str) -> None:
        """Save no more of a request: the store has no room for it."""
        _log.warning("not_kept", request_id=request_id, reason="no room in the store")
        for choice in self._choices.values():
            if choice.request_id == request_id:
                choice.has_no_room = True
                choice.deltas, choice.chunks, choice.levels = [], [], []


async def _pass_on(request_id: str) -> bool:
    """Save a forgotten request's tokens as if it were known."""
    return True


def _seen(done: asyncio.Task[None]) -> None:
    """Take note of a failure that no request waits for any more; the tokens are kept, and saved later."""
    if not done.cancelled():
        done.exception()
