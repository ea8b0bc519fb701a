"""The doors of the mesh: what a service may ask of the world.

Each port is a Protocol with a real adapter (`nats_bus`, `redis_store`, `ucx_transfer`) and, for unit tests only, an in-memory
twin (`memory`). Nothing here opens a connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from spotwise.core.messages import LedgerEntry, Member
from spotwise.core.record import KvHandoff, KvTarget, RequestRecord


class MeshError(Exception):
    """The world outside the process did not do what was asked."""


class NoResponderError(MeshError):
    """Nobody listens on the subject of a request."""


class ReplyTimeoutError(MeshError):
    """A listener exists and did not answer in time."""


class PayloadTooLargeError(MeshError):
    """A message exceeds what the broker carries."""


class KvTransferError(MeshError):
    """A hand-off's KV did not reach its reserved blocks; the receiver holds none of it."""


@dataclass(frozen=True, slots=True)
class BusMessage:
    """One message as received.

    Attributes:
        subject: where it was published.
        payload: its bytes.
        respond: sends the answer, where the sender waits for one.
    """

    subject: str
    payload: bytes
    respond: Callable[[bytes], Awaitable[None]] | None = None


class Subscription(Protocol):
    """A running subscription."""

    async def unsubscribe(self) -> None:
        """Stop receiving; idempotent."""


class MessageBus(Protocol):
    """Small control messages (NATS)."""

    @property
    def max_payload_bytes(self) -> int:
        """Largest message that the broker carries."""

    async def publish(self, subject: str, payload: bytes) -> None:
        """Send without waiting for anyone.

        Raises:
            PayloadTooLargeError: the broker would refuse it.
        """

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        """Send and wait for one answer.

        Raises:
            NoResponderError: nobody listens.
            ReplyTimeoutError: nobody answered within `timeout_s`.
            PayloadTooLargeError: the broker would refuse it.
        """

    async def subscribe(
        self, subject: str, handler: Callable[[BusMessage], Awaitable[None]], queue: str = ""
    ) -> Subscription:
        """Call `handler` for each message, one at a time, in order; members of one `queue` share the messages."""

    def when_reconnected(self, act: Callable[[], None]) -> None:
        """Call `act` each time a lost connection is back: messages of the meantime may be missing."""

    async def close(self) -> None:
        """Send what is pending and disconnect; idempotent."""


class MeshStore(Protocol):
    """Request records, ledgers and registrations (Redis). Every method raises `MeshError` where it does not answer."""

    async def put_record(self, record: RequestRecord) -> None:
        """Write a request's record; a newer attempt replaces an older one."""

    async def get_record(self, choice_id: str) -> RequestRecord | None:
        """Return the record, or `None` where there is none (any more)."""

    async def delete_record(self, choice_id: str) -> None:
        """Remove a record; idempotent."""

    async def append_ledger(self, *entries: LedgerEntry) -> None:
        """Append to the ledgers of the requests that the entries are about."""

    async def get_ledger(self, choice_id: str) -> list[LedgerEntry]:
        """Return an API request's ledger in order of time; empty where nothing is known of it."""

    async def register(self, member: Member, ttl_s: float) -> None:
        """Write a registration that ends by itself after `ttl_s`."""

    async def next_incarnation(self, member_id: str, at_least: int) -> int:
        """Return a number above those of all members that had this id lately, and not below `at_least`."""

    async def unregister(self, member_id: str) -> None:
        """Remove a registration; idempotent."""

    async def members(self) -> list[Member]:
        """Return the registered members in order of id, without their loads."""

    async def close(self) -> None:
        """Disconnect; idempotent."""


def layouts_differ(worker_id: str, peer_id: str) -> KvTransferError:
    """Return the error of a hand-off between workers to which the same bytes mean different keys and values."""
    return KvTransferError(
        f"{worker_id} and {peer_id} keep KV in different layouts; give both the same model, --dtype, KV block size and kind "
        "of --device"
    )


def models_differ(worker_id: str, digest: str | None, peer_id: str, peer_digest: str | None) -> KvTransferError:
    """Return the error of a hand-off between workers that compute with different weights."""
    return KvTransferError(
        f"{peer_id} computes with other weights ({peer_digest or 'none'}) than {worker_id} ({digest or 'none'}); give both "
        "the same model folder"
    )


