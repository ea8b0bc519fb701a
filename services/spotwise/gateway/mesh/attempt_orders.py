"""Sends a gateway's orders for an attempt: its record to the store, its order to the schedulers, and the end of both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import structlog

from spotwise.core.gateway import commands as g
from spotwise.core.gateway.recovery import RecoveryLimits
from spotwise.core.messages.mesh import CloseRequest, Message, RequestAccepted, RequestRejected, SubmitRequest
from spotwise.core.messages.worker import StreamRef
from spotwise.core.requests.prefixes import prefix_spans
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.request import StopCriteria
from spotwise.gateway.generate.generation import SequenceSpec
from spotwise.gateway.generate.token_stream import TokenStream
from spotwise.gateway.resume.store_turns import StoreTurns
from spotwise.gateway.resume.token_saver import TokenSaver
from spotwise.mesh.ports.ports import MeshError, NoRoomError
from spotwise.mesh.service.host import ServiceHost
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode
from spotwise.wire.message_codec import MalformedMessageError

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SubmissionTerms:
    """How a gateway submits sequences.

    Attributes:
        model: the name that it serves.
        recovery: limits of recovery from lost workers and messages.
        store_timeout_s, submit_timeout_s: how long it waits for the store, and for a scheduler.
        max_unread_tokens: tokens that it holds at most for a client which does not read.
    """

    model: str
    recovery: RecoveryLimits
    store_timeout_s: float
    submit_timeout_s: float
    max_unread_tokens: int


class AttemptOrders:
    """Submits attempts, and ends them.

    Args:
        host: store and bus.
        terms: names and patience.
        is_open: tells whether an attempt, by choice id and epoch, is the current one of an open request.
        most_kv_tokens: tokens that the largest KV cache in the mesh holds now, of a numerics class where that has a worker; 0
            where no worker is ready.
        saver: saves the tokens of kept requests.
        feed: gives the role an answer, or a failure.
    """

    def __init__(
        self,
        host: ServiceHost,
        terms: SubmissionTerms,
        is_open: Callable[[str, int], bool],
        most_kv_tokens: Callable[[str], int],
        saver: TokenSaver,
        feed: Callable[[Message | g.SubmitFailed | g.RequestTaken], None],
    ) -> None:
        self._host = host
        self._terms = terms
        self._is_open = is_open
        self._most_kv_tokens = most_kv_tokens
        self._saver = saver
        self._feed = feed
        self._turns = StoreTurns(terms.store_timeout_s)

    def submit(self, stream: TokenStream, command: g.SubmitAttempt) -> None:
        """Record an attempt, and submit it."""
        stream.attempts += 1
        work = asyncio.create_task(self._submit(stream, command))
        stream.submitting(work)
        self._host.spawn(work, "submit")

    def end(self, stream: TokenStream, order: CloseRequest) -> None:
        """Let schedulers and workers end a request's attempts; its record stays."""
        if stream.submitted_epoch:
            # An attempt that was not submitted has a number that another gateway's may have.
            self._host.post(subjects.REQUESTS, replace(order, epoch=stream.submitted_epoch))

    def close(self, stream: TokenStream, order: CloseRequest) -> None:
        """End a request's attempts, and delete its record."""
        self.end(stream, order)
        self.delete_record(stream)

    def delete_record(self, stream: TokenStream) -> None:
        """Delete a request's record, or write none."""
        if not stream.has_record and stream.submission is not None:
            stream.submission.cancel()
        elif stream.has_record:
            self._host.spawn(self._delete_record(stream), "delete_record")

    async def _submit(self, stream: TokenStream, command: g.SubmitAttempt) -> None:
        attempt = (command.choice_id, command.epoch)
        failed = partial(self._submit_failed, command)
        stop = self._stop(stream.spec, command)
        try:
            async with self._turns.turn(), stream.record_turn:
                if not self._is_open(*attempt):
                    return
                stream.has_record = True
                is_ours = await self._put_record(stream, command, stop)
        except NoRoomError as error:
            failed(
                "the requests that run leave no room in the store for this one; send it again shortly",
                error,
                store_unavailable=True,
            )
            return
        except (MeshError, TimeoutError) as error:
            failed("the request store does not take the request; send it again shortly", error, store_unavailable=True)
            return
        except ValueError as error:  # a bug, which is to end this request and not the gateway
            failed("the request cannot be recorded", error)
            return
        if not is_ours and self._is_open(*attempt):
            self._feed(g.RequestTaken(command.choice_id))
        if not self._is_open(*attempt):
            return  # closed while the store was slow: the record's deletion follows, and no scheduler has to know
        stream.submitted_epoch = command.epoch
        try:
            reply = await self._host.bus.request(
                subjects.REQUESTS, encode(self._order(stream, command, stop)), self._terms.submit_timeout_s
            )
            answer = decode(reply)
            if not isinstance(answer, RequestAccepted | RequestRejected):
                raise MalformedMessageError(f"a {type(answer).__name__} is no verdict")
        except (MeshError, ValueError) as error:
            failed("no cluster scheduler takes the request; send it again shortly", error)
            return
        self._feed(answer)

    def _stop(self, spec: SequenceSpec, command: g.SubmitAttempt) -> StopCriteria:
        """Return when an attempt ends: one without a bound of its client's at what the largest worker holds now. The next one
        may have more or less; one with a bound, or that no worker holds as it is, is left to the scheduler. While none is ready
        it stays as it is: a scheduler rejects it once workers are, and the next attempt is sized by them.
        """
        committed = len(command.output_token_ids)
        free_tokens = self._most_kv_tokens(_class_of(command)) - len(spec.prompt_token_ids) - committed
        if not spec.unbounded or free_tokens < 1 or spec.stop.max_new_tokens - committed <= free_tokens:
            return spec.stop
        return replace(spec.stop, max_new_tokens=committed + free_tokens)

    async def _put_record(self, stream: TokenStream, command: g.SubmitAttempt, stop: StopCriteria) -> bool:
        record = self._record(stream, command, stop)
        if stream.spec.owner:
            return await self._host.store.put_owned_record(record, stream.spec.owner)
        await self._host.store.put_record(record)
        return True

    def _submit_failed(
        self, command: g.SubmitAttempt, reason: str, error: Exception, *, store_unavailable: bool = False
    ) -> None:
        """Feed the failure to the role; the client never sees the error's servers and subjects."""
        _log.warning("submit_failed", choice_id=command.choice_id, reason=str(error) or type(error).__name__)
        self._feed(g.SubmitFailed(command.choice_id, command.epoch, reason, store_unavailable))

    def _record(self, stream: TokenStream, command: g.SubmitAttempt, stop: StopCriteria) -> RequestRecord:
        return RequestRecord(
            choice_id=stream.choice_id,
            epoch=command.epoch,
            gateway_id=self._host.id,
            attempt_id=command.attempt_id,
            model=self._terms.model,
            prompt_token_ids=stream.spec.prompt_token_ids,
            output_token_ids=command.output_token_ids,
            sampling=stream.spec.sampling,
            stop=stop,
            arrival_unix_s=stream.received_s,
            priority=stream.spec.priority,
            tenant=stream.spec.tenant,
            model_digest=command.model_digest,
            prefix_salt=stream.spec.prefix_salt,
            deadline_unix_s=stream.spec.deadline_unix_s,
            adapter=stream.spec.adapter,
            numerics_classes=command.numerics_classes,
        )

    def _order(self, stream: TokenStream, command: g.SubmitAttempt, stop: StopCriteria) -> SubmitRequest:
        committed = len(command.output_token_ids)
        may_reuse = not stream.spec.sampling.reads_whole_prompt
        known = (*stream.spec.prompt_token_ids, *command.output_token_ids)
        return SubmitRequest(
            choice_id=stream.choice_id,
            epoch=command.epoch,
            stream=StreamRef(self._host.id, command.attempt_id, self._host.member.incarnation),
            prompt_tokens=len(stream.spec.prompt_token_ids) + committed,
            max_new_tokens=stop.max_new_tokens - committed,
            prefix_spans=(prefix_spans(self._terms.model, known, stream.spec.prefix_salt) if may_reuse else ()),
            priority=stream.spec.priority,
            avoid=command.avoid,
            deadline_unix_s=stream.spec.deadline_unix_s,
            recovering=command.recovering,
            open_bound=stream.spec.unbounded,
            tenant=stream.spec.tenant,
            numerics_class=_class_of(command),
        )

    async def _delete_record(self, stream: TokenStream) -> None:
        owner = stream.spec.owner
        try:
            async with stream.record_turn:
                if owner:  # until its end is saved, the record tells another gateway the attempt to go on from
                    await self._saver.save(stream.choice_id)
                    await self._host.store.delete_owned_record(stream.choice_id, owner)
                else:
                    await self._host.store.delete_record(stream.choice_id)
        except MeshError:
            return  # it expires


def _class_of(command: g.SubmitAttempt) -> str:
    """Return the class of an attempt's latest token; empty without tokens."""
    return command.numerics_classes[-1] if command.numerics_classes else ""
