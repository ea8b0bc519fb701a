"""A provider whose spot instances come and go as those of a published trace.

Each spot instance is bound to a node of the trace that is up: the one that came first and has no instance. It is ended without
grace when its node leaves, whether or not it has left; with a grace period, its notice comes so long before, and its node is
given to no other instance from then on. Spot capacity is the number of nodes; on-demand instances are the provider's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from spotwise.cloud.instances import (
    AcquiredInstance,
    AcquireRequest,
    InstanceNotice,
    KillableProvider,
    NoCapacity,
    ProviderError,
    ProviderRefused,
)
from spotwise.cloud.local_meshes import mesh_start
from spotwise.core.messages.fleet import InstanceState, Market
from spotwise.files.spot_traces import SpotTrace
from spotwise.files.traced_nodes import TracedNodes

_log = structlog.get_logger(__name__)

#: What the notice of an instance whose node leaves begins with.
TRACED_NOTICE = "trace: "
#: After a failed kill the next try comes so much later.
_RETRY_S = 1.0


class TraceEffect(StrEnum):
    """What the events of a trace do to instances; all but the first are for comparisons."""

    NOTICE = "notice"  #: instances whose nodes leave get their notice, and end at its deadline
    NO_NOTICE = "no_notice"  #: they end without notice
    RESTART = "restart"  #: they end without notice, and so do all others at each event


class TracedState(BaseModel):
    """The instances that are bound to nodes: index of the node's stay in the trace, by instance; `seen_s`: up to which time of
    the trace its events have had their effect.
    """

    model_config = ConfigDict(extra="forbid")

    started_unix_s: float
    bound: dict[str, int] = {}
    seen_s: float = 0.0


class TracedInstances:
    """A `ReclaimingProvider` over another provider.

    Args:
        provider: starts and ends the instances.
        trace: the trace of nodes that come and go; after its end nothing changes any more.
        folder: keeps when the trace began and which instance has which node, so that a later provider continues.
        mesh: whose instances these are.
        compress: seconds of the trace that pass in a second.
        grace_s: real seconds from a notice to the end of an instance; 0: they end without notice.
        now: seconds since the epoch.
        reaction: what events do.
    """

    def __init__(
        self,
        provider: KillableProvider,
        trace: SpotTrace,
        folder: Path,
        mesh: str,
        compress: float = 1.0,
        grace_s: float = 30.0,
        now: Callable[[], float] = time.time,
        reaction: TraceEffect = TraceEffect.NOTICE,
    ) -> None:
        self._nodes = TracedNodes(trace, compress, grace_s, with_notice=reaction is TraceEffect.NOTICE)
        self._provider = provider
        self._trace = trace
        self._folder = folder
        self._mesh = mesh
        self._compress = compress
        self._reaction = reaction
        self._now = now
        self._state: TracedState | None = None
        self._turn = asyncio.Lock()
        self._bound_changed = asyncio.Event()
        self._reaper: asyncio.Task[None] | None = None
        self._is_closed = False

    async def acquire(self, request: AcquireRequest) -> list[AcquiredInstance]:
        """Acquire instances, of spot ones as many as nodes are free.

        Raises:
            NoCapacity, ProviderRefused, ProviderUnavailable: as in `InstanceProvider`.
        """
        if request.market is not Market.SPOT:
            return await self._provider.acquire(request)
        async with self._turn:
            listed = await self._listed()
            if any(each.token == request.token for each in listed):
                return await self._provider.acquire(request)
            free = self._free(self._load())
            if not free:
                up = self._nodes.up(self._since_s(self._now()))
                raise NoCapacity(request.instance_types, request.market, f"all {up} nodes of the trace are taken")
            acquired = await self._provider.acquire(replace(request, count=min(request.count, len(free))))
            await self._bind(acquired)
            return acquired

    async def release(self, instance_ids: Sequence[str]) -> None:
        """Release instances; their nodes are free once they have gone."""
        await self._provider.release(instance_ids)

    async def instances(self) -> list[AcquiredInstance]:
        """Return this mesh's instances; ends those whose nodes have left."""
        async with self._turn:
            return await self._listed()

    async def notices(self) -> list[InstanceNotice]:
        """Return the notices of instances whose nodes leave within the grace period."""
        async with self._turn:
            now_unix_s = self._now()
            state = self._load()
            due = [
                InstanceNotice(
                    instance_id,
                    end_unix_s,
                    f"trace-{state.started_unix_s:.0f}-{self._nodes.stays[index].to_s:g}",
                    f"{TRACED_NOTICE}{self._nodes.stays[index].node} leaves",
                )
                for instance_id, index in state.bound.items()
                if (end_unix_s := self._end_unix_s(index)) is not None
                and end_unix_s - self._nodes.notice_s(index) <= now_unix_s < end_unix_s
            ]
            return sorted(due, key=lambda each: (each.deadline_unix_s, each.instance_id))

    async def close(self) -> None:
        """Close the provider; instances stay, and end when their nodes leave only once a provider is there again."""
        self._is_closed = True
        reaper, self._reaper = self._reaper, None
        if reaper is not None:
            reaper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reaper
        await self._provider.close()

    # --- bindings, under the turn -------------------------------------------------------------------------------------

    async def _listed(self) -> list[AcquiredInstance]:
        """List the instances, after ending those whose nodes have left, or that got none."""
        state = self._load()
        if self._reaper is None and not self._is_closed:
            self._reaper = asyncio.create_task(self._reap())
        listed = await self._provider.instances()
        here = {each.id for each in listed if each.state is not InstanceState.GONE}
        kept = {instance_id: index for instance_id, index in state.bound.items() if instance_id in here}
        if kept != state.bound:
            state.bound = kept
            self._save(state)
        return await self._provider.instances() if await self._bind(listed) else listed

    async def _bind(self, instances: Iterable[AcquiredInstance]) -> bool:
        """Bind spot instances without a node; end those that have none any more. Tells whether there were some."""
        state = self._load()
        free = self._free(state)
        unbound = [
            each.id
            for each in instances
            if each.market is Market.SPOT
            and each.state in (InstanceState.STARTING, InstanceState.RUNNING)
            and each.id not in state.bound
        ]
        # Those beyond the free nodes: a provider that was ended between the order and this left them.
        too_many = unbound[len(free) :]
        if unbound:
            state.bound.update(zip(unbound, free, strict=False))
            self._save(state)
            self._bound_changed.set()
        now_unix_s = self._now()
        over = [
            id_ for id_ in state.bound if (end := self._end_unix_s(state.bound[id_])) is not None and end <= now_unix_s
        ]
        if self._reaction is TraceEffect.RESTART and self._happened(state, now_unix_s):
            over = [each.id for each in await self._provider.instances() if each.state is not InstanceState.GONE]
        if over or too_many:
            await self._provider.reclaim([*over, *too_many])
            _log.info("reclaimed", instances=",".join([*over, *too_many]), trace=self._trace.name)
            state.bound = {id_: index for id_, index in state.bound.items() if id_ not in over}
            self._save(state)
        return bool(over or too_many)

    def _happened(self, state: TracedState, now_unix_s: float) -> bool:
        """Tell whether an event of the trace has come since the last call."""
        trace_s = (now_unix_s - state.started_unix_s) * self._compress
        before_s, state.seen_s = state.seen_s, trace_s
        self._save(state)
        return any(event.nodes and before_s < event.time_s <= trace_s for event in self._trace.events)

    def _free(self, state: TracedState) -> list[int]:
        """The stays that a new instance may have, the first to come first."""
        return self._nodes.free(frozenset(state.bound.values()), self._since_s(self._now()))

    def _since_s(self, unix_s: float) -> float:
        """Seconds of the mesh since the trace began."""
        return unix_s - self._load().started_unix_s

    def _end_unix_s(self, index: int) -> float | None:
        end_s = self._nodes.end_s(index)
        return None if end_s is None else self._load().started_unix_s + end_s

    async def _reap(self) -> None:
        """End instances at the moment at which their nodes leave."""
        while True:
            ends = [end for index in self._load().bound.values() if (end := self._end_unix_s(index)) is not None]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, min(ends) - self._now()) if ends else None):
                    await self._bound_changed.wait()
            self._bound_changed.clear()
            try:
                async with self._turn:
                    await self._bind([])
            except ProviderError as error:
                _log.warning("reclaim_failed", error=str(error))
                await asyncio.sleep(_RETRY_S)

    # --- the state ----------------------------------------------------------------------------------------------------

    def _load(self) -> TracedState:
        if self._state is None:
            self._state = self._read()
        return self._state

    def _read(self) -> TracedState:
        try:
            started_unix_s = mesh_start(self._folder, self._mesh, self._now())
            state = TracedState.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return TracedState(started_unix_s=started_unix_s)
        except ValidationError:
            raise ProviderRefused(f"{self._path} is damaged; delete it, and instances get nodes anew") from None
        except ValueError as error:
            raise ProviderRefused(str(error)) from error
        is_of_this_trace = state.started_unix_s == started_unix_s and all(
            0 <= index < len(self._nodes.stays) for index in state.bound.values()
        )
        return state if is_of_this_trace else TracedState(started_unix_s=started_unix_s)

    def _save(self, state: TracedState) -> None:
        draft = self._path.with_suffix(".draft")
        draft.write_text(state.model_dump_json(indent=1))
        draft.replace(self._path)

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._mesh}.trace.json"
