"""The ports of the mesh: message bus, store and KV transport. Each is a Protocol with a real adapter (`nats_bus`,
`redis_store`, `ucx_transfer`) and, for unit tests only, an in-memory one (`memory`, `memory_kv`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from spotwise.mesh.ports.requests import KeptRequestStore, ResponseStore

if TYPE_CHECKING:  # `spotwise status` needs few of the core's types, whose classes take long to make
    from spotwise.core.access.store_budget import Kind, RoomUse
    from spotwise.core.fleet.keeper.kept import KeptFleet
    from spotwise.core.messages.members import Member
    from spotwise.core.messages.mesh import LedgerEntry
    from spotwise.core.planner.plan import Plan
    from spotwise.core.requests.kv_part import KvPart
    from spotwise.core.requests.record import KvHandoff, KvShare, KvSource, KvTarget, RequestRecord
    from spotwise.mesh.ports.keys import KeyStore


class MeshError(Exception):
    """An external system, or the network, failed."""


class NoResponderError(MeshError):
    """A request's subject has no subscriber."""


class ReplyTimeoutError(MeshError):
    """A subscriber exists and did not answer in time."""


class PayloadTooLargeError(MeshError):
    """A message exceeds what the broker carries."""


class NoRoomError(MeshError):
    """The store answers, and has no room for what a request needs."""


class KvTransferError(MeshError):
    """A hand-off's KV did not reach its reserved blocks; the receiver holds none of it."""


@dataclass(frozen=True, slots=True)
class BusMessage:
    """One message as received; `respond` sends the answer, where the sender waits for one."""

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
        """Send without waiting for receivers; raises `PayloadTooLargeError` where the broker would refuse it."""

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        """Send and wait for one answer; raises `NoResponderError` where the subject has no subscriber, `ReplyTimeoutError`
        where no answer came within `timeout_s`, `PayloadTooLargeError` where the broker would refuse it.
        """

    async def subscribe(
        self, subject: str, handler: Callable[[BusMessage], Awaitable[None]], queue: str = ""
    ) -> Subscription:
        """Call `handler` for each message, one at a time, in order; members of one `queue` share the messages."""

    def when_reconnected(self, act: Callable[[], None]) -> None:
        """Call `act` after each reconnect: messages sent in between may be lost."""

    async def close(self) -> None:
        """Send what is pending and disconnect; idempotent."""


class MeshStore(KeptRequestStore, Protocol):
    """Request records, ledgers, registrations and kept requests (Redis). Every method raises `MeshError` where it does not
    answer.
    """

    @property
    def keys(self) -> KeyStore:
        """The API keys."""

    @property
    def responses(self) -> ResponseStore:
        """The stored responses."""

    async def put_record(self, record: RequestRecord) -> None:
        """Write a request's record; a newer attempt replaces an older one. Raises `NoRoomError` where a first one has none."""

    async def get_record(self, choice_id: str) -> RequestRecord | None:
        """Return the record, or `None` where there is none (any more)."""

    async def delete_record(self, choice_id: str) -> None:
        """Remove a record; idempotent."""

    async def append_ledger(self, *entries: LedgerEntry) -> None:
        """Append each entry to its request's ledger; the oldest ledgers make room, and what has none is dropped."""

    async def get_ledger(self, choice_id: str) -> list[LedgerEntry]:
        """Return a request's ledger in order of time; empty where there is none."""

    async def room_use(self) -> Mapping[Kind, RoomUse]:
        """Return how full the room of each kind is."""

    async def register(self, member: Member, ttl_s: float) -> None:
        """Write a registration that expires after `ttl_s`."""

    async def next_incarnation(self, member_id: str, at_least: int) -> int:
        """Return a number above those of all members that had this id lately, and not below `at_least`."""

    async def unregister(self, member_id: str) -> None:
        """Remove a registration; idempotent."""

    async def members(self) -> list[Member]:
        """Return the registered members in order of id, without their loads."""

    async def registered(self, member_ids: Sequence[str]) -> list[Member]:
        """Return those of some members that are registered, in the order of their ids here, without their loads."""

    async def hold_term(self, service: str, holder: str, at_least: int, lease_s: float) -> int | None:
        """Take or extend a service's lease for `lease_s`; return its term, a higher one for each new holder and not below
        `at_least` then, or `None` where another has it. A `holder` is `id/incarnation`; a later incarnation of an id takes
        the lease from the earlier one. A lease that ended and that no other took goes on in its term.
        """

    async def end_term(self, service: str, holder: str) -> None:
        """Give that holder's lease back, and end its term; idempotent, also where another has it."""

    async def claim_numerics(self, model: str, numerics: str, ttl_s: float) -> str:
        """Claim a number format and order of summation for a model's workers for `ttl_s`, where no other is claimed; return
        what is claimed. The claim is renewed where it is the same.
        """

    async def put_plan(self, holder: str, plan: Plan) -> bool:
        """Write a planner's plan; return whether its holder has the lease, and the plan was written."""

    async def get_plan(self) -> Plan | None:
        """Return the last plan, or `None` where there is none."""

    async def put_fleet(self, mesh: str, kept: KeptFleet) -> bool:
        """Write the record of a mesh's fleet; return whether it was written: that of a newer keeper is not replaced."""

    async def get_fleet(self, mesh: str) -> KeptFleet | None:
        """Return the record of a mesh's fleet, or `None` where there is none."""

    async def close(self) -> None:
        """Disconnect; idempotent."""


