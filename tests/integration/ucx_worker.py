"""A worker that is only a KV transport with its memory; run as a program, one that obeys lines of JSON on stdin."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import uvloop
import xxhash
from numpy.typing import NDArray

from spotwise.core.requests.record import KvHandoff, KvTarget
from spotwise.mesh.links.ucx_transfer import TransferSettings, UcxKvTransport
from spotwise.mesh.ports.ports import TransferReport
from spotwise.mesh.ports.weights import WholeKv

LAYERS, BLOCKS, CELL_BYTES = 6, 64, 1536
PATIENCE_S = 60.0


class ArrayMemory(WholeKv):
    """Paged KV in one numpy array; `gate`, where given, holds every import until it is set."""

    num_layers = LAYERS
    layer_block_bytes = CELL_BYTES
    layout = "cells of random bytes"

    def __init__(self, seed: int, gate: threading.Event | None = None) -> None:
        self.cells = np.random.default_rng(seed).integers(0, 256, (LAYERS, BLOCKS, CELL_BYTES), dtype=np.uint8)
        self.gate = gate
        self.importing = threading.Event()

    def export_layers(
        self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], into: Any = None
    ) -> NDArray[np.uint8]:
        return self.cells[first_layer : first_layer + num_layers, list(block_ids)].reshape(-1)

    def import_layers(
        self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], data: NDArray[np.uint8]
    ) -> None:
        self.importing.set()
        if self.gate is not None:
            assert self.gate.wait(PATIENCE_S)
        cells = data.reshape(num_layers, len(block_ids), CELL_BYTES)
        self.cells[first_layer : first_layer + num_layers, list(block_ids)] = cells


class Worker:
    """One transport with its memory and the hand-offs it was given."""

    def __init__(self, name: str, seed: int, gate: threading.Event | None = None, **options: Any) -> None:
        self.name = name
        self.memory = ArrayMemory(seed, gate)
        self.handoffs: list[KvHandoff] = []
        self.reports: list[TransferReport] = []
        self.incarnation: int = options.pop("incarnation", seed)
        payloads = options.pop("payloads", None)
        settings = TransferSettings(**options)
        self.transport = UcxKvTransport(self.memory, name, self.incarnation, self.took, settings, payloads=payloads)

    def took(self, handoff: KvHandoff, report: TransferReport) -> None:
        self.handoffs.append(handoff)
        self.reports.append(report)

    def target(self, block_ids: tuple[int, ...], **changes: Any) -> KvTarget:
        fields = {"worker_id": self.name, "incarnation": self.incarnation, "address": self.transport.address}
        return KvTarget(**{**fields, "block_ids": block_ids, **changes})


@asynccontextmanager
async def running(*workers: Worker) -> AsyncIterator[None]:
    for worker in workers:
        await worker.transport.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield
    finally:
        for worker in workers:
            if worker.memory.gate is not None:
                worker.memory.gate.set()
            await worker.transport.close()


@asynccontextmanager
async def pair(
    reserved: tuple[int, ...] = (1, 2), gate: threading.Event | None = None, **sending: Any
) -> AsyncIterator[tuple[Worker, Worker]]:
    """A sender with these settings, and a receiver that has reserved blocks for the first attempt of `r`."""
    sender, receiver = Worker("p", 1, **sending), Worker("t", 2, gate)
    async with running(sender, receiver):
        receiver.transport.expect("r", 1, reserved)
        yield sender, receiver


async def until(true: Callable[[], object]) -> None:
    while not true():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.005)


def handoff(choice_id: str = "r", epoch: int = 1, num_tokens: int = 77) -> KvHandoff:
    return KvHandoff(choice_id, epoch, num_tokens, first_token_id=5)


async def serve(options: dict[str, Any]) -> None:
    """The other process: obeys lines on stdin until it closes."""
    gate = threading.Event() if options["slow"] else None
    worker = Worker(options["name"], options["seed"], gate, port=options["port"], chunk_bytes=4 * CELL_BYTES)
    await worker.transport.start()
    say({"address": worker.transport.address})
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        match command.pop("do"):
            case "expect":
                worker.transport.expect(command["choice_id"], command["epoch"], tuple(command["block_ids"]))
                say({})
            case "look":
                cells = worker.memory.cells
                say({"cells": xxhash.xxh3_64_hexdigest(cells.data), "handoffs": len(worker.handoffs)})
            case "push":
                target = KvTarget(**{**command["target"], "block_ids": tuple(command["target"]["block_ids"])})
                await worker.transport.push(target, handoff(), tuple(command["source"]))
                say({})
    await worker.transport.close()
    say({"closed": [thread.name for thread in threading.enumerate() if thread.name.startswith("kv-copy")]})


def say(words: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(serve(json.loads(sys.argv[1])))
