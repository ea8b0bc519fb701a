"""Processes that are members of groups: each loads any part of any model, and joins any group.

A test drives them step by step, without the mesh, and sees the logits of the member that samples.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from spotwise.core.costs.batching import Batch
from spotwise.core.messages.groups import GroupExchange
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.sampling import SampledToken
from spotwise.worker.groups.leading import SharedMemory

#: Seconds within which a member answers; loading compiles the kernels where no process has.
_ANSWER_S = 240.0
#: Longer than any machine under load stays silent.
LOADED_S = 20.0
_epochs = itertools.count(1)
#: Members are forked from a process that has imported torch, which takes seconds.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "tests.integration.member_processes",
        "tests.unit.engine.watched_engine",
        "transformers.models.llama.modeling_llama",
    ]
)


class Member:
    """One process; calls return when it has answered, and raise what it raised."""

    def __init__(self) -> None:
        self._ours, theirs = _FORKS.Pipe()
        self.process: BaseProcess = _FORKS.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, call: str, *args: Any) -> None:
        self._ours.send((call, args))

    def end(self, timeout_s: float = _ANSWER_S) -> Any:
        """Return what a call that was begun returned."""
        if not self._ours.poll(timeout_s):
            raise TimeoutError("the member does not answer")
        succeeded, value = self._ours.recv()
        if not succeeded:
            raise value
        return value

    def outcome(self) -> tuple[Any, Exception | None]:
        """Return what a call that was begun returned or raised."""
        try:
            return self.end(), None
        except Exception as error:
            return None, error

    def call(self, name: str, *args: Any) -> Any:
        self.begin(name, *args)
        return self.end()

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self._ours.close()


class MemberOnThread(Member):
    """A member on a thread of this process, which has a store of weights in common with others."""

    def __init__(self, store: Any) -> None:
        self._served = _Served(store)
        self._thread = ThreadPoolExecutor(1)
        self._calls: deque[Future[Any]] = deque()
        self.process = multiprocessing.current_process()

    def begin(self, call: str, *args: Any) -> None:
        self._calls.append(self._thread.submit(getattr(self._served, call), *args))

    def end(self, timeout_s: float = _ANSWER_S) -> Any:
        return self._calls.popleft().result(timeout_s)

    def stop(self) -> None:
        self._thread.shutdown()


class _Served:
    """What runs in a member's process, or on its thread."""

    def __init__(self, store: Any = None) -> None:
        self._store = store
        self._engine: Any = None
        self._exchange: Any = None
        self._shard: Any = None
        self._sockets: Any = None
        self._loop: Any = None
        self._logits: list[Any] = []

    def load(self, config: Any, stage: int, stages: int, index: int, count: int, num_blocks: int | None) -> int:
        from spotwise.engine.engine import Engine
        from spotwise.engine.native.shard import Shard
        from spotwise.engine.parts.group_place import GroupPlace
        from spotwise.engine.parts.weight_store import WeightStore
        from tests.unit.engine.watched_engine import note_logits

        self._engine = None
        self._shard = Shard(index, count, stage)
        if self._store is None or self._store.config != config:
            self._store = WeightStore(config)
        self._engine = Engine.load_part(self._store, GroupPlace(self._shard, stages), num_blocks)
        self._logits = note_logits(self._engine)
        return int(self._engine.num_blocks)

    def join(self, path: Path, member: int, size: int, patience_s: float) -> None:
        from spotwise.engine.native.exchange import MemoryExchange

        self.leave()
        self._exchange = MemoryExchange(self._kernels(), path, member, size, patience_s)
        self._shard.join(self._exchange)

    def listen(self) -> str:
        """Take connections of groups, in a thread of their own; return where."""
        from spotwise.mesh.links.group_sockets import GroupSockets

        if self._sockets is None:
            listening = threading.Event()

            async def listen() -> None:
                self._loop = asyncio.get_running_loop()
                async with GroupSockets.open("127.0.0.1", 0, "127.0.0.1") as self._sockets:
                    listening.set()
                    await asyncio.Event().wait()

            threading.Thread(target=asyncio.run, args=(listen(),), daemon=True).start()
            listening.wait()
        return str(self._sockets.address)

    def join_by_tcp(self, epoch: int, secret: str, addresses: tuple[str, ...], member: int, patience_s: float) -> None:
        from spotwise.engine.native.exchange import SocketExchange
        from spotwise.mesh.links.group_sockets import GroupMeeting

        self.leave()
        exchange = self._exchange = SocketExchange(self._kernels(), member, len(addresses), patience_s)
        meeting = GroupMeeting(epoch, secret, addresses, member)
        self._loop.call_soon_threadsafe(self._sockets.connect, meeting, exchange.connect, exchange.lost)
        self._shard.join(exchange)

    @staticmethod
    def _kernels() -> Any:
        from spotwise.engine.native.library import load_kernels

        kernels = load_kernels()
        assert kernels is not None
        return kernels

    def is_complete(self) -> bool:
        return bool(self._exchange.is_complete)

    def leave(self) -> None:
        if self._exchange is not None:
            if self._sockets is not None:
                self._loop.call_soon_threadsafe(self._sockets.forget)
            self._shard.leave()
            self._exchange.close()
            self._exchange = None

    def facts(self) -> tuple[int, int]:
        return self._engine.block_size, self._engine.fused_layers

    def add(self, record: RequestRecord) -> None:
        self._engine.add_sequence(record)

    def append(self, sequence_id: str, token_id: int) -> None:
        self._engine.append_token(sequence_id, token_id)

    def drop(self, sequence_id: str) -> None:
        self._engine.drop_sequence(sequence_id)

    def run(self, batch: Batch) -> tuple[tuple[SampledToken, ...], list[Any]]:
        self._logits.clear()
        sampled = self._engine.run_iteration(batch)
        return sampled, list(self._logits)

    def run_until_broken(self, batch: Batch) -> str:
        """Compute one batch again and again until the group breaks; return why."""
        from spotwise.engine.native.exchange import GroupBrokenError

        while True:
            try:
                self._engine.run_iteration(batch)
            except GroupBrokenError as error:
                return str(error)

    def break_exchange(self) -> None:
        self._exchange.fail()

    def kv(self, block_ids: tuple[int, ...]) -> tuple[range, range, dict[int, tuple[Any, Any]]]:
        """Return layers and heads of this part of the KV cache, and by layer the keys and values of some blocks."""
        cache = self._engine.kv
        index = list(block_ids)
        kept = {
            layer: (cache.layer_keys(layer)[:, index].numpy(), cache.layer_values(layer)[:, index].numpy())
            for layer in cache.part.layers
        }
        return cache.part.layers, cache.part.kv_heads, kept


