"""Events and commands between a worker's role and its process: events in the past tense, commands in the imperative."""

from __future__ import annotations

from spotwise.core.costs.batching import Batch
from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.requests.record import KvHandoff, KvShare, KvTarget, RequestRecord
from spotwise.core.requests.sampling import SampledToken
from spotwise.core.values import value
from spotwise.core.worker.kv.push_policy import PushCosts


@value
class RecordLoaded:
    """The request's record was read and the engine took it."""

    record: RequestRecord


@value
class RecordUnavailable(m.OfAttempt):
    """The record could not be read (retryable: the next attempt writes it again), or the engine refused it."""

    reason: str
    retryable: bool


@value
class IterationFinished:
    """The engine ran the oldest batch in flight; rows at the end of their known tokens have a token each."""

    sampled: tuple[SampledToken, ...]


@value
class IterationsCounted:
    """An engine without token ids ran iterations of the order in flight; each fully computed sequence has one more token each.

    Reported before any event that comes after these iterations. `steps` ended since the last report; `ended`: the order is
    over, also where it was cut short; else its next iteration runs already.
    """

    steps: int
    ended: bool = True


@value
class IterationFailed:
    """The engine raised in the oldest batch in flight; its sequences are as they were."""

    reason: str


@value
class EngineLost:
    """A process of the engine is gone, and with it KV of every sequence; iterations in flight end without a result. `is_stuck`:
    it computes still, and will not end; a sequence of those iterations may be at fault.
    """

    reason: str
    is_stuck: bool = False


@value
class EngineRestored:
    """The engine is whole (again), and empty; `shares`: the processes that keep its KV, none where the worker is one."""

    shares: tuple[KvShare, ...] = ()


@value
class KvArrived:
    """A hand-off is complete and verified in its reserved blocks."""

    handoff: KvHandoff
    kv_bytes: int
    transfer_s: float
    transport: str


@value
class PushesMeasured:
    """Recent costs of pushes to a worker."""

    worker_id: str
    costs: PushCosts


@value
class Swapped:
    """A `SwapOut` or `SwapIn` is complete."""

    sequence_id: str


@value
class SwapFailed:
    """A swap failed: its source is intact, its destination is not."""

    sequence_id: str
    reason: str


WorkerEvent = (
    m.ReserveKv
    | m.StartPrefill
    | m.SurveyWorker
    | m.MoveRequest
    | m.GiveBackRequest
    | m.KvReserved
    | m.KvRefused
    | m.MoveAcknowledged
    | m.CancelRequest
    | m.AttemptsConfirmed
    | m.RenewLeases
    | m.ChangeHomePool
    | m.ForgetGateway
    | m.Drain
    | RecordLoaded
    | RecordUnavailable
    | IterationFinished
    | IterationsCounted
    | IterationFailed
    | EngineLost
    | EngineRestored
    | KvArrived
    | h.PushCaughtUp
    | h.HandoffDelivered
    | h.HandoffFailed
    | PushesMeasured
    | Swapped
    | SwapFailed
    | m.Tick
)


@value
class LoadRecord(m.OfAttempt):
    """Read the record and give it to the engine."""


@value
class DropSequence:
    """Drop the attempt from the engine."""

    sequence_id: str


@value
class AppendToken:
    """Append a token that another worker sampled to the engine's sequence."""

    sequence_id: str
    token_id: int


@value
class RunIteration:
    """Run a batch after those in flight, for `steps` iterations unless `EndRun` comes (above 1 only with `counted_steps`); each
    advances every row by a token.
    """

    batch: Batch
    steps: int = 1


@value
class EndRun:
    """End the order in flight with the iteration that runs now."""


@value
class PushKv:
    """Push the KV of a computed prompt."""

    handoff: KvHandoff
    target: KvTarget
    source_block_ids: tuple[int, ...]


@value
class TakeHomePool:
    """Report this home pool from now on."""

    pool: m.Pool


@value
class SwapOut:
    """Copy KV from device blocks into as many host blocks, beside the iterations."""

    sequence_id: str
    block_ids: tuple[int, ...]
    host_block_ids: tuple[int, ...]


@value
class SwapIn:
    """Copy KV from host blocks into as many device blocks, beside the iterations."""

    sequence_id: str
    host_block_ids: tuple[int, ...]
    block_ids: tuple[int, ...]


@value
class Leave:
    """Leave the mesh: the worker is drained, or its engine failed (`failure`), so that another process takes its place. With
    `devices_stay` the processes of a group stay as devices; else they end.
    """

    failure: str = ""
    devices_stay: bool = False


WorkerCommand = (
    m.Send
    | m.RecordLedger
    | LoadRecord
    | DropSequence
    | AppendToken
    | RunIteration
    | EndRun
    | h.ExpectKv
    | h.ForgetKv
    | PushKv
    | h.OpenPush
    | h.CommitPush
    | h.AbortPush
    | TakeHomePool
    | SwapOut
    | SwapIn
    | Leave
)
