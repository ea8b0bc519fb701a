"""Performs a worker role's commands: engine, KV transport, store, bus; and times its iterations for cost profiles.

An iteration's time runs from its order, or from the previous one's end where that is later, to its end; failed ones do not
count.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import get_args

import psutil
import structlog

from spotwise.core.costs.cost_model import BatchShape, IterationTime
from spotwise.core.kv.blocks import BlockPool
from spotwise.core.messages import hand_offs as h
from spotwise.core.messages.members import Member, MemberKind
from spotwise.core.messages.mesh import RecordLedger, Send, Tick, TokenBatch, TokenDelta
from spotwise.core.messages.numerics import is_crossing, refusal_of_classes
from spotwise.core.messages.worker import Drain
from spotwise.core.requests.record import KvHandoff, RequestRecord
from spotwise.core.requests.request import FinishReason
from spotwise.core.requests.sampling import TOO_LARGE, SampledToken
from spotwise.core.worker import commands as c
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.core.worker.role import DEADLINE_CAME, WorkerRole
from spotwise.mesh.grpc.control import EngineDescription, RecentIterations
from spotwise.mesh.ports.ports import BusMessage, KvTransport, MeshError, PayloadTooLargeError, TransferReport
from spotwise.mesh.process.watchdog import WatchedPart
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.role_loop import RoleLoop
from spotwise.wire import subjects
from spotwise.worker.engine_watch import EngineWatch
from spotwise.worker.kv_transfers import KvPushes, KvSwaps
from spotwise.worker.worker_engine import WorkerEngine

_log = structlog.get_logger(__name__)

#: A minute of iterations of a few milliseconds.
_KEPT = 8192

#: Interval of the role's deadline checks (leases, drains).
TICK_S = 0.2
#: What its inbox takes; notices come on a subject of their own.
_TO_INBOX = frozenset(get_args(c.WorkerEvent)) - {Drain, Tick}
#: Time from a drained worker's last tokens to its goodbye, which gateways hear on another subscription and may handle first.
GOODBYE_AFTER_S = 0.1
#: Bound of an iteration at least, where the settings say nothing.
ITERATION_TIMEOUT_S = 60.0


class IterationTimes:
    """The newest iterations of one worker, numbered from 1."""

    def __init__(self) -> None:
        self._in_flight: deque[tuple[BatchShape, float]] = deque()
        self._kept: deque[IterationTime] = deque(maxlen=_KEPT)
        self._last = 0
        self._ended_s = 0.0

    def ordered(self, shape: BatchShape, now_s: float) -> None:
        """Note an order, on any monotonic clock, in seconds."""
        self._in_flight.append((shape, now_s))

    def ended(self, now_s: float, *, failed: bool = False) -> IterationTime | None:
        """Note the end of the oldest iteration in flight, and return it; `None` where it failed."""
        shape, ordered_s = self._in_flight.popleft()
        began_s, self._ended_s = max(ordered_s, self._ended_s), now_s
        if failed:
            return None
        self._last += 1
        self._kept.append(IterationTime(shape, now_s - began_s))
        return self._kept[-1]

    def dropped(self) -> None:
        """Note that the iterations in flight will not end."""
        self._in_flight.clear()

    def since(self, after: int) -> RecentIterations:
        """Return the kept iterations after number `after`, oldest first."""
        first_kept = self._last - len(self._kept)
        return RecentIterations(self._last, tuple(islice(self._kept, max(0, after - first_kept), None)))


class WorkerRuntime:
    """One running worker: `transport` is started, `policy` is how it batches and allocates, `watch` is over its engine."""

    def __init__(
        self,
        host: ServiceHost,
        engine: WorkerEngine,
        transport: KvTransport,
        policy: WorkerPolicy,
        watch: EngineWatch | None = None,
    ) -> None:
        self._host = host
        self._engine = engine
        self._transport = transport
        self._crossing = policy.crossing
        self._watch = watch or EngineWatch(host.watchdog, host.id, ITERATION_TIMEOUT_S)
        self._undo_goodbye = host.watchdog.say_goodbye_with(self._process_ends)
        self._is_stuck = False
        #: Of the engine's iterations.
        self.times = IterationTimes()
        #: Once it has left: whether the processes of its group stay in the mesh.
        self.devices_stay = False
        pool = BlockPool(engine.num_blocks, engine.block_size)
        host_pool = BlockPool(engine.host_blocks, engine.block_size) if engine.host_blocks else None
        self.role, journal = host.make_role(
            WorkerRole,
            host.id,
            host.member.incarnation,
            transport.address,
            pool,
            policy,
            host_pool,
            host.member.numerics_class,
        )
        self._pushes = KvPushes(
            transport, engine.num_layers, engine.block_size, host.spawn, lambda event: self._loop.feed(event)
        )
        # A scheduler whose reservation was refused waits for a heartbeat with free blocks.
        swaps = KvSwaps(engine, self._watch, lambda event: self._loop.feed(event), host.beat_soon)
        self._loop = RoleLoop(
            self.role,
            host.clock,
            {
                Send: self._send,
                RecordLedger: self._record,
                c.LoadRecord: lambda command: host.spawn(self._load_record(command), "load_record"),
                c.DropSequence: lambda command: engine.drop_sequence(command.sequence_id),
                c.AppendToken: lambda command: engine.append_token(command.sequence_id, command.token_id),
                c.RunIteration: self._run_iteration,
                h.ExpectKv: lambda cmd: transport.expect(cmd.choice_id, cmd.epoch, cmd.block_ids),
                h.ForgetKv: lambda command: transport.forget(command.choice_id),
                c.PushKv: self._pushes.push,
                h.OpenPush: self._pushes.open,
                h.CommitPush: self._pushes.commit,
                h.AbortPush: self._pushes.abort,
                c.SwapOut: swaps.swap_out,
                c.SwapIn: swaps.swap_in,
                c.TakeHomePool: lambda command: host.introduce(pool=command.pool),
                c.Leave: lambda command: host.spawn(self._leave(command), "leave"),
            },
            journal,
            host.count_failure,
        )
        host.metrics.watch("sequences", lambda: self.role.num_sequences)

    async def start(self) -> None:
        """Subscribe to orders and notices, and start the ticks."""
        self._host.describe_with(self._describe)
        await self._host.listen(subjects.inbox(self._host.id), self._on_message, expects=_TO_INBOX)
        await self._host.listen(subjects.NOTICES, self._on_message, expects=(Drain,))
        self._host.keep_time(TICK_S, self._loop.feed)
        self._engine.watch(self._engine_lost, self._engine_restored)

    def close(self) -> None:
        """Watch the engine no more."""
        self._undo_goodbye()
        self._watch.close()

    def drain_on_stop(self, grace_s: float) -> None:
        """Let the first stop signal drain this worker for `grace_s` at most; with 0 it leaves at once."""

        def drain() -> None:
            self._loop.feed(Drain(self._host.id, self._host.clock.wall() + grace_s, "stop signal"))
            self._host.beat_soon()

        if grace_s:
            self._host.leave = drain

    async def _on_message(self, message: c.WorkerEvent, raw: BusMessage) -> None:
        self._loop.feed(message)

    def _describe(self, member: Member) -> Member:
        load = replace(self.role.load(), refused_connections=self._transport.refused_connections)
        return replace(member, state=self.role.state, load=load, leaves_at_s=self.role.leaves_at_s)

    def handoff_arrived(self, handoff: KvHandoff, report: TransferReport) -> None:
        """Feed the role a hand-off that the transport has verified and stored; raises `MeshError`, so that its sender is
        refused, where its KV is of another numerics class and crossings are refused.
        """
        own = self._host.member.numerics_class
        if refusal := refusal_of_classes(self._crossing, (handoff.numerics_class,), own):
            raise MeshError(refusal)
        if is_crossing(handoff.numerics_class, own):
            self._host.metrics.foreign_kv_arrived()
        self._loop.feed(c.KvArrived(handoff, report.kv_bytes, report.seconds, report.transport))

    def _send(self, command: Send) -> None:
        try:
            self._host.send(command.recipient_id, command.message, command.incarnation)
        except PayloadTooLargeError as error:
            if not isinstance(command.message, TokenBatch):
                raise
            for part in _smaller_parts(command.message, str(error)):
                self._send(replace(command, message=part))

    def _record(self, command: RecordLedger) -> None:
        entry = command.entry
        self._host.record(entry)
        if ("reason", DEADLINE_CAME) in entry.facts:
            self._host.metrics.deadline_passed()
            _log.info("deadline_passed", choice_id=entry.choice_id, clock_ahead_s=round(self._host.clock.ahead_s, 3))

    async def _load_record(self, command: c.LoadRecord) -> None:
        try:
            record = await self._host.store.get_record(command.choice_id)
            if record is None or record.epoch != command.epoch:
                raise MeshError("the request's record is gone from the store")
            member = self._host.member
            require_same_weights(record, member.id, member.model_digest)
            if refusal := refusal_of_classes(self._crossing, record.numerics_classes, member.numerics_class):
                raise MeshError(refusal)
            prepared = await self._engine.prepare(record)
            with self._watch.call():
                await self._engine.add_sequence(record, prepared)
        except (MeshError, ValueError) as error:
            retryable = isinstance(error, MeshError)
            self._loop.feed(c.RecordUnavailable(command.choice_id, command.epoch, str(error), retryable))
            return
        self._loop.feed(c.RecordLoaded(record))

    async def _leave(self, command: c.Leave) -> None:
        await asyncio.sleep(GOODBYE_AFTER_S)
        self.devices_stay = command.devices_stay
        if command.failure:
            self._host.fail(command.failure)
        else:
            self._host.stop()

    def _run_iteration(self, command: c.RunIteration) -> None:
        shape = BatchShape.of(command.batch)
        self.times.ordered(shape, time.monotonic())
        self._watch.ordered(shape)
        watch = self._pushes.watch(command.batch)

        def finished(sampled: tuple[SampledToken, ...]) -> None:
            self._watch.ended(self.times.ended(time.monotonic()))
            if self._is_stuck:
                return  # it ended after all, when its sequences had been given back
            if watch is not None:
                self._pushes.watched(watch)
            self._loop.feed(c.IterationFinished(sampled))
            if shape.prompt_tokens:
                self._host.beat_soon()

        on_layers = None if watch is None else watch.layers_written
        self._engine.run_iteration(command.batch, finished, self._iteration_failed, on_layers)

    def _iteration_failed(self, error: Exception) -> None:
        self._watch.ended(self.times.ended(time.monotonic(), failed=True))
        if self._is_stuck:
            return
        self._loop.feed(c.IterationFailed(f"{type(error).__name__}: {error}"))

    def _process_ends(self, stuck: Sequence[WatchedPart]) -> None:
        """Give all back, before the watchdog ends this process."""
        self._is_stuck = True
        names = ", ".join(part.name for part in stuck)
        self._loop.feed(c.EngineLost(f"its process is stuck ({names})", is_stuck=self._watch.is_among(stuck)))
        self._host.beat_soon()

    def _engine_lost(self, reason: str) -> None:
        self.times.dropped()
        self._watch.dropped()
        self._loop.feed(c.EngineLost(reason))
        self._host.beat_soon()

    def _engine_restored(self) -> None:
        self._loop.feed(c.EngineRestored(self._transport.shares))
        self._host.beat_soon()

    def description(self) -> EngineDescription:
        """Describe this worker, for engine control."""
        return EngineDescription(
            member=self._host.member,
            engine_sequences=self._engine.num_sequences,
            resident_bytes=psutil.Process().memory_info().rss,
            iterations=self.role.iterations,
            engine=self._engine.computes_with,
            kv_bytes_per_token=self._engine.kv_bytes_per_token,
            times=self._engine.group_times,
        )


def _smaller_parts(batch: TokenBatch, reason: str) -> tuple[TokenBatch, ...]:
    """Divide a batch that is too large for the broker, where that takes less than `core/worker/sequences/table.py`
    presumes; its halves have its number. What is too large alone ends its attempt.

    Raises:
        PayloadTooLargeError: it has nothing large.
    """
    if (count := len(batch.deltas)) > 1:
        halves = batch.deltas[: count // 2], batch.deltas[count // 2 :]
        return tuple(replace(batch, deltas=half) for half in halves)
    (delta,) = batch.deltas
    if delta.finish_reason is FinishReason.ERROR:
        raise PayloadTooLargeError(reason)
    ended = TokenDelta(delta.attempt_id, delta.token_index, None, FinishReason.ERROR, f"{TOO_LARGE}: {reason}")
    return (replace(batch, deltas=(ended,)),)


class RuntimeView:
    """An `EngineView` over the runtimes of a process by member id; a member without one still loads, or has left."""

    def __init__(self) -> None:
        self._runtimes: dict[str, WorkerRuntime] = {}

    def add(self, member_id: str, runtime: WorkerRuntime) -> None:
        """Add a worker."""
        self._runtimes[member_id] = runtime

    def remove(self, member_id: str) -> None:
        """Remove a worker; idempotent."""
        self._runtimes.pop(member_id, None)

    def describe(self, member_id: str) -> EngineDescription | None:
        """Describe a worker."""
        runtime = self._find(member_id)
        return None if runtime is None else runtime.description()

    def iterations(self, member_id: str, after: int) -> RecentIterations | None:
        """Return a worker's iterations after number `after`."""
        runtime = self._find(member_id)
        return None if runtime is None else runtime.times.since(after)

    def _find(self, member_id: str) -> WorkerRuntime | None:
        return self._runtimes.get(member_id) if member_id else next(iter(self._runtimes.values()), None)


async def warn_of_other_weights(host: ServiceHost) -> None:
    """Log an error where a worker's weights differ from the mesh's, so that it will get no work; raises `MeshError` without the
    store. The worker joins nevertheless: `spotwise status` shows it, and the mesh may serve its model later.
    """
    mine = host.member.model_digest
    for member in await host.store.members():
        served = member.model_digest
        if member.kind is MemberKind.CLUSTER_SCHEDULER and served is not None and served != mine:
            _log.error(
                "other_weights",
                worker=host.id,
                weights=mine,
                served=served,
                consequence="the scheduler sends this worker no requests; give it the model folder that the other workers have",
            )


def require_same_weights(record: RequestRecord, worker_id: str, model_digest: str | None) -> None:
    """Check that a worker may continue a request; raises `MeshError` where its tokens were computed with other weights."""
    if record.model_digest is not None and record.model_digest != model_digest:
        raise MeshError(
            f"the request was begun with the weights {record.model_digest}, and {worker_id} has "
            f"{model_digest or 'none'}; workers of one mesh need the same model folder"
        )