def _serve(pipe: Connection) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    served = _Served()
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            name, args = pipe.recv()
            try:
                pipe.send((True, getattr(served, name)(*args)))
            except Exception as error:
                pipe.send((False, error))


def _all_of(members: Sequence[Member]) -> list[Any]:
    """Return what a call returned in each; where it raised, raise after all have answered."""
    outcomes = [member.outcome() for member in members]
    for _, error in outcomes:
        if error is not None:
            raise error
    return [value for value, _ in outcomes]


@dataclass
class GroupProcesses:
    """A group as the tests' `Driver` sees an engine; keeps the logits of each iteration."""

    members: Sequence[Member]
    num_blocks: int
    block_size: int
    fused_layers: int

    def __post_init__(self) -> None:
        self.logits: list[Any] = []

    def all(self, name: str, *args: Any) -> list[Any]:
        for member in self.members:
            member.begin(name, *args)
        return _all_of(self.members)

    def add_sequence(self, record: RequestRecord) -> None:
        self.all("add", record)

    def drop_sequence(self, sequence_id: str) -> None:
        self.all("drop", sequence_id)

    def run_iteration(self, batch: Batch) -> tuple[SampledToken, ...]:
        """Run it everywhere; tell the others what was sampled."""
        results = self.all("run", batch)
        sampler = next((member for member, (_, logits) in zip(self.members, results, strict=True) if logits), None)
        sampled: tuple[SampledToken, ...] = next((tokens for tokens, _ in results if tokens), ())
        self.logits += [part for _, logits in results for part in logits]
        for token in sampled:
            for member in self.members:
                if member is not sampler:
                    member.call("append", token.sequence_id, token.token_id)
        return sampled


@contextlib.contextmanager
def group(
    members: Sequence[Member],
    config: Any,
    stages: int,
    shards: int,
    num_blocks: int | None = None,
    through: GroupExchange = GroupExchange.MEMORY,
    patience_s: float = LOADED_S,
) -> Iterator[GroupProcesses]:
    """Form a group of P x M of the given processes; one that is silent for `patience_s` is lost."""
    size = stages * shards
    used = members[:size]
    for number, member in enumerate(used):
        member.begin("load", config, number // shards, stages, number % shards, shards, num_blocks)
    blocks = min(_all_of(used))
    if through == GroupExchange.TCP:
        addresses = tuple(member.call("listen") for member in used)
        epoch, secret = next(_epochs), secrets.token_hex(16)
        for number, member in enumerate(used):
            member.call("join_by_tcp", epoch, secret, addresses, number, patience_s)
    else:
        shared = SharedMemory(size)
        for number, member in enumerate(used):
            member.call("join", Path(shared.path), number, size, patience_s)
        shared.close()
    while not all(member.call("is_complete") for member in used):
        time.sleep(0.01)
    facts = [member.call("facts") for member in used]
    try:
        yield GroupProcesses(used, blocks, facts[0][0], sum(fused for _, fused in facts[::shards]))
    finally:
        for member in used:
            if member.process.is_alive():
                member.call("leave")