def layouts_differ(worker_id: str, peer_id: str) -> KvTransferError:
    """Return the error of a hand-off between workers of different KV layouts."""
    return KvTransferError(
        f"{worker_id} and {peer_id} keep KV in different layouts; give both the same model, --dtype, KV block size and kind "
        "of --device"
    )


def models_differ(worker_id: str, digest: str | None, peer_id: str, peer_digest: str | None) -> KvTransferError:
    """Return the error of a hand-off between workers of different weights."""
    return KvTransferError(
        f"{peer_id} computes with other weights ({peer_digest or 'none'}) than {worker_id} ({digest or 'none'}); give both "
        "the same model folder"
    )


def classes_differ(worker_id: str, numerics_class: str, peer_id: str, peer_class: str) -> KvTransferError:
    """Return the error of a hand-off between workers of different numerics classes, where crossings are refused."""
    return KvTransferError(
        f"{peer_id} computes in the numerics class {peer_class}, {worker_id} in {numerics_class}, and "
        "SPOTWISE_CROSSING=refuse lets no KV cross; give both the same --dtype and kernel order, or count crossings"
    )


class KvSection(Protocol):
    """Paged KV of some layers and heads as bytes by layer and block, in numpy arrays or the arrays of its `PayloadMemory`."""

    @property
    def num_layers(self) -> int:
        """Layers that hold KV; they are counted from 0."""

    @property
    def layer_block_bytes(self) -> int:
        """Bytes of one block in one layer, K and V together."""

    def export_layers(self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], into: Any = None) -> Any:
        """Copy blocks out: a flat contiguous array of `num_layers * len(block_ids) * layer_block_bytes` bytes; `into`, memory
        of that size, may be used and returned.
        """

    def import_layers(self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], data: Any) -> None:
        """Copy blocks in: the inverse of `export_layers`; raises `ValueError` where the size of `data` differs."""


class KvMemory(KvSection, Protocol):
    """All KV that a process keeps; the engine implements it."""

    @property
    def part(self) -> KvPart:
        """Which of the model's layers and heads these are."""

    @property
    def layout(self) -> str:
        """What the bytes of a block mean in the whole model; only memories of one layout may exchange blocks."""

    def section(self, part: KvPart) -> KvSection:
        """Return some of its layers and heads; raises `ValueError` where it does not keep them all."""


