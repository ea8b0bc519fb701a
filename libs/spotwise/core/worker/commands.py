"""What a worker role asks of its process, and what the process tells it.

Events first (past tense), then commands (imperative). Inter-member messages are in `messages.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.batching import Batch
from spotwise.core.messages import (
    AttemptsConfirmed,
    CancelRequest,
    ChangeHomePool,
    Drain,
    ForgetGateway,
    Pool,
    RecordLedger,
    RenewLeases,
    ReserveKv,
    Send,
    StartPrefill,
    Tick,
)
from spotwise.core.record import KvHandoff, KvTarget, RequestRecord
from spotwise.core.sampling import SampledToken
from spotwise.core.worker.push_policy import PushCosts, PushMode


@dataclass(frozen=True, slots=True)
class RecordLoaded:
    """The request's record was read from the store and the engine took it."""

    record: RequestRecord


@dataclass(frozen=True, slots=True)
class RecordUnavailable:
    """The record could not be had (another attempt, which writes it anew, may succeed), or the engine refused it."""

    choice_id: str
    epoch: int
    reason: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class IterationFinished:
    """The engine ran the oldest batch ordered; rows that reached the end of their known tokens have a token each."""

    sampled: tuple[SampledToken, ...]


@dataclass(frozen=True, slots=True)
class IterationsCounted:
    """The engine ran iterations of the oldest batch ordered, and its tokens carry no ids: each sequence whose known tokens were
    all computed has one more after each of them.

    Attributes:
        steps: iterations that ended and were not counted yet.
        ended: the order is over, run to its end or cut short at this boundary; else its next iteration runs already. An engine
            that runs several counts those that have ended before it tells its role of anything else.
    """

    steps: int
    ended: bool = True


@dataclass(frozen=True, slots=True)
class IterationFailed:
    """The engine raised in the oldest batch ordered; nothing of it counts, and its sequences are as they were."""

    reason: str


@dataclass(frozen=True, slots=True)
class KvArrived:
    """A hand-off is complete and verified in the blocks reserved for it."""

    handoff: KvHandoff
    kv_bytes: int
    transfer_s: float
    transport: str


@dataclass(frozen=True, slots=True)
class HandoffDelivered:
    """The token worker has the KV and said so.

    Attributes:
        transfer_s: from the first bytes read to its answer.
        visible_s: from the end of the prompt phase to its answer.
        mode: whether the KV left after the prompt's computation or during it.
    """

    choice_id: str
    epoch: int
    kv_bytes: int
    transfer_s: float
    transport: str
    visible_s: float
    mode: PushMode = PushMode.SERIAL


@dataclass(frozen=True, slots=True)
class HandoffFailed:
    """The token worker has none of the KV, whether the push failed or was called off; its blocks are read no more."""

    choice_id: str
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class PushesMeasured:
    """What pushes to a worker cost lately."""

    worker_id: str
    costs: PushCosts


@dataclass(frozen=True, slots=True)
class Swapped:
    """A sequence's KV is where `SwapOut` or `SwapIn` sent it."""

    sequence_id: str


@dataclass(frozen=True, slots=True)
class SwapFailed:
    """A move was broken off: what it read is whole, what it wrote is not."""

    sequence_id: str
    reason: str


WorkerEvent = (
    ReserveKv
    | StartPrefill
    | CancelRequest
    | AttemptsConfirmed
    | RenewLeases
    | ChangeHomePool
    | ForgetGateway
    | Drain
    | RecordLoaded
    | RecordUnavailable
    | IterationFinished
    | IterationsCounted
    | IterationFailed
    | KvArrived
    | HandoffDelivered
    | HandoffFailed
    | PushesMeasured
    | Swapped
    | SwapFailed
    | Tick
)


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """Read the record and give it to the engine."""

    choice_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class DropSequence:
    """Let the engine forget the attempt."""

    sequence_id: str


@dataclass(frozen=True, slots=True)
class AppendToken:
    """Tell the engine a token that another worker sampled."""

    sequence_id: str
    token_id: int


@dataclass(frozen=True, slots=True)
class RunIteration:
    """Run the batch; batches end in the order in which they were ordered.

    Attributes:
        batch: the rows of the first iteration.
        steps: iterations to run, unless `EndRun` comes: in each further one every row is a token further on. More than 1 only
            for decodes, and where the policy's `counted_steps` allows it: for engines whose tokens carry no ids.
    """

    batch: Batch
    steps: int = 1


@dataclass(frozen=True, slots=True)
class EndRun:
    """End the order in flight with the iteration that runs now: what comes next is to be decided anew."""


@dataclass(frozen=True, slots=True)
class ExpectKv:
    """Let the transfer plane write into these blocks."""

    choice_id: str
    epoch: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ForgetKv:
    """Let it write there no more."""

    choice_id: str


@dataclass(frozen=True, slots=True)
class PushKv:
    """Deliver the KV of a prompt that is computed."""

    handoff: KvHandoff
    target: KvTarget
    source_block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TakeHomePool:
    """Say from now on that the worker belongs to this pool."""

    pool: Pool


@dataclass(frozen=True, slots=True)
class OpenPush:
    """Begin to deliver the KV of a prompt that is about to be computed, as it comes; `CommitPush` or `AbortPush` follows.

    Attributes:
        num_tokens: of the prompt.
        written_tokens: whose KV is there already.
    """

    choice_id: str
    epoch: int
    target: KvTarget
    source_block_ids: tuple[int, ...]
    num_tokens: int
    written_tokens: int


@dataclass(frozen=True, slots=True)
class CommitPush:
    """Deliver what is left of a push that was opened, and hand the request over: its prompt is computed."""

    handoff: KvHandoff


@dataclass(frozen=True, slots=True)
class AbortPush:
    """Call a push off, whether opened or on its way; its end is told as of any other."""

    choice_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class SwapOut:
    """Copy KV from blocks of the device into as many of the host's memory, beside the iterations."""

    sequence_id: str
    block_ids: tuple[int, ...]
    host_block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SwapIn:
    """Copy KV from blocks of the host's memory into as many of the device."""

    sequence_id: str
    host_block_ids: tuple[int, ...]
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Leave:
    """Nothing is left to do and the worker is wanted elsewhere, or nowhere: end the process.

    Attributes:
        failure: why it cannot go on, where it was not sent away: another process is to take its place.
    """

    failure: str = ""


WorkerCommand = (
    Send
    | RecordLedger
    | LoadRecord
    | DropSequence
    | AppendToken
    | RunIteration
    | EndRun
    | ExpectKv
    | ForgetKv
    | PushKv
    | OpenPush
    | CommitPush
    | AbortPush
    | TakeHomePool
    | SwapOut
    | SwapIn
    | Leave
)
