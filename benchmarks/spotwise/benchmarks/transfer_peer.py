"""One end of a measured transfer, as a process: `python -m spotwise.benchmarks.transfer_peer OPTIONS`.

It listens, writes its address to stdout, accepts the configured number of pushes into the same blocks, and ends when its stdin
is closed.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from spotwise.engine.kv.cache import KvGeometry, PagedKvCache
from spotwise.engine.torch_devices import host_kv_cache
from spotwise.mesh.links.ucx_transfer import TransferSettings, UcxKvTransport
from spotwise.mesh.ports.ports import KvMemory
from spotwise.mesh.ports.weights import WholeKv
from spotwise.mesh.security.link_security import LinkEncryption, LinkSecurity
from spotwise.mesh.security.secrets import MeshSecret

#: The KV of an 8-billion-parameter model with grouped heads: 2 KiB a token and layer of keys, as much of values.
GEOMETRY = KvGeometry(num_layers=16, kv_heads=8, key_dim=128, value_dim=128)
#: Blocks of a push: 4 MiB a layer.
BLOCKS = 64
BLOCK_SIZE = 16
_SECRET = MeshSecret(b"of a benchmark, which hides nothing")
PEER_ID, PEER_INCARNATION = "receiver", 2


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """The configuration of a measurement.

    Attributes:
        pushes: number of accepted pushes.
        chunk_bytes: bytes of one message.
        copies: bytes are copied between paged caches; else they are only sent.
        is_encrypted: the link is encrypted.
    """

    pushes: int
    chunk_bytes: int
    copies: bool
    is_encrypted: bool = False

    def security(self) -> LinkSecurity:
        """Return that of the link: a secret that both ends know, on one machine."""
        return LinkSecurity(_SECRET, LinkEncryption.ON) if self.is_encrypted else LinkSecurity(_SECRET)


class NowhereKv(WholeKv):
    """A KV memory without storage: reads give the same bytes, writes are discarded; this leaves the transport's cost."""

    def __init__(self, largest_bytes: int) -> None:
        cache = _cache(1)
        self.num_layers = cache.num_layers
        self.layer_block_bytes = cache.layer_block_bytes
        self.layout = cache.layout
        self._data = np.ones(largest_bytes, np.uint8)

    def export_layers(
        self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], into: Any = None
    ) -> NDArray[np.uint8]:
        """Return the same bytes for any blocks."""
        return self._data[: num_layers * len(block_ids) * self.layer_block_bytes]

    def import_layers(
        self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], data: NDArray[np.uint8]
    ) -> None:
        """Discard the bytes."""


def kv_memory(options: PeerOptions) -> KvMemory:
    """Return the memory that one end reads or writes."""
    if not options.copies:
        return NowhereKv(options.chunk_bytes)
    cache = _cache(BLOCKS)
    cache.keys.fill_(1.0)
    cache.values.fill_(1.0)
    return cache


def push_bytes() -> int:
    """Bytes of one push."""
    cache = _cache(1)
    return cache.num_layers * cache.layer_block_bytes * BLOCKS


def _cache(num_blocks: int) -> PagedKvCache:
    return host_kv_cache(GEOMETRY, num_blocks, BLOCK_SIZE)


async def _serve(options: PeerOptions) -> None:
    transport = UcxKvTransport(
        kv_memory(options),
        PEER_ID,
        PEER_INCARNATION,
        on_handoff=lambda handoff, report: None,
        settings=TransferSettings(chunk_bytes=options.chunk_bytes, security=options.security()),
    )
    await transport.start()
    for number in range(options.pushes):
        transport.expect(f"push-{number}", 1, tuple(range(BLOCKS)))
    _say(transport.address)
    await asyncio.to_thread(sys.stdin.read)
    await transport.close()


def _say(line: Any) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(PeerOptions(**orjson.loads(sys.argv[1]))))
