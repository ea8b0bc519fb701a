"""Settings of the transport that moves KV between workers over UCX."""

from __future__ import annotations

from dataclasses import dataclass, field

from spotwise.mesh.security.link_security import LinkSecurity
from spotwise.wire.kv_frames import CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """Addresses, sizes and times of a worker's KV transport; raises `ValueError` where one is not positive.

    Attributes:
        host: under which peers reach this worker; a loopback address restricts the listener to loopback.
        port: to listen on; 0 takes a free one.
        push_timeout_s: seconds of a push after its commit, and without progress before it, connecting included.
        chunk_bytes: a chunk's maximum, unless one block of one layer is larger.
        stream_bytes: a chunk's minimum while its next layer is still computed.
        in_flight: chunks at once, per link and direction.
        exported_bytes: maximum that is exported and not sent yet, of all links.
        window_wait_s: how long the first bytes of a push may be here before its `expect`.
        security: security of the links; by default, without a secret.
    """

    host: str = "127.0.0.1"
    port: int = 0
    push_timeout_s: float = 10.0
    chunk_bytes: int = CHUNK_BYTES
    stream_bytes: int = 2**20
    in_flight: int = 4
    exported_bytes: int = 64 * 2**20
    window_wait_s: float = 0.0
    security: LinkSecurity = field(default_factory=LinkSecurity)

    def __post_init__(self) -> None:
        if min(self.chunk_bytes, self.in_flight, self.exported_bytes) < 1:
            raise ValueError("bytes and chunks in flight must be positive")
        if self.stream_bytes < 0 or self.push_timeout_s <= 0:
            raise ValueError("push_timeout_s must be positive, and stream_bytes not negative")
