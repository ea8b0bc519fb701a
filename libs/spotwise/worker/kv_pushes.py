"""The hand-offs that leave this worker, and what the engine tells them.

Law: progress goes from the engine's thread straight to the pushes, past the role: the thread notes a number and wakes the
loop, at most once until the loop has looked; the loop tells the pushes of the iteration's rows. A push hears of whole blocks
only: a block that a prompt's next part goes on writing is not whole. When an iteration has ended, all its layers are written,
told of or not, before the role hears of it.

Each push's cost is noted by peer and mode, and the role is given what is known after every push.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from spotwise.core.batching import Batch
from spotwise.core.latest import LatestDict
from spotwise.core.record import KvTarget, sequence_id
from spotwise.core.worker import commands as c
from spotwise.core.worker.push_policy import WORKERS_REMEMBERED, PushCosts, PushMode
from spotwise.mesh.link_fit import LinkFit
from spotwise.mesh.ports import KvPush, KvTransferError, KvTransport

#: Weight of the newest iteration in what its notices cost.
_NEWEST = 0.25


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A prompt that leaves as it is computed."""

    push: KvPush
    num_tokens: int
    num_blocks: int


class LayerWatch:
    """What one iteration tells the pushes of its rows."""

    def __init__(self, prompts: list[tuple[_Prompt, int]], num_layers: int) -> None:
        self.notices_s = 0.0
        self._prompts = prompts
        self._num_layers = num_layers
        self._loop = asyncio.get_running_loop()
        self._layers = 0
        self._is_woken = False

    def layers_written(self, layers: int) -> None:
        """On the engine's thread: note that the rows have their KV in so many layers."""
        started_s = time.perf_counter()
        self._layers = layers
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._tell)
        self.notices_s += time.perf_counter() - started_s

    def ended(self) -> None:
        """Note that the iteration did what it was to do."""
        self._layers = self._num_layers
        self._tell()

    def _tell(self) -> None:
        self._is_woken = False  # before the number is read: who writes a later one wakes again
        layers = self._layers
        for prompt, blocks in self._prompts:
            prompt.push.wrote(layers, blocks)


class KvPushes:
    """Opens, commits and calls off pushes.

    Args:
        transport: that they go through.
        num_layers: of the model.
        block_size: tokens of a block.
        spawn: runs a task until it ends.
        feed: gives an event to the role.
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

    # --- commands -------------------------------------------------------------------------------------------------

    def push(self, command: c.PushKv) -> None:
        """Deliver a prompt that is computed."""
        handoff = command.handoff
        prompt = self._open(
            command.target,
            handoff.choice_id,
            handoff.epoch,
            command.source_block_ids,
            handoff.num_tokens,
            PushMode.SERIAL,
        )
        if prompt is not None:
            prompt.push.wrote(self._num_layers, prompt.num_blocks)
            prompt.push.commit(handoff)

    def open(self, command: c.OpenPush) -> None:
        """Begin to deliver a prompt that will be computed."""
        prompt = self._open(
            command.target,
            command.choice_id,
            command.epoch,
            command.source_block_ids,
            command.num_tokens,
            PushMode.LAYERWISE,
        )
        if prompt is not None:
            prompt.push.wrote(self._num_layers, self._whole_blocks(prompt, command.written_tokens))

    def commit(self, command: c.CommitPush) -> None:
        """Deliver the rest of a prompt, which is computed now; nothing happens where its push has failed already."""
        handoff = command.handoff
        prompt = self._prompts.get(sequence_id(handoff.choice_id, handoff.epoch))
        if prompt is not None:
            prompt.push.commit(handoff)

    def abort(self, command: c.AbortPush) -> None:
        """Call a push off."""
        prompt = self._prompts.get(sequence_id(command.choice_id, command.epoch))
        if prompt is not None:
            prompt.push.abort()

    # --- the engine -----------------------------------------------------------------------------------------------

    def watch(self, batch: Batch) -> LayerWatch | None:
        """Return what an iteration has to tell of, where one of its rows belongs to a push."""
        if not self._prompts:
            return None  # as on every worker that only decodes
        prompts = [
            (prompt, self._whole_blocks(prompt, row.first_position + row.num_tokens))
            for row in batch.rows
            if (prompt := self._prompts.get(row.sequence_id)) is not None
        ]
        return LayerWatch(prompts, self._num_layers) if prompts else None

    def watched(self, watch: LayerWatch) -> None:
        """Take in that an iteration has ended, before its result is told to the role."""
        watch.ended()
        self._notices_s += _NEWEST * (watch.notices_s - self._notices_s)

    # --- pushes ---------------------------------------------------------------------------------------------------

    def _whole_blocks(self, prompt: _Prompt, tokens: int) -> int:
        return prompt.num_blocks if tokens == prompt.num_tokens else tokens // self._block_size

    def _open(
        self,
        target: KvTarget,
        choice_id: str,
        epoch: int,
        block_ids: tuple[int, ...],
        num_tokens: int,
        mode: PushMode,
    ) -> _Prompt | None:
        try:
            push = self._transport.open_push(target, choice_id, epoch, block_ids)
        except ValueError as error:
            # Told later: commands of the event that is being answered come first.
            asyncio.get_running_loop().call_soon(self._feed, c.HandoffFailed(choice_id, epoch, str(error)))
            return None
        prompt = self._prompts[sequence_id(choice_id, epoch)] = _Prompt(push, num_tokens, len(block_ids))
        self._spawn(self._deliver(push, target.worker_id, choice_id, epoch, mode), "push_kv")
        return prompt

    async def _deliver(self, push: KvPush, worker_id: str, choice_id: str, epoch: int, mode: PushMode) -> None:
        try:
            report = await push.delivered()
        except (KvTransferError, ValueError) as error:
            self._feed(c.HandoffFailed(choice_id, epoch, str(error)))
            return
        finally:
            del self._prompts[sequence_id(choice_id, epoch)]
        assert report.visible_s is not None  # only a receiver cannot know
        self._note(worker_id, mode, report.kv_bytes, report.visible_s)
        self._feed(
            c.HandoffDelivered(
                choice_id, epoch, report.kv_bytes, report.seconds, report.transport, report.visible_s, mode
            )
        )

    def _note(self, worker_id: str, mode: PushMode, kv_bytes: int, visible_s: float) -> None:
        fit = self._fits[worker_id, mode] = self._fits.get((worker_id, mode), LinkFit())
        fit.saw(kv_bytes, visible_s)
        serial, layerwise = (self._fits.get((worker_id, mode)) for mode in (PushMode.SERIAL, PushMode.LAYERWISE))
        costs = PushCosts(
            None if serial is None else serial.cost, None if layerwise is None else layerwise.cost, self._notices_s
        )
        self._feed(c.PushesMeasured(worker_id, costs))
