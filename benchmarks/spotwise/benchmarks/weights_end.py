"""One end of measured weights, as a process: `python -m spotwise.benchmarks.weights_end OPTIONS`.

The giving end loads a whole model, says where it gives it, and ends when its stdin is closed. A taking end gets the same model
in one of three ways, into memory that was not written before, and says how long that took.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson
import psutil

from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.core.parallel.model_partition import ModelShare
from spotwise.core.weights.fetch_order import FetchOrder, PanelRequest
from spotwise.engine.model.loading import EngineConfig
from spotwise.engine.native.shard import Shard
from spotwise.engine.parts.group_place import GroupPlace
from spotwise.engine.parts.weight_store import WeightStore
from spotwise.mesh.links.ucx_weights import UcxWeights
from spotwise.worker.groups.peer_weights import PeerWeights
from spotwise.worker.groups.weight_fetch import PIECE_BYTES
from spotwise.worker.settings import WorkerSettings


class Way(StrEnum):
    """What an end does."""

    GIVE = "give"
    PEERS = "peers"
    RAW = "raw"
    STORAGE = "storage"


@dataclass(frozen=True, slots=True)
class EndOptions:
    """The configuration of an end.

    Attributes:
        folder: folder of the model.
        address: address of the giving end.
        buffer_bytes: U_max.
        storage_bytes_per_s: read rate of the folder; `None`: as fast as it is.
    """

    way: str
    folder: str
    address: str
    buffer_bytes: int
    storage_bytes_per_s: float | None = None


class RawWeights(UcxWeights):
    """The same messages without their checksums."""

    async def _checksum(self, payload: Any) -> int:
        return 0


class _RawEnd(PeerWeights):
    """Asks for all panels at once, and keeps no account of what is where."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._end = RawWeights(self, "raw", 1)

    async def take(self, address: str, store: WeightStore, share: ModelShare) -> None:
        inventory = await self._end.inventory(address)
        store.learn(inventory.fused_layers)
        order = FetchOrder(store.missing(share), {address: inventory.panels}, 1 << 62, PIECE_BYTES)
        requests = order.next_requests()
        into = [store.expect_panels(each.range) for each in requests]

        async def get(request: PanelRequest, memory: memoryview) -> None:
            await self._end.get(address, self.layout, request.range, memory)

        await asyncio.gather(*map(get, requests, into))


async def _run(options: EndOptions) -> None:
    config = EngineConfig(
        Path(options.folder), "bfloat16", "cpu", threads=1, storage_bytes_per_s=options.storage_bytes_per_s
    )
    store = WeightStore(config)
    share = GroupPlace(Shard(), 1).share_of(store.structure.sketch)
    settings = WorkerSettings(
        service_id=options.way,
        nats_url="nats://unused",
        redis_url="redis://unused",
        model_dir=config.model_dir,
        weight_buffer_bytes=options.buffer_bytes,
    )

    async def holders() -> list[Member]:
        return [_device("give", options.address)] if options.address else []

    me = _device(options.way)
    if options.way == Way.GIVE:
        store.load(share)
        usual, raw = PeerWeights(me, holders, store, settings), _RawEnd(me, holders, store, settings)
        _say({"addresses": [await usual.start(), await raw.start()], "weight_bytes": store.held_bytes})
        await asyncio.to_thread(sys.stdin.read)
        await usual.close()
        await raw.close()
        return
    before = psutil.Process().memory_info().rss
    began_s = time.perf_counter()
    if options.way == Way.STORAGE:
        store.load(share)
    elif options.way == Way.PEERS:
        end = PeerWeights(me, holders, store, settings)
        await end.start()
        await (await end.fetch(share)).run()
        await end.close()
    else:
        raw = _RawEnd(me, holders, store, settings)
        await raw.start()
        await raw.take(options.address, store, share)
        await raw.close()
    seconds = time.perf_counter() - began_s
    peak = _peak_rss_bytes() - before
    _say({"seconds": seconds, "held_bytes": store.held_bytes, "peak_bytes": peak})


def _device(name: str, address: str = "") -> Member:
    return Member(name, MemberKind.DEVICE, 1, MemberState.READY, "", 1, "", transfer_address=address)


def _peak_rss_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _say(line: Any) -> None:
    sys.stdout.write(orjson.dumps(line).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_run(EndOptions(**orjson.loads(sys.argv[1]))))
