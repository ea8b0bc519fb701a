"""The clients of a simulated mesh, with the needed part of a gateway. A client sends a request once and waits for all its
tokens; when a worker leaves, the gateway starts another attempt under a new epoch, from the tokens made. An interrupted
prompt (`InterruptedPrompts`) first submits its lost parts as uncounted requests."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from spotwise.core.messages import mesh as m
from spotwise.core.requests.prefixes import prefix_spans
from spotwise.core.requests.record import KvHandoff, RequestRecord
from spotwise.core.requests.request import FinishReason, StopCriteria
from spotwise.core.requests.sampling import SamplingParams
from spotwise.simulator.world.events import EventQueue
from spotwise.simulator.world.network import ControlPlane
from spotwise.simulator.world.observation import NO_BLOCKS, Arrival, CompletedRequest, Observer
from spotwise.simulator.world.settings import WorldSettings
from spotwise.simulator.world.token_times import TOKEN_ID, Progress

_FIRST_EPOCH = 1
_GREEDY = SamplingParams(temperature=0.0)


@dataclass(slots=True)
class LiveRequest:
    """A live request.

    Attributes:
        record: record of its current attempt.
        later_prompts: submitted after this one, the whole prompt last; empty where this is the whole one.
        workers: prompt worker and token worker of its current attempt, once assigned.
    """

    arrival: Arrival
    record: RequestRecord
    progress: Progress
    output_tokens: int
    later_prompts: tuple[int, ...]
    first_token_s: float | None = None
    delivered: int = 0  #: tokens, those included that were only counted
    workers: tuple[str, str] | None = None
    cached_tokens: int = 0

    @property
    def is_answered(self) -> bool:
        """Whether all its tokens are made; the last may be in transit."""
        return self.progress.output_tokens >= self.output_tokens


@lru_cache(maxsize=16_384)
def equal_tokens(tokens: int) -> tuple[int, ...]:
    """Return so many tokens without content. One tuple serves all of a length, because hundreds of thousands may be live at
    once."""
    return (TOKEN_ID,) * tokens


def first_record(
    arrival: Arrival, number: int, gateway_id: str, settings: WorldSettings, prompt_tokens: int, output_tokens: int
) -> RequestRecord:
    """Return the record of a request's first attempt, whose prompt has its content where workers have prefix caches."""
    blocks = (arrival.blocks or NO_BLOCKS) if settings.policy.prefix_caching else None
    return RequestRecord(
        str(number),
        _FIRST_EPOCH,
        gateway_id,
        number,
        settings.model.name,
        equal_tokens(prompt_tokens) if blocks is None else blocks.token_ids(prompt_tokens, number),
        (),
        _GREEDY,
        StopCriteria(max_new_tokens=output_tokens),
        arrival.at_s,
        arrival.priority,
    )


def spans_of(record: RequestRecord, settings: WorldSettings) -> tuple[int, ...]:
    """Name a prompt's prefixes, as a gateway does, where workers may have them."""
    if not (settings.policy.prefix_caching and settings.pools.prefix_spans):
        return ()
    return prefix_spans(record.model, (*record.prompt_token_ids, *record.output_token_ids))


class SimulationError(RuntimeError):
    """A role, or the world around it, broke an invariant of the mesh."""