class KvMemory(Protocol):
    """Paged KV as the transfer sees it: bytes by layer and block. Implemented by the engine.

    Arrays of bytes are numpy's, or whatever the `PayloadMemory` beside it makes.
    """

    @property
    def num_layers(self) -> int:
        """Layers that hold KV."""

    @property
    def layer_block_bytes(self) -> int:
        """Bytes of one block in one layer, K and V together."""

    @property
    def layout(self) -> str:
        """What the bytes of a block mean; only memories that say the same may exchange blocks."""

    def export_layers(self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], into: Any = None) -> Any:
        """Copy blocks out: a flat contiguous array of `num_layers * len(block_ids) * layer_block_bytes` bytes.

        Args:
            first_layer: of those copied.
            num_layers: how many.
            block_ids: of each layer.
            into: memory for a payload of that size, which may be used and returned.
        """

    def import_layers(self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], data: Any) -> None:
        """Copy blocks in: the inverse of `export_layers`.

        Raises:
            ValueError: `data` has not the size that the arguments say.
        """


class PayloadMemory(Protocol):
    """Where the transfer keeps the bytes of blocks, and how it checks them: on the host, or on a device.

    A payload is what `KvMemory` exports and imports: an array that UCX can read, with `nbytes`; a slice of it is one, too.
    """

    def allocate(self, size: int) -> Any:
        """Return memory for a payload of `size` bytes, of any content. Called on the loop: it does not wait."""

    def checksum(self, payload: Any) -> int:
        """Return 64 bits that tell a damaged payload from a sound one. Called on copy threads."""


@dataclass(frozen=True, slots=True)
class TransferReport:
    """What a finished push was like.

    Attributes:
        kv_bytes: payload moved, each cell counted once.
        seconds: from the first export to the receiver's acknowledgement.
        transport: what UCX really used, e.g. `tcp/lo`, `shm/memory`, `rc_mlx5/mlx5_0:1`.
        visible_s: from the commit to the acknowledgement, connecting included; at the receiver, which cannot know that, `None`.
    """

    kv_bytes: int
    seconds: float
    transport: str
    visible_s: float | None = None


class KvPush(Protocol):
    """A hand-off that leaves as its KV is written. Nothing is read that was not said to be written."""

    def wrote(self, layers: int, blocks: int) -> None:
        """Note that in the first `layers` layers the first `blocks` blocks hold all they will hold; more may be said already.

        No effect once the push is over.

        Raises:
            ValueError: there are fewer layers or blocks.
        """

    def commit(self, handoff: KvHandoff) -> None:
        """Let the hand-off follow its KV, all of which is written.

        Raises:
            ValueError: something is not.
        """

    def abort(self) -> None:
        """Call it off: `delivered` raises, unless the hand-off is complete already; idempotent."""

    async def delivered(self) -> TransferReport:
        """Return after the receiver verified every checksum and accepted; to be awaited by one.

        The source blocks may be given to others as soon as this returns or raises, and not before.

        Raises:
            KvTransferError: unreachable, refused, corrupt, timed out or called off, be it before the commit.
        """


class KvTransport(Protocol):
    """KV blocks from worker to worker (UCX). Each worker runs one: it listens, and it pushes."""

    @property
    def address(self) -> str:
        """Where peers reach this listener, `host:port`."""

    async def start(self) -> None:
        """Listen."""

    def expect(self, choice_id: str, epoch: int, block_ids: tuple[int, ...]) -> None:
        """Accept that attempt's KV, into these blocks; replaces an earlier attempt's window."""

    def forget(self, choice_id: str) -> None:
        """Refuse what still comes for the request; after this call its blocks are not written any more. Idempotent."""

    def open_push(self, target: KvTarget, choice_id: str, epoch: int, source_block_ids: tuple[int, ...]) -> KvPush:
        """Begin to copy blocks into the target's reserved blocks, as they are said to be written.

        Args:
            target: the reservation; its first `len(source_block_ids)` blocks are written.
            choice_id: the sequence.
            epoch: its attempt.
            source_block_ids: the blocks that will hold the prompt, in position order.

        Raises:
            ValueError: no blocks, or more than the target reserved.
        """

    async def push(self, target: KvTarget, handoff: KvHandoff, source_block_ids: tuple[int, ...]) -> TransferReport:
        """Copy the KV of `handoff.num_tokens` tokens into the target's reserved blocks and tell it the hand-off.

        All of it is written: a push that is opened, said to be written and committed at once.

        Returns after the receiver verified every checksum and accepted.

        Raises:
            KvTransferError: unreachable, refused (stale epoch or incarnation, reservation gone), corrupt, or timed out.
        """

    async def close(self) -> None:
        """Stop listening, drop endpoints; idempotent."""


#: Called on the event loop once a hand-off is complete in the reserved blocks.
HandoffHandler = Callable[[KvHandoff, TransferReport], Any]