class PayloadMemory(Protocol):
    """Allocates and checksums the payloads of a transfer, on the host or on a device. A payload is what `KvMemory` exports and
    imports: an array that UCX can read, with `nbytes`; so is a slice of it.

    Attributes:
        on_host: payloads are numpy arrays, which can be encrypted.
    """

    @property
    def on_host(self) -> bool:
        """See above."""

    def allocate(self, size: int) -> Any:
        """Return uninitialized memory for a payload of `size` bytes. Called on the loop: it does not wait."""

    def checksum(self, payload: Any) -> int:
        """Return a checksum of 64 bits. Called on copy threads."""


@dataclass(frozen=True, slots=True)
class TransferReport:
    """Figures of a finished push.

    Attributes:
        kv_bytes: payload moved, each cell counted once.
        seconds: from the first export to the receiver's ACK.
        transport: the lanes that UCX used, e.g. `tcp/lo`, `shm/memory`, `rc_mlx5/mlx5_0:1`.
        visible_s: from the commit to the ACK, connecting included; `None` at the receiver.
    """

    kv_bytes: int
    seconds: float
    transport: str
    visible_s: float | None = None


class KvPush(Protocol):
    """A hand-off whose KV is sent as it is written; only blocks reported by `wrote` are read."""

    def wrote(self, layers: int, blocks: int) -> None:
        """Note that in the first `layers` layers of this process's memory the first `blocks` blocks are complete; no effect
        once the push is over. Raises `ValueError` where there are fewer layers or blocks.
        """

    def commit(self, handoff: KvHandoff, source_block_ids: tuple[int, ...] = ()) -> None:
        """Send the hand-off after its KV. Given `source_block_ids`, the push has grown to these since it was opened, and all of
        them are written. Raises `ValueError` where the KV is not all written, or the blocks are not those of before and more.
        """

    async def caught_up(self) -> None:
        """Return once all that is written has been sent, or the push is over."""

    def abort(self) -> None:
        """Cancel the push: `delivered` raises, unless the hand-off is complete already; idempotent."""

    async def delivered(self) -> TransferReport:
        """Return after the receiver verified every checksum and accepted; only one task may await it, and the source blocks may
        not be reused before. Raises `KvTransferError`: unreachable, refused, corrupt, timed out or cancelled, also before
        the commit.
        """


class KvTransport(Protocol):
    """KV blocks from worker to worker (UCX). Each worker runs one: it listens, and it pushes."""

    @property
    def address(self) -> str:
        """Where peers reach this listener, `host:port`."""

    @property
    def shares(self) -> tuple[KvShare, ...]:
        """The processes of this worker that keep a part of its KV; none where it keeps all itself."""

    @property
    def refused_connections(self) -> int:
        """Connections that its listener has refused so far."""

    async def start(self) -> None:
        """Listen."""

    def expect(self, choice_id: str, epoch: int, block_ids: tuple[int, ...]) -> None:
        """Accept this attempt's KV into these blocks; replaces an earlier attempt's window."""

    def forget(self, choice_id: str) -> None:
        """Refuse further KV for the choice; after this call its blocks are not written any more. Idempotent."""

    def open_push(self, target: KvTarget, source: KvSource) -> KvPush:
        """Begin to copy blocks into the target's reserved blocks as they are written; raises `ValueError` for no blocks, or
        more than the target reserved. The source's blocks fill the reservation's first ones.
        """

    async def push(self, target: KvTarget, handoff: KvHandoff, source_block_ids: tuple[int, ...]) -> TransferReport:
        """Push KV that is all written, with its hand-off; return after the receiver verified every checksum and accepted.
        Raises `KvTransferError`: unreachable, refused (stale epoch or incarnation, reservation gone), corrupt, or timed out.
        """

    async def close(self) -> None:
        """Stop listening and close the endpoints; idempotent."""


#: Called on the event loop once a hand-off is complete in the reserved blocks.
HandoffHandler: TypeAlias = "Callable[[KvHandoff, TransferReport], Any]"
