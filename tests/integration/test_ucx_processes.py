"""KV hand-offs with peers in processes of their own, that also die, hang and come back."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop
import xxhash

from spotwise.core.requests.record import KvSource, KvTarget
from spotwise.mesh.ports.ports import KvTransferError
from tests.integration.ucx_worker import (
    BLOCKS,
    CELL_BYTES,
    LAYERS,
    PATIENCE_S,
    ArrayMemory,
    Worker,
    handoff,
    running,
    until,
)

pytestmark = [pytest.mark.mesh, pytest.mark.paired]


class Peer:
    """A worker in another process, driven by lines of JSON. Its memory is `ArrayMemory(seed)`."""

    def __init__(self, **options: Any) -> None:
        self.options = {"name": "t", "seed": 2, "port": 0, "slow": False, **options}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("ucx_worker.py")), json.dumps(self.options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address: str = self._line()["address"]

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())  # type: ignore[no-any-return]

    def tell(self, **command: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    async def ask(self, **command: Any) -> dict[str, Any]:
        self.tell(**command)
        return await asyncio.to_thread(self._line)

    def target(self, block_ids: tuple[int, ...], **changes: Any) -> KvTarget:
        fields = {"worker_id": self.options["name"], "incarnation": self.options["seed"], "address": self.address}
        return KvTarget(**{**fields, "block_ids": block_ids, **changes})

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_two_processes_hand_over_both_ways_and_end_cleanly(run: Callable[[Any], None]) -> None:
    """Over either event loop (the peer's is uvloop) bytes arrive in both directions, and both processes exit with 0."""

    async def both_ways() -> None:
        with Peer() as peer:
            worker = Worker("p", 1)
            theirs = ArrayMemory(2).cells
            async with running(worker):
                await peer.ask(do="expect", choice_id="r", epoch=1, block_ids=(5, 9))
                report = await worker.transport.push(peer.target((5, 9)), handoff(), (1, 2))
                theirs[:, (5, 9)] = worker.memory.cells[:, (1, 2)]
                seen = await peer.ask(do="look")
                assert seen == {"cells": xxhash.xxh3_64_hexdigest(theirs.data), "handoffs": 1}
                assert report.transport != "unknown"

                worker.transport.expect("r", 1, (20, 21))
                target = worker.target((20, 21))
                fields = ("worker_id", "incarnation", "address", "block_ids")
                as_json = {name: getattr(target, name) for name in fields}
                await peer.ask(do="push", target=as_json, source=(30, 31))
                assert np.array_equal(worker.memory.cells[:, (20, 21)], theirs[:, (30, 31)])
                output, _ = peer.process.communicate()
            assert (json.loads(output), peer.process.returncode) == ({"closed": []}, 0)

    run(both_ways())


async def test_a_receiver_killed_in_the_middle_fails_the_push_by_itself() -> None:
    """SIGKILL, not a time-out, ends the push; a new process at the same port with a new incarnation is found again."""
    worker = Worker("p", 1, push_timeout_s=10 * PATIENCE_S, chunk_bytes=CELL_BYTES)
    blocks = tuple(range(BLOCKS))
    async with running(worker):
        with Peer(slow=True) as peer:
            await peer.ask(do="expect", choice_id="r", epoch=1, block_ids=blocks)
            pushing = asyncio.create_task(worker.transport.push(peer.target(blocks), handoff(), blocks))
            await until(lambda: worker.transport._pushes)
            await asyncio.sleep(0.2)
            peer.signal(signal.SIGKILL)
            with pytest.raises(KvTransferError, match="connection lost"):
                await pushing
            with pytest.raises(KvTransferError):
                await worker.transport.push(peer.target(blocks), handoff(), blocks)
        port = int(peer.address.rpartition(":")[2])
        with Peer(seed=3, port=port) as reborn:
            await reborn.ask(do="expect", choice_id="r", epoch=1, block_ids=blocks)
            with pytest.raises(KvTransferError, match="has restarted"):
                await worker.transport.push(peer.target(blocks), handoff(), blocks)
            await worker.transport.push(reborn.target(blocks), handoff(), blocks)
            assert (await reborn.ask(do="look"))["handoffs"] == 1


async def test_a_receiver_killed_while_a_prompt_is_computed_ends_its_push() -> None:
    """The push's owner is notified before the commit, though no byte is being sent; a commit after that is harmless."""
    worker = Worker("p", 1)
    async with running(worker):
        with Peer() as peer:
            await peer.ask(do="expect", choice_id="r", epoch=1, block_ids=(1, 2, 3))
            push = worker.transport.open_push(peer.target((1, 2, 3)), KvSource("r", 1, (4, 5), 40, 0))
            push.wrote(2, 2)
            await until(lambda: worker.transport._pushes)
            await asyncio.sleep(0.2)
            peer.signal(signal.SIGKILL)
            with pytest.raises(KvTransferError, match="connection lost"):
                await push.delivered()
        push.wrote(LAYERS, 2)
        push.commit(handoff())


async def test_a_peer_restarted_between_pushes_is_reconnected() -> None:
    """The cached link of a process that is gone is not used again: the first push after its return succeeds."""
    worker = Worker("p", 1)
    async with running(worker):
        port = 0
        for seed in (2, 3):
            with Peer(seed=seed, port=port) as peer:
                await peer.ask(do="expect", choice_id="r", epoch=1, block_ids=(1,))
                await worker.transport.push(peer.target((1,)), handoff(), (1,))
                port = int(peer.address.rpartition(":")[2])
            await until(lambda: not worker.transport._links._open)


async def test_a_sender_killed_in_the_middle_frees_the_window() -> None:
    gate = threading.Event()
    receiver, other = Worker("t", 1, gate), Worker("q", 3)
    async with running(receiver, other):
        receiver.transport.expect("r", 1, (1, 2, 3))
        target = receiver.target((1, 2, 3))
        fields = {name: getattr(target, name) for name in ("worker_id", "incarnation", "address", "block_ids")}
        with Peer() as peer:
            peer.tell(do="push", target=fields, source=(1, 2, 3))
            await until(receiver.memory.importing.is_set)
            peer.signal(signal.SIGKILL)
        await until(lambda: not receiver.transport._inbox._incoming)
        gate.set()
        assert receiver.handoffs == []
        await other.transport.push(target, handoff(), (7, 8, 9))
        await until(lambda: len(receiver.transport._links._open) == 1)
    assert np.array_equal(receiver.memory.cells[:, (1, 2, 3)], other.memory.cells[:, (7, 8, 9)])
    assert receiver.handoffs == [handoff()]


async def test_a_peer_that_hangs_times_out_and_is_reconnected_when_it_wakes() -> None:
    worker = Worker("p", 1, push_timeout_s=1.0)
    blocks = tuple(range(BLOCKS))
    async with running(worker):
        with Peer() as peer:
            await peer.ask(do="expect", choice_id="r", epoch=1, block_ids=blocks)
            await worker.transport.push(peer.target(blocks), handoff(), blocks)
            peer.signal(signal.SIGSTOP)
            pushes = (worker.transport.push(peer.target(blocks), handoff(f"r{n}"), blocks) for n in range(3))
            for failed in await asyncio.gather(*pushes, return_exceptions=True):
                assert isinstance(failed, KvTransferError)
                assert "not done within 1 s" in str(failed)
            await until(lambda: not worker.transport._links._open)
            peer.signal(signal.SIGCONT)
            await peer.ask(do="expect", choice_id="again", epoch=1, block_ids=blocks)
            await worker.transport.push(peer.target(blocks), handoff("again"), blocks)