class Client:
    """All clients of the mesh, behind one gateway.

    Attributes:
        completed, failed: requests so far.
        ended_s: end of the last request.
    """

    def __init__(
        self,
        client_id: str,
        scheduler_id: str,
        queue: EventQueue,
        control: ControlPlane,
        observer: Observer,
        settings: WorldSettings,
    ) -> None:
        self.id = client_id
        self.completed = self.failed = 0
        self.ended_s = 0.0
        self._scheduler_id = scheduler_id
        self._queue = queue
        self._control = control
        self._observer = observer
        self._settings = settings
        self._attempts = 0
        self._live: dict[int, LiveRequest] = {}
        self._choice_of: dict[int, int] = {}  # by the id of each current attempt
        self._superseded: set[int] = set()  # attempts whose tokens may be in transit
        self._left: set[str] = set()  # workers
        self._without_workers: dict[int, None] = {}  # requests rejected because no worker was ready
        self._receivers: dict[type, Any] = {
            m.RequestAssigned: self._assigned,
            m.RequestRejected: self._rejected,
            m.TokenBatch: self._tokens_came,
        }
        # which workers a request has matters where these may leave, or are reported
        ignored: set[type] = {m.RequestAccepted}
        if not (settings.elastic or settings.reports_machines):
            ignored.add(m.RequestAssigned)
        control.open_inbox(client_id, lambda message: self._receivers[type(message)](message), frozenset(ignored))

    @property
    def live(self) -> int:
        """Requests that have not ended."""
        return len(self._live)

    def submit(self, arrival: Arrival) -> int:
        """Submit a request now, and return its number, which is its choice id."""
        interrupted = self._settings.interrupted
        lost_parts = () if interrupted is None else interrupted.lost_parts(arrival.prompt_tokens)
        return self._submit_first(arrival, (*lost_parts, arrival.prompt_tokens))

    def _submit_first(self, arrival: Arrival, prompts: tuple[int, ...]) -> int:
        """Submit the first of these prompts; all but the last have one output token."""
        number, settings = self._next_attempt(), self._settings
        prompt_tokens, later = prompts[0], prompts[1:]
        output_tokens = 1 if later else arrival.output_tokens
        record = first_record(arrival, number, self.id, settings, prompt_tokens, output_tokens)
        self._live[number] = LiveRequest(arrival, record, Progress(prompt_tokens), output_tokens, later)
        self._choice_of[number] = number
        self._send_attempt(self._live[number])
        return number

    def _next_attempt(self) -> int:
        self._attempts += 1
        return self._attempts - 1

    def _send_attempt(self, live: LiveRequest) -> None:
        record, outputs = live.record, len(live.record.output_token_ids)
        stream = m.StreamRef(self.id, record.attempt_id)
        known_tokens = len(record.prompt_token_ids) + outputs
        max_new_tokens = self._settings.requested_tokens(live.output_tokens) - outputs
        spans = spans_of(record, self._settings)
        order = m.SubmitRequest(
            record.choice_id,
            record.epoch,
            stream,
            known_tokens,
            max_new_tokens,
            spans,
            priority=record.priority,
            tenant=record.tenant,
        )
        self._control.send(self._scheduler_id, order)

    def end_attempt(self, number: int, output_tokens: int) -> None:
        """End a request's attempt; the next one starts from so many output tokens."""
        live = self._live[number]
        record = live.record
        self._control.send(self._scheduler_id, m.CloseRequest(record.choice_id, record.epoch, finished=False))
        del self._choice_of[record.attempt_id]
        self._superseded.add(record.attempt_id)
        self._without_workers.pop(number, None)
        attempt = self._next_attempt()
        self._choice_of[attempt] = number
        # a new id: a worker may still compute for the attempt that has ended
        live.progress = Progress(live.progress.prompt_tokens, output_tokens, live.progress.last_token_s)
        live.delivered = output_tokens
        live.workers = None
        live.record = replace(
            record, epoch=record.epoch + 1, attempt_id=attempt, output_token_ids=equal_tokens(output_tokens)
        )
        if output_tokens and live.first_token_s is None:
            live.first_token_s = self._queue.now

    def submit_again(self, number: int) -> None:
        """Let the scheduler place a request's next attempt."""
        self._send_attempt(self._live[number])

    def move_attempt(self, number: int, worker_id: str) -> KvHandoff:
        """Place a request's next attempt on a worker that receives its KV; return the hand-off of all but the last token's
        KV."""
        live = self._live[number]
        outputs = live.progress.output_tokens
        live.record = replace(live.record, output_token_ids=equal_tokens(outputs - 1))
        live.workers = (worker_id, worker_id)
        return KvHandoff(
            live.record.choice_id, live.record.epoch, live.progress.prompt_tokens + outputs - 1, first_token_id=TOKEN_ID
        )

    def reservation(self, number: int, sender_id: str) -> m.ReserveKv:
        """Return the order that reserves blocks for a request's KV and its remaining tokens."""
        live = self._live[number]
        record, outputs = live.record, len(live.record.output_token_ids)
        total = self._settings.requested_tokens(live.output_tokens)
        return m.ReserveKv(
            record.choice_id,
            record.epoch,
            m.StreamRef(self.id, record.attempt_id),
            sender_id,
            assignment=0,
            kv_tokens=live.progress.prompt_tokens + total,
            max_new_tokens=total - outputs,
            lease_s=math.inf,
            priority=record.priority,
            tenant=record.tenant,
        )

    def worker_left(self, worker_id: str) -> list[tuple[int, str]]:
        """Return the unanswered requests with an attempt on a leaving worker, and the token worker of each."""
        self._left.add(worker_id)
        return [
            (number, live.workers[1])
            for number, live in self._live.items()
            if live.workers is not None and worker_id in live.workers and not live.is_answered
        ]

    def is_current(self, choice_id: str, epoch: int) -> bool:
        """Return whether an attempt is its request's last one, with its answer not in transit."""
        live = self._live.get(int(choice_id))
        return live is not None and live.record.epoch == epoch and not live.is_answered

    def retry_rejected(self, _: None = None) -> None:
        """Submit again the requests rejected because no worker was ready."""
        waiting, self._without_workers = self._without_workers, {}
        for number in waiting:
            self._send_attempt(self._live[number])

    def record(self, choice_id: str, epoch: int) -> RequestRecord | None:
        """Return the record of a live attempt."""
        live = self._live.get(int(choice_id))
        return None if live is None or live.record.epoch != epoch else live.record

    def progress(self, choice_id: str) -> Progress:
        """Return a live request's progress."""
        return self._live[int(choice_id)].progress

    def _assigned(self, message: m.RequestAssigned) -> None:
        live = self._live.get(int(message.choice_id))
        if live is not None and live.record.epoch == message.epoch:
            live.workers = (message.prompt_worker, message.token_worker)
            if not live.is_answered and not self._left.isdisjoint(live.workers):
                self._try_again(int(message.choice_id))

    def _try_again(self, number: int) -> None:
        self.end_attempt(number, self._live[number].progress.output_tokens)
        self.submit_again(number)

    def _rejected(self, message: m.RequestRejected) -> None:
        number = int(message.choice_id)
        if message.epoch != self._live[number].record.epoch:
            return
        if self._settings.elastic and message.code is m.RejectCode.NO_WORKERS:
            self._without_workers[number] = None
        else:
            self._fail(number, f"{message.code.value}: {message.message}")

    def _tokens_came(self, batch: m.TokenBatch) -> None:
        for delta in batch.deltas:
            number = self._choice_of.get(delta.attempt_id)
            if number is None:
                if delta.attempt_id in self._superseded:
                    continue
                raise SimulationError(f"a token for attempt {delta.attempt_id}, which has ended")
            live = self._live[number]
            if delta.finish_reason is FinishReason.ERROR:
                if delta.retryable and self._settings.elastic:
                    self._try_again(number)
                else:
                    self._fail(number, delta.error)
                continue
            if delta.cached_tokens and not live.cached_tokens:
                live.cached_tokens = delta.cached_tokens
            # an end after tokens that were only counted has their number; all else is a token by its index
            is_ending = delta.token_id is None and delta.finish_reason is not None
            tokens = delta.token_index if is_ending else delta.token_index + 1
            if live.first_token_s is None:
                live.first_token_s = self._queue.now
                if tokens != 1:
                    raise SimulationError(f"attempt {delta.attempt_id} begins with token {tokens}")
            if tokens <= live.delivered:
                raise SimulationError(f"attempt {delta.attempt_id} got token {tokens} after token {live.delivered}")
            live.delivered = tokens
            if delta.finish_reason is not None:
                self._complete(number, live, live.first_token_s, delta.finish_reason)

    def _complete(self, number: int, live: LiveRequest, first_token_s: float, reason: FinishReason) -> None:
        arrival, progress = live.arrival, live.progress
        if reason is not FinishReason.LENGTH or not live.delivered == progress.output_tokens == live.output_tokens:
            raise SimulationError(
                f"request {number} ended by {reason.value} with {live.delivered} of {live.output_tokens} tokens, "
                f"{progress.output_tokens} of which were made"
            )
        if live.later_prompts:
            self._close(number, finished=True)
            self._submit_first(arrival, live.later_prompts)
            return
        self.completed += 1
        machines = live.workers if self._settings.reports_machines else None
        self._observer.request_completed(
            CompletedRequest(arrival, first_token_s, self._queue.now, live.cached_tokens, machines)
        )
        self._close(number, finished=True)

    def _fail(self, number: int, reason: str) -> None:
        self.failed += 1
        self._observer.request_failed(self._live[number].arrival, reason)
        self._close(number, finished=False)

    def _close(self, number: int, *, finished: bool) -> None:
        record = self._live.pop(number).record
        del self._choice_of[record.attempt_id]
        self.ended_s = self._queue.now
        self._control.send(self._scheduler_id, m.CloseRequest(record.choice_id, record.epoch, finished))
