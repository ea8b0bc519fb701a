"""One process's part in groups: its engine's part of the model, and the exchange of the group that it is in.

The engine stays loaded from group to group, as long as the position is the same. A broken exchange ends the iteration that
waits in it; nothing here waits for another process on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import structlog

from spotwise.core.messages.groups import FormGroup, LoadedWeights
from spotwise.core.messages.members import DevicePlace
from spotwise.core.messages.reshape import PlannedWeights
from spotwise.core.parallel.model_partition import ModelShare
from spotwise.engine.model.errors import ModelError
from spotwise.engine.model.kv_size import named_memory_errors
from spotwise.engine.native.exchange import Exchange, MemoryExchange, SocketExchange
from spotwise.engine.native.library import Kernels, load_kernels
from spotwise.engine.native.shard import Shard
from spotwise.engine.parts.group_place import GroupPlace
from spotwise.engine.parts.weight_flow import WeightFlow
from spotwise.engine.parts.weight_store import WeightStore
from spotwise.mesh.grpc.control import GroupTimes
from spotwise.mesh.links.group_sockets import GroupMeeting, GroupSockets
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.process.background_work import uninterrupted
from spotwise.worker.compute_threads import ComputeThreads
from spotwise.worker.engine_thread import EngineThread
from spotwise.worker.engine_watch import EngineWatch
from spotwise.worker.groups.weight_fetch import FetchedWeights, WeightFetch

_log = structlog.get_logger(__name__)

#: Interval at which it is checked that all members have joined.
_JOIN_CHECK_S = 0.005

# What the loaded engine depends on.
_Key = tuple[int, int, int, int, int, int, int, str]


class GroupPart:
    """A process's engine part and exchange.

    Args:
        store: the process's weights.
        loads: the process's lock on loading, held while a part loads: until it has, its share of the weights is not known.
        fetch: finds out who has weights that are missing for a share, of those first that a plan names.
        threads: how the threads run that compute.
        sockets: TCP connections of this process.
        patience_s: after which a silent member of its group is gone.
        watch: over its engine.
    """

    def __init__(
        self,
        store: WeightStore,
        loads: asyncio.Lock,
        fetch: Callable[[ModelShare, Sequence[PlannedWeights]], Awaitable[WeightFetch]],
        threads: ComputeThreads,
        sockets: GroupSockets,
        patience_s: float,
        watch: EngineWatch | None = None,
    ) -> None:
        self._store = store
        self._watch = watch
        self._fetch = fetch
        self._loads = loads
        self._threads = threads
        self._sockets = sockets
        self._patience_s = patience_s
        self._key: _Key | None = None
        self._flowing: asyncio.Task[None] | None = None
        self._engine: EngineThread | None = None
        self._shard = Shard()
        self._exchange: Exchange | None = None
        self._meeting: GroupMeeting | None = None

    @property
    def engine(self) -> EngineThread:
        """The engine; `load` comes first."""
        assert self._engine is not None
        return self._engine

    @property
    def loaded(self) -> EngineThread | None:
        """The engine, or `None` before the first group."""
        return self._engine

    @property
    def share(self) -> ModelShare | None:
        """The part of the model that is loaded, for `WeightStore.keep_only`."""
        return None if self._engine is None else self._engine.engine.share

    @property
    def is_whole(self) -> bool:
        """Whether this process is in a group and all members are alive."""
        return self._exchange is not None and self._exchange.is_whole

    @property
    def is_complete(self) -> bool:
        """Whether every member of its group has joined it."""
        return self._exchange is not None and self._exchange.is_complete

    @property
    def why_broken(self) -> str:
        """Why the exchange broke, for people."""
        return "the group was dissolved" if self._exchange is None else str(self._exchange.error())

    @property
    def broken_by(self) -> int | None:
        """The member that broke the exchange, where one did."""
        return None if self._exchange is None else self._exchange.broken_by

    async def load(self, form: FormGroup) -> LoadedWeights:
        """Load what the position computes; return the weights that it got: none where it was loaded already. Weights that the
        store has are not loaded again, and those that no part needs any more stay there (`WeightStore.keep_only`). The engine
        has no sequences afterwards. Raises `MeshError` where the model cannot be served so.
        """
        await self.leave()
        if self._watch is not None:
            self._watch.dropped()
        key = (
            *(form.stages, form.shards, form.stage, form.shard, form.num_blocks, form.host_blocks, form.block_size),
            form.dtype,
        )
        if self._engine is not None and key == self._key:
            self._engine.drop_all()
            return LoadedWeights()
        await self._unload()
        self._shard = Shard(form.shard, form.shards, form.stage)
        place = GroupPlace(self._shard, form.stages)
        await self._loads.acquire()
        flow: WeightFlow | None = None
        fetched: FetchedWeights | None = None
        try:
            with named_memory_errors("this process's part of the model"):
                self._store.adopt(form.dtype, form.block_size)
                share = place.share_of((await asyncio.to_thread(lambda: self._store.structure)).sketch)
                fetch = await self._fetch(share, form.weights)
                if form.serves_early and form.stage and fetch.gives_all:
                    flow = WeightFlow(lambda: self.is_whole)
                else:
                    fetched = await fetch.run()
                self._engine = await EngineThread.load_part(
                    self._store, place, form.num_blocks, form.host_blocks, self._threads, flow, self._watch
                )
            self._key = key
            if flow is not None:
                self._flowing = asyncio.create_task(self._flow(fetch, share, flow), name="weights-flow")
        except (ModelError, ValueError) as error:
            raise MeshError(f"the model cannot be served: {error}") from error
        finally:
            if self._flowing is None:
                self._loads.release()
        if fetched is None:  # it arrives while the engine computes
            return LoadedWeights()
        read_bytes = fetch.missing_bytes - fetched.byte_count
        return LoadedWeights(fetched.byte_count, fetched.unplanned_bytes, read_bytes)

    async def _flow(self, fetch: WeightFetch, share: ModelShare, flow: WeightFlow) -> None:
        """Get weights that the engine waits for; what others do not give after all is read from the folder."""
        reason = "the part is unloaded"
        try:
            await fetch.run(flow.arrived)
            if self._store.missing(share):
                await asyncio.to_thread(self._store.load, share)
        except ModelError as error:
            reason = str(error)
        finally:
            flow.end(reason)
            self._flowing = None
            self._loads.release()
            if self._store.missing(share):
                _log.warning("weights_missing", reason=reason)
                self._key = None  # the next group loads anew
                self.break_up()

    async def _unload(self) -> None:
        if self._flowing is not None:
            self._flowing.cancel()
            await asyncio.wait({self._flowing})
        if self._engine is not None:
            await asyncio.to_thread(self._engine.close)
        self._engine = self._key = None

    async def join(self, form: FormGroup) -> None:
        """Be in the group; iterations wait for what members have not sent yet, also before these join. Raises `MeshError` where
        the exchange cannot be opened.
        """
        kernels = load_kernels()
        if kernels is None:
            raise MeshError("a group needs the native kernels; install g++ on this machine")
        exchange = self._joined(kernels, form)
        self._exchange = exchange
        await self.engine.run(lambda: self._shard.join(exchange))

    def _joined(self, kernels: Kernels, form: FormGroup) -> Exchange:
        member, size = form.stage * form.shards + form.shard, form.stages * form.shards
        if form.addresses:
            exchange = SocketExchange(kernels, member, size, self._patience_s)
            self._meeting = GroupMeeting(form.epoch, form.exchange, form.addresses, member)
            self._sockets.connect(self._meeting, exchange.connect, exchange.lost)
            return exchange
        try:
            return MemoryExchange(kernels, Path(form.exchange), member, size, self._patience_s)
        except OSError as error:
            raise MeshError(
                f"the group's shared memory cannot be opened ({error}); its members must share a machine and a user, or "
                "SPOTWISE_GROUP_EXCHANGE=tcp of the leader connects them"
            ) from error

    async def completed(self) -> bool:
        """Wait until every member has joined the group, or it is broken; return whether it is whole."""
        exchange = self._exchange
        while True:
            if exchange is None or not exchange.is_whole or exchange.is_complete:
                return self._exchange is exchange and self.is_whole
            await asyncio.sleep(_JOIN_CHECK_S)

    def times(self) -> GroupTimes | None:
        """Return what its engine has spent in iterations, and in exchanges of its present group; `None`: it is in none."""
        if self._exchange is None or self._engine is None:
            return None
        times = self._exchange.times()
        return GroupTimes(self._engine.busy_s, times.receive_s, times.gathers, times.gather_s)

    def break_up(self) -> None:
        """End what every member of the group waits for; idempotent."""
        if self._exchange is not None:
            self._exchange.fail()

    async def leave(self) -> None:
        """Be in no group; returns once the engine runs nothing. Idempotent."""
        self.break_up()
        if self._meeting is not None:
            self._sockets.forget(self._meeting)
            self._meeting = None
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            await uninterrupted(self._left(exchange))

    async def _left(self, exchange: Exchange) -> None:
        await self.engine.run(self._shard.leave)
        exchange.close()
        _log.info("group_left")

    async def close(self) -> None:
        """Leave, and unload."""
        await self.leave()
        await self._unload()
        if self._watch is not None:
            self._watch.close()

    def look(self) -> None:
        """Tell the watch whether the engine waits for another member now."""
        if self._watch is not None:
            self._watch.waits(self._exchange is not None and self._exchange.is_waiting)

    def place(self, form: FormGroup) -> DevicePlace:
        """Describe the position, for status."""
        part = self.engine.engine.kv.part
        return DevicePlace(
            form.epoch,
            form.stages,
            form.shards,
            form.stage,
            form.shard,
            (part.layers.start, part.layers.stop),
            (part.kv_heads.start, part.kv_heads.stop),
            "TCP" if form.addresses else "shared memory",
        )
