"""A push against a real inbox, over a link that loses and damages: all of the KV arrives, once, or nothing was handed over."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from spotwise.core.requests.kv_part import KvPart
from spotwise.core.requests.record import KvHandoff, KvTarget
from spotwise.mesh.links.kv_exports import ByteBudget, KvExports
from spotwise.mesh.links.kv_payloads import HostPayloads, PayloadBuffers, ThreadScratch
from spotwise.mesh.links.ucx_inbox import KvInbox
from spotwise.mesh.links.ucx_push import UcxPush
from spotwise.mesh.ports.ports import KvTransferError
from spotwise.mesh.ports.weights import KvSections, WholeKv
from spotwise.wire.kv_frames import MAX_RESENDS, FrameKind, KvFrame

LAYERS, BLOCKS, CELL = 4, 8, 8
SOURCE, RESERVED = (5, 0, 3, 6, 1), (7, 2, 4, 1, 0, 3)
HANDOFF = KvHandoff("r", 1, 77, 5)


class Memory(WholeKv):
    """Cells of which some are not written yet: reading one of those is the error looked for."""

    num_layers = LAYERS
    layer_block_bytes = CELL
    layout = "cells"

    def __init__(self, seed: int) -> None:
        self.cells = np.random.default_rng(seed).integers(0, 256, (LAYERS, BLOCKS, CELL), dtype=np.uint8)
        self.written = np.zeros((LAYERS, BLOCKS), dtype=bool)
        self.read: Counter[tuple[int, int]] = Counter()
        self.given_away = False

    def export_layers(
        self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], into: Any = None
    ) -> NDArray[np.uint8]:
        assert not self.given_away, "read after the push was over"
        layers = range(first_layer, first_layer + num_layers)
        assert all(self.written[layer, block] for layer in layers for block in block_ids), "read before it was written"
        self.read.update((layer, block) for layer in layers for block in block_ids)
        return self.cells[first_layer : first_layer + num_layers, list(block_ids)].reshape(-1)

    def import_layers(
        self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], data: NDArray[np.uint8]
    ) -> None:
        cells = data.reshape(num_layers, len(block_ids), CELL)
        self.cells[first_layer : first_layer + num_layers, list(block_ids)] = cells


class End:
    """One end of the wire, as pushes and inboxes use a link."""

    def __init__(self) -> None:
        self.slots = asyncio.Semaphore(2)
        self.alive = True
        self.transport = "wire"
        self.is_sealed = False
        self.outgoing_seal = self.incoming_seal = None
        self.peer = SimpleNamespace(worker_id="t", incarnation=1)
        self.send: Any


class Wire:
    """Two ends of a link in one process; frames of one direction keep their order, and take a while."""

    def __init__(self, rng: random.Random, damage: float) -> None:
        self.rng = rng
        self.damage = damage
        self.damaged = 0
        self.lost = False
        self.push: UcxPush
        self.inbox: KvInbox
        self.near: Any = self._end(self._to_inbox)
        self.far: Any = self._end(self._to_push)
        self._last_s = {id(self.near): 0.0, id(self.far): 0.0}

    def _end(self, deliver: Any) -> Any:
        end = End()

        def send(frame: KvFrame, payload: Any = None) -> asyncio.Future[None]:
            if not end.alive:
                raise KvTransferError("the wire is cut")
            loop = asyncio.get_running_loop()
            left: asyncio.Future[None] = loop.create_future()
            copy = None if payload is None else np.frombuffer(bytes(payload), np.uint8).copy()
            # Later than the one before by a clock's resolution: timers of one moment run in any order.
            at_s = max(loop.time() + self.rng.random() * 0.002, self._last_s[id(end)] + 1e-6)
            self._last_s[id(end)] = at_s
            loop.call_at(at_s, deliver, frame, copy, left)
            return left

        end.send = send
        return end

    def _to_inbox(self, frame: KvFrame, payload: Any, left: asyncio.Future[None]) -> None:
        left.set_result(None)
        if self.lost:
            return
        if frame.kind is FrameKind.CHUNK and self.rng.random() < self.damage:
            payload[0] ^= 1
            self.damaged += 1
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        arrived.set_result(None)
        self.inbox.receive(self.far, frame, payload, arrived)

    def _to_push(self, frame: KvFrame, payload: Any, left: asyncio.Future[None]) -> None:
        left.set_result(None)
        if self.lost or frame.push_id != self.push.push_id:
            return
        if frame.kind is FrameKind.RESEND:
            self.push.resend(frame)
        else:
            self.push.answered(frame)

    def cut(self) -> None:
        """Both ends learn that the link is gone."""
        self.lost = True
        self.near.alive = self.far.alive = False
        self.inbox.link_lost(self.far)
        self.push.lost("cut")

    async def join(self, push: UcxPush, address: str, timeout_s: float) -> Any:
        await asyncio.sleep(self.rng.random() * 0.001)
        return self.near

    def leave(self, push: UcxPush, *, timed_out: bool) -> None:
        assert not timed_out


def a_push(wire: Wire, exports: KvExports, push_id: int) -> UcxPush:
    frame = KvFrame(FrameKind.ABORT, "r", 1, push_id, 9, 1, KvPart.whole(LAYERS))
    wire.push = UcxPush(exports, wire, frame, KvTarget("t", 1, "t:1", RESERVED), SOURCE, timeout_s=60.0)
    return wire.push


async def story(seed: int, damage: float, ends: str, chunk_bytes: int, least_bytes: int, end_at: int) -> None:
    """One prompt computed in two parts; `ends` after so many steps of progress, or whole."""
    rng = random.Random(seed)
    sender, receiver = Memory(1), Memory(2)
    before = receiver.cells.copy()
    handoffs: list[KvHandoff] = []
    wire = Wire(rng, damage)
    with ThreadPoolExecutor(2) as copies:
        wire.inbox = KvInbox(
            KvSections(receiver),
            HostPayloads(),
            ThreadScratch(HostPayloads()),
            1,
            lambda handoff, report: handoffs.append(handoff),
            copies,
        )
        wire.inbox.expect("r", 1, RESERVED)
        exports = KvExports(
            sender,
            HostPayloads(),
            PayloadBuffers(HostPayloads(), chunk_bytes, keep=1),
            copies,
            ByteBudget(3 * chunk_bytes),
            ThreadScratch(HostPayloads()),
            chunk_bytes,
            least_bytes,
        )
        push = a_push(wire, exports, 1)
        failed = False

        async def outcome() -> bool:
            try:
                report = await push.delivered()
            except KvTransferError:
                return False
            finally:
                sender.given_away = True
            assert report.kv_bytes == LAYERS * len(SOURCE) * CELL
            return True

        ending = asyncio.create_task(outcome())
        first_part = rng.randint(0, len(SOURCE))
        progress = [(layer, first_part) for layer in range(1, LAYERS + 1)]
        progress += [(layer, len(SOURCE)) for layer in range(1, LAYERS + 1)]
        for step, (layers, blocks) in enumerate(progress):
            if step == end_at and ends == "abort":
                push.abort()
            if step == end_at and ends == "cut":
                wire.cut()
            if step == end_at and ends == "forget":
                wire.inbox.forget("r")
            sender.written[:layers, list(SOURCE[:blocks])] = True
            if rng.random() < 0.8:
                push.wrote(layers, blocks)
            if rng.random() < 0.5:
                await asyncio.sleep(rng.random() * 0.002)
        push.wrote(LAYERS, len(SOURCE))
        push.commit(HANDOFF)
        if ends == "forget" and end_at == len(progress):
            wire.inbox.forget("r")
        failed = not await ending
        expected = before.copy()
        expected[:, RESERVED[: len(SOURCE)]] = sender.cells[:, SOURCE]
        again = sum(sender.read.values()) - len(sender.read)
        assert again <= wire.damaged * LAYERS * len(SOURCE)
        if not failed:
            assert handoffs == [HANDOFF]
            assert np.array_equal(receiver.cells, expected)
            assert wire.damaged > 0 or again == 0
        elif ends == "whole":
            assert wire.damaged > MAX_RESENDS
        await wire.inbox.idle()
        if not wire.lost:
            await asyncio.sleep(0.003)  # for an ABORT on its way
        assert not wire.inbox.arriving, "a push that is over is still remembered"
        if failed and not handoffs and ends in ("abort", "whole"):
            # the window is as good as before
            sender.given_away, wire.damage = False, 0.0
            second = a_push(wire, exports, 2)
            second.wrote(LAYERS, len(SOURCE))
            second.commit(HANDOFF)
            await second.delivered()
            assert np.array_equal(receiver.cells, expected)
            assert handoffs == [HANDOFF]
        others = [block for block in range(BLOCKS) if block not in RESERVED[: len(SOURCE)]]
        assert np.array_equal(receiver.cells[:, others], before[:, others])


@settings(max_examples=60)
@example(25451, 0.1, "cut", 16, 0, 2 * LAYERS)  # never cut, and refused for its damages: an ABORT is still on its way
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.0, 0.1, 0.3, 1.0]),
    st.sampled_from(["whole", "whole", "abort", "cut", "forget"]),
    st.sampled_from([1, 2 * CELL, 7 * CELL, 1000]),
    st.sampled_from([0, 3 * CELL, 1000]),
    st.integers(0, 2 * LAYERS),
)
def test_all_of_it_arrives_once_or_nothing_is_handed_over(
    seed: int, damage: float, ends: str, chunk_bytes: int, least_bytes: int, end_at: int
) -> None:
    """Damaged chunks, a push that is called off, a link that is cut, a reservation that is released, at any moment."""
    asyncio.run(story(seed, damage, ends, chunk_bytes, least_bytes, end_at))
