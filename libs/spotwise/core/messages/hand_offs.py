"""Orders to push and to receive KV, and their outcomes: between a worker's role, its process and the devices of its group."""

from __future__ import annotations

from enum import StrEnum

from spotwise.core.messages import mesh as m
from spotwise.core.requests.record import KvHandoff, KvSource, KvTarget
from spotwise.core.values import value


class PushMode(StrEnum):
    """When a prompt's KV is sent."""

    SERIAL = "serial"  #: after its prefill
    LAYERWISE = "layerwise"  #: as its layers and blocks are computed


@value
class PushCaughtUp(m.OfAttempt):
    """The push of a sequence that decodes, opened with this number, has sent what was written then."""

    number: int = 0


@value
class HandoffDelivered(m.OfAttempt):
    """The token worker has acknowledged the KV, `transfer_s` after the first bytes read, `visible_s` after the prompt's end."""

    kv_bytes: int
    transfer_s: float
    transport: str
    visible_s: float
    mode: PushMode = PushMode.SERIAL


@value
class HandoffFailed(m.OfAttempt):
    """A push failed or was aborted; its source blocks are not read any more."""

    reason: str


@value
class ExpectKv(m.OfAttempt):
    """Open these blocks to a hand-off."""

    block_ids: tuple[int, ...]


@value
class ForgetKv:
    """Close the blocks of a reservation to its hand-off."""

    choice_id: str


@value
class OpenPush(m.OfAttempt):
    """Open a push; `CommitPush` or `AbortPush` follows.

    Attributes:
        num_tokens: tokens of a prompt that is about to be computed, pushed layer by layer; `None` for a sequence that
            decodes on, of which the blocks that are full now are pushed, answered by `PushCaughtUp`.
        written_tokens: those with KV in the source blocks already.
        number: number, distinct for each of the attempt's pushes that are answered so; 0 for a prompt's.
    """

    target: KvTarget
    source_block_ids: tuple[int, ...]
    num_tokens: int | None
    written_tokens: int
    number: int = 0

    @property
    def source(self) -> KvSource:
        """What is pushed."""
        tokens = (self.num_tokens, self.written_tokens)
        return KvSource(self.choice_id, self.epoch, self.source_block_ids, *tokens, self.number)


@value
class CommitPush:
    """Push the rest of an opened push, and hand the sequence off; `source_block_ids`: of one that decoded meanwhile."""

    handoff: KvHandoff
    source_block_ids: tuple[int, ...] = ()


@value
class AbortPush(m.OfAttempt):
    """Abort a push, opened or on its way; `HandoffFailed` or `HandoffDelivered` still follows."""
