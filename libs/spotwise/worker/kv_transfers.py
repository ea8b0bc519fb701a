"""Performs a worker role's KV transfers: hand-offs layer by layer as the engine computes them, and swaps with host memory.

The engine's thread reports written layers directly to the pushes of an iteration's rows, by a number and at most one wake-up of
the loop at a time. Only whole blocks count as written. At an iteration's end all its layers are written before the role handles
it. After every push the role receives the fitted costs by peer and mode.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from spotwise.core.costs.batching import Batch
from spotwise.core.costs.cost_model import FLAT_BYTES_PER_S, LinkCost
from spotwise.core.latest import LatestDict
from spotwise.core.messages import hand_offs as h
from spotwise.core.messages.hand_offs import PushMode
from spotwise.core.requests.record import KvSource, KvTarget, sequence_id
from spotwise.core.worker import commands as c
from spotwise.core.worker.commands import SwapFailed, SwapIn, SwapOut, Swapped
from spotwise.core.worker.kv.push_policy import WORKERS_REMEMBERED, PushCosts
from spotwise.mesh.links.whole_push import source_of
from spotwise.mesh.ports.ports import KvPush, KvTransferError, KvTransport
from spotwise.worker.engine_watch import EngineWatch
from spotwise.worker.worker_engine import WorkerEngine

#: A transfer's weight relative to the next one's: about twenty count.
_FADING = 0.9
#: Sizes that vary by less than this share of their mean are one size.
_ONE_SIZE = 0.05

#: Weight of the newest iteration in the mean time that layer notices take.
_NEWEST = 0.25


class LinkFit:
    """A link's latency and bandwidth, fitted to observed transfers: least squares of seconds over bytes, with exponentially
    decaying weights, so that the fit follows a link that changes. Where all transfers are of one size the line goes through the
    origin; where larger ones take no longer it is flat.
    """

    def __init__(self) -> None:
        self._weight = 0.0
        self._bytes = 0.0
        self._seconds = 0.0
        self._bytes_squared = 0.0
        self._product = 0.0

    def saw(self, num_bytes: int, seconds: float) -> None:
        """Learn from a transfer."""
        if num_bytes <= 0 or seconds <= 0.0:
            return
        self._weight = _FADING * self._weight + 1.0
        self._bytes = _FADING * self._bytes + num_bytes
        self._seconds = _FADING * self._seconds + seconds
        self._bytes_squared = _FADING * self._bytes_squared + num_bytes * num_bytes
        self._product = _FADING * self._product + num_bytes * seconds

    @property
    def cost(self) -> LinkCost | None:
        """The fitted line; `None` before the first transfer."""
        if not self._weight:
            return None
        mean_bytes, mean_s = self._bytes / self._weight, self._seconds / self._weight
        variance = self._bytes_squared / self._weight - mean_bytes * mean_bytes
        through_origin = LinkCost(0.0, mean_bytes / mean_s)
        if variance <= (_ONE_SIZE * mean_bytes) ** 2:
            return through_origin
        slope = (self._product / self._weight - mean_bytes * mean_s) / variance
        if slope <= 0.0:
            return LinkCost(mean_s, FLAT_BYTES_PER_S)
        latency_s = mean_s - slope * mean_bytes
        return LinkCost(latency_s, 1.0 / slope) if latency_s >= 0.0 else through_origin


class KvSwaps:
    """The swaps of one worker; `feed` feeds an event to the role, `on_blocks_freed` runs after a swap to the host."""

    def __init__(
        self,
        engine: WorkerEngine,
        watch: EngineWatch,
        feed: Callable[[Swapped | SwapFailed], None],
        on_blocks_freed: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._watch = watch
        self._feed = feed
        self._on_blocks_freed = on_blocks_freed

    def swap_out(self, command: SwapOut) -> None:
        """Copy KV to the host."""

        def ended(error: Exception | None) -> None:
            self._ended(command.sequence_id, error)
            if error is None:
                self._on_blocks_freed()

        self._watch.swap_began()
        self._engine.swap_out(command.block_ids, command.host_block_ids, ended)

    def swap_in(self, command: SwapIn) -> None:
        """Copy KV back to the device."""
        self._watch.swap_began()
        self._engine.swap_in(
            command.host_block_ids, command.block_ids, lambda error: self._ended(command.sequence_id, error)
        )

    def _ended(self, sequence_id: str, error: Exception | None) -> None:
        self._watch.swap_ended()
        if error is None:
            self._feed(Swapped(sequence_id))
        else:
            self._feed(SwapFailed(sequence_id, f"{type(error).__name__}: {error}"))


@dataclass(frozen=True, slots=True)
class _Prompt:
    push: KvPush
    num_tokens: int | None
    num_blocks: int


class LayerWatch:
    """Reports one iteration's written layers to the pushes of its rows."""

    def __init__(self, prompts: list[tuple[_Prompt, int]], num_layers: int) -> None:
        self.notices_s = 0.0
        self._prompts = prompts
        self._num_layers = num_layers
        self._loop = asyncio.get_running_loop()
        self._layers = 0
        self._is_woken = False

    def layers_written(self, layers: int) -> None:
        """On the engine's thread: note the number of layers that have written the rows' KV."""
        started_s = time.perf_counter()
        self._layers = layers
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._report)
        self.notices_s += time.perf_counter() - started_s

    def ended(self) -> None:
        """Note that all layers are written."""
        self._layers = self._num_layers
        self._report()

    def _report(self) -> None:
        self._is_woken = False  # before the number is read: a later one wakes the loop again
        layers = self._layers
        for prompt, blocks in self._prompts:
            prompt.push.wrote(layers, blocks)


