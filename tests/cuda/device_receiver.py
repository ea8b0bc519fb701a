"""A worker that only receives one hand-off into a GPU's memory; run as a program, it prints what arrived."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import structlog
import torch
import uvloop

from spotwise.engine.kv.device import DeviceKv
from spotwise.mesh.links.ucx_transfer import UcxKvTransport
from spotwise.worker.transfer_memory import transfer_memory
from tests.cuda.on_device import GEOMETRY, filled


async def receive(device: torch.device, blocks: tuple[int, ...]) -> None:
    cache = filled(device, 1)
    memory, payloads = transfer_memory(cache)
    arrived = asyncio.Event()
    transport = UcxKvTransport(memory, "t", 2, lambda *_: arrived.set(), payloads=payloads)
    await transport.start()
    transport.expect("r", 1, blocks)
    say({"address": transport.address})
    await arrived.wait()
    received = cache.export_layers(0, GEOMETRY.num_layers, blocks)
    direct = DeviceKv(cache, direct=True)
    exported = direct.checksum(direct.export_layers(0, GEOMETRY.num_layers, blocks))
    say({"sum": int(received.astype("uint64").sum()), "first": received[:64].tolist(), "exported": exported})
    await asyncio.to_thread(sys.stdin.readline)  # the answer to the sender leaves before this process does
    await transport.close()


def say(words: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # stdout carries the answers
    options = json.loads(sys.argv[1])
    uvloop.run(receive(torch.device(options["device"]), tuple(options["blocks"])))
