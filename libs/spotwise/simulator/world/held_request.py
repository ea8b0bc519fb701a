"""A request on a worker that counts in groups."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from spotwise.core.costs.batching import BatchRow
from spotwise.core.messages.worker import StreamRef
from spotwise.core.requests.record import KvTarget, RequestRecord, sequence_id
from spotwise.simulator.world.token_times import Progress


class HeldStage(IntEnum):
    """How far a request is on one worker."""

    RESERVED = 0  #: blocks are reserved for its KV
    WAITING = 1  #: its prompt waits
    COMPUTED = 2  #: its prompt is being computed
    LEAVING = 3  #: its KV is being handed off
    DECODING = 4


@dataclass(slots=True, eq=False)
class HeldRequest:
    """One request on one worker.

    Attributes:
        number: in order of arrival here.
        prompt_tokens: 0 of a reservation whose KV has not arrived.
        new_tokens: at most, as ordered; `kv_tokens`: of a reservation, those of its prompt included.
        target: the reservation that its KV is handed off to; `None` where it decodes here.
        blocks: blocks that it has, or a waiting prompt needs, without those that it grows by in its token phase.
        record, progress: once they are being loaded; `is_loaded`: the worker knows it.
        began_at, known_tokens: the group's clock at a decode's first iteration there, and the tokens that it has then.
        made_before, may_make: tokens that it has made here by then, and may make at most, those included.
        has_joined: its first iteration there has begun.
        was_handed: its prompt was computed elsewhere.
        preemptions: so far.
    """

    choice_id: str
    epoch: int
    stream: StreamRef
    scheduler_id: str
    number: int
    arrived_s: float
    stage: HeldStage
    prompt_tokens: int
    new_tokens: int
    kv_tokens: int
    lease_s: float
    target: KvTarget | None
    blocks: int
    record: RequestRecord | None = None
    progress: Progress | None = None
    is_loaded: bool = False
    started_s: float = 0.0
    began_at: int = 0
    known_tokens: int = 0
    made_before: int = 0
    may_make: int = 0
    has_joined: bool = False
    was_handed: bool = False
    preemptions: int = 0

    @property
    def sequence_id(self) -> str:
        """Id of this attempt."""
        return sequence_id(self.choice_id, self.epoch)

    @property
    def output_tokens(self) -> int:
        """Tokens of its answer; needs the record."""
        assert self.record is not None
        return self.record.stop.max_new_tokens

    def row(self) -> BatchRow:
        """Return its row while its prompt is computed; blocks have no numbers here."""
        return BatchRow(self.sequence_id, 0, self.prompt_tokens, ())