class KvPushes:
    """Opens, commits and aborts pushes; `spawn` runs a background task, `feed` feeds the role, a block has
    `block_size` tokens.
    """

    def __init__(
        self,
        transport: KvTransport,
        num_layers: int,
        block_size: int,
        spawn: Callable[..., object],
        feed: Callable[[c.WorkerEvent], None],
    ) -> None:
        self._transport = transport
        self._num_layers = num_layers
        self._block_size = block_size
        self._spawn = spawn
        self._feed = feed
        self._prompts: dict[str, _Prompt] = {}
        self._fits = LatestDict[tuple[str, PushMode], LinkFit](WORKERS_REMEMBERED * len(PushMode))
        self._notices_s = 0.0

    def push(self, command: c.PushKv) -> None:
        """Push a prompt that is computed."""
        handoff = command.handoff
        prompt = self._open(command.target, source_of(handoff, command.source_block_ids), PushMode.SERIAL)
        if prompt is not None:
            prompt.push.wrote(self._num_layers, prompt.num_blocks)
            prompt.push.commit(handoff)

    def open(self, command: h.OpenPush) -> None:
        """Open the push of a prompt that will be computed, or of a sequence that decodes on."""
        source = command.source
        prompt = self._open(command.target, source, None if source.num_tokens is None else PushMode.LAYERWISE)
        if prompt is None:
            return
        prompt.push.wrote(self._num_layers, self._whole_blocks(prompt, source.written_tokens))
        if source.num_tokens is None:
            caught_up = h.PushCaughtUp(source.choice_id, source.epoch, source.number)
            self._spawn(self._catch_up(prompt.push, caught_up), "pre_copy")

    async def _catch_up(self, push: KvPush, caught_up: h.PushCaughtUp) -> None:
        await push.caught_up()
        self._feed(caught_up)

    def commit(self, command: h.CommitPush) -> None:
        """Commit the push of a prompt, which is computed now, or of a sequence; no effect where it has failed already."""
        handoff = command.handoff
        prompt = self._prompts.get(sequence_id(handoff.choice_id, handoff.epoch))
        if prompt is not None:
            if prompt.num_tokens is not None:  # in a group, another process may be the first to say so
                prompt.push.wrote(self._num_layers, prompt.num_blocks)
            prompt.push.commit(handoff, command.source_block_ids)

    def abort(self, command: h.AbortPush) -> None:
        """Abort a push."""
        prompt = self._prompts.get(sequence_id(command.choice_id, command.epoch))
        if prompt is not None:
            prompt.push.abort()

    def watch(self, batch: Batch) -> LayerWatch | None:
        """Return the watch of an iteration; `None` where no row belongs to a push."""
        if not self._prompts:
            return None  # as on every worker that only decodes
        prompts = [
            (prompt, self._whole_blocks(prompt, row.first_position + row.num_tokens))
            for row in batch.rows
            if (prompt := self._prompts.get(row.sequence_id)) is not None and prompt.num_tokens is not None
        ]
        return LayerWatch(prompts, self._num_layers) if prompts else None

    def watched(self, watch: LayerWatch) -> None:
        """Note an iteration's end, before the role handles its result."""
        watch.ended()
        self._notices_s += _NEWEST * (watch.notices_s - self._notices_s)

    def _whole_blocks(self, prompt: _Prompt, tokens: int) -> int:
        return prompt.num_blocks if tokens == prompt.num_tokens else tokens // self._block_size

    def _open(self, target: KvTarget, source: KvSource, mode: PushMode | None) -> _Prompt | None:
        choice_id, epoch = source.choice_id, source.epoch
        try:
            push = self._transport.open_push(target, source)
        except ValueError as error:
            # Later: the remaining commands of the current event come first.
            asyncio.get_running_loop().call_soon(self._feed, h.HandoffFailed(choice_id, epoch, str(error)))
            return None
        prompt = self._prompts[sequence_id(choice_id, epoch)] = _Prompt(push, source.num_tokens, len(source.block_ids))
        self._spawn(self._deliver(push, target.worker_id, choice_id, epoch, mode), "push_kv")
        return prompt

    async def _deliver(self, push: KvPush, worker_id: str, choice_id: str, epoch: int, mode: PushMode | None) -> None:
        try:
            report = await push.delivered()
        except (KvTransferError, ValueError) as error:
            self._feed(h.HandoffFailed(choice_id, epoch, str(error)))
            return
        finally:
            del self._prompts[sequence_id(choice_id, epoch)]
        assert report.visible_s is not None  # a sender knows it
        if mode is not None:  # a prompt's: what a move costs says nothing of these
            self._note(worker_id, mode, report.kv_bytes, report.visible_s)
        delivered = h.HandoffDelivered(
            choice_id,
            epoch,
            report.kv_bytes,
            report.seconds,
            report.transport,
            report.visible_s,
            mode or PushMode.SERIAL,
        )
        self._feed(delivered)

    def _note(self, worker_id: str, mode: PushMode, kv_bytes: int, visible_s: float) -> None:
        fit = self._fits[worker_id, mode] = self._fits.get((worker_id, mode), LinkFit())
        fit.saw(kv_bytes, visible_s)
        serial, layerwise = (self._fits.get((worker_id, mode)) for mode in (PushMode.SERIAL, PushMode.LAYERWISE))
        costs = PushCosts(
            None if serial is None else serial.cost, None if layerwise is None else layerwise.cost, self._notices_s
        )
        self._feed(c.PushesMeasured(worker_id, costs))
