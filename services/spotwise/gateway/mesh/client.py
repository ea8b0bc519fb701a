"""The mesh behind the HTTP layer: implements `Generation` over store, bus and the gateway role."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from dataclasses import replace
from typing import get_args

import structlog

from spotwise.core.gateway import commands as g
from spotwise.core.gateway.kept_request import KeptAttempt
from spotwise.core.gateway.load_meter import LOAD_REPORT_S
from spotwise.core.gateway.role import GatewayRole
from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.core.messages.mesh import (
    CloseRequest,
    LedgerEntry,
    RecordLedger,
    RejectCode,
    Send,
    Tick,
)
from spotwise.core.requests.sampling import ENGINE_FAILS
from spotwise.gateway.generate.generation import (
    EarlierTokens,
    GeneratedTokens,
    MeshHealth,
    SequenceSpec,
    TextEndedError,
)
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.generate.token_stream import TokenStream, generated, saved
from spotwise.gateway.mesh.attempt_orders import AttemptOrders, SubmissionTerms
from spotwise.gateway.resume.token_saver import SAVE_EVERY_S, TokenSaver
from spotwise.http.errors import GenerationError
from spotwise.mesh.ports.ports import BusMessage
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.role_loop import RoleLoop
from spotwise.wire import subjects

_log = structlog.get_logger(__name__)

_ADDRESS = re.compile(
    r"""
    [a-z][a-z0-9+.-]*://[^\s,;'"]+               # a URL, with whatever password it has
    | \[[0-9a-f:.]+\](?::\d+)?                   # [IPv6], IPv6, IPv4, host:port
    | (?<![\w:])(?:[0-9a-f]{1,4})?(?::{1,2}[0-9a-f]{1,4}){2,8}(?![\w:])
    | (?<![\w:])::(?:[0-9a-f]{1,4})(?![\w:])
    | \b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b
    | \b[a-z0-9][\w.-]*:\d{2,5}\b
    | (?<![\w.])/(?:[\w.+-]+/)+[\w.+-]*          # an absolute path
    """,
    re.VERBOSE | re.IGNORECASE,
)


def without_addresses(message: str) -> str:
    """Return the message with URLs, hosts with ports, IP addresses and paths as `…`."""
    return _ADDRESS.sub("…", message)


TICK_S = 0.1
#: What its inbox takes.
_TO_INBOX = frozenset(get_args(g.GatewayEvent)) - {Member, Tick}

#: HTTP status of each way to fail.
_STATUS = {
    RejectCode.MESH_FULL: 429,
    RejectCode.NO_WORKERS: 503,
    RejectCode.NEVER_FITS: 400,
    RejectCode.QUEUE_TIMEOUT: 503,
    RejectCode.DEADLINE_EXCEEDED: 504,
    RejectCode.NO_CLASS: 503,
    g.FAIL_NO_SCHEDULER: 503,
    g.FAIL_NOT_RECOVERED: 503,
    g.FAIL_ENGINE: 500,
    g.FAIL_GRAMMAR: 400,
    g.FAIL_TOO_LARGE: 400,
    g.FAIL_STORE: 503,
    g.FAIL_TAKEN: 409,
    g.FAIL_FELLS_WORKERS: 422,  # no 5xx: clients send those again by themselves
}


class MeshGeneration:
    """Generates through the mesh; one per gateway process.

    Attributes:
        ends_soon: the process has been told to end, and serves on for a moment.
        is_leaving: the process ends: the requests that it cancels continue elsewhere.
        saver: saves the tokens of kept requests as workers send them, whether or not their clients read.
    """

    ends_soon = False
    is_leaving = False

    def __init__(self, host: ServiceHost, terms: SubmissionTerms, metrics: GatewayMetrics) -> None:
        self._host = host
        self._metrics = metrics
        self._max_unread_tokens = terms.max_unread_tokens
        self._role, journal = host.make_role(
            GatewayRole, host.id, terms.recovery, host.member.incarnation, load_report_s=LOAD_REPORT_S
        )
        self._knew_scheduler = False
        self._streams: dict[str, TokenStream] = {}
        self.saver = TokenSaver(host.store, self._role.origin, self.step_down)
        self._attempts = AttemptOrders(
            host, terms, self._role.is_open, self._most_kv_tokens, self.saver, lambda event: self._loop.feed(event)
        )
        self._loop = RoleLoop(
            self._role,
            host.clock,
            {
                g.SubmitAttempt: lambda command: self._attempts.submit(self._streams[command.choice_id], command),
                g.CloseAttempts: lambda command: self._attempts.close(
                    self._streams[command.order.choice_id], command.order
                ),
                g.DeleteRecord: lambda command: self._attempts.delete_record(self._streams[command.choice_id]),
                g.ParkAttempts: self._park_attempts,
                g.Deliver: self._deliver,
                g.Accept: self._accept,
                g.Fail: self._fail,
                g.CountCrossing: lambda command: metrics.count_crossing(command.kind),
                g.PublishLoad: lambda command: host.post(subjects.LOAD, command.report),
                Send: lambda command: host.send(command.recipient_id, command.message),
                RecordLedger: lambda command: host.record(command.entry),
            },
            journal,
            host.count_failure,
        )
        host.metrics.watch("open_requests", lambda: self._role.open_requests)
        host.metrics.watch("undelivered_tokens", lambda: sum(stream.num_tokens for stream in [*self._streams.values()]))
        metrics.registry.register(host.metrics)

    async def start(self) -> None:
        """Read which schedulers are registered, subscribe to workers, schedulers and heartbeats, and start the ticks; raises
        `MeshError` where the store does not answer. A scheduler that takes over now is known by its later term.
        """
        self._host.describe_with(self._describe)
        for member in await self._host.store.members():
            if member.kind is MemberKind.CLUSTER_SCHEDULER:
                self._loop.feed(member)
        inbox = subjects.inbox(self._host.id, self._host.member.incarnation)
        await self._host.listen(inbox, self._on_message, expects=_TO_INBOX)
        await self._host.listen(subjects.HEARTBEATS, self._on_message)
        self._host.bus.when_reconnected(lambda: self._loop.feed(g.BusReconnected()))
        self._host.keep_time(TICK_S, self._tick)
        self._host.every(SAVE_EVERY_S, self.saver.save_all, "save_tokens")

    async def generate(self, choice_id: str, spec: SequenceSpec) -> AsyncGenerator[GeneratedTokens, None]:
        """Generate one sequence; closing the generator cancels its work."""
        earlier = spec.earlier
        stop = None if earlier is None else earlier.stop
        spec = spec if stop is None else replace(spec, stop=stop)
        stream = TokenStream(choice_id, spec, self._host.clock.now())
        if choice_id in self._streams:
            self.step_down(choice_id)  # two connections resume it at once: the later one has it
        self._streams[choice_id] = stream
        if spec.owner:
            self.saver.watch(choice_id, spec.owner, earlier)
        if earlier is None:
            self._record_names(choice_id, spec.client_request_id)
            sizes = len(spec.prompt_token_ids), spec.stop.max_new_tokens
            self._loop.feed(g.RequestReceived(choice_id, *sizes, spec.deadline_unix_s))
        else:
            self._resume(stream, earlier)
        text_ended = False
        try:
            while True:
                item = await stream.take()
                if stream.is_parked:
                    stream.is_parked = False
                    self._loop.feed(g.ReaderCaughtUp(choice_id))
                if isinstance(item, GenerationError):
                    raise item
                yield item
                if item.finish_reason is not None:
                    return
        except TextEndedError:
            text_ended = True
            raise
        finally:
            if self._streams.get(choice_id) is stream:  # else it was resumed here meanwhile
                self._loop.feed(g.RequestClosed(choice_id, text_ended))
                del self._streams[choice_id]

    def _resume(self, stream: TokenStream, earlier: EarlierTokens) -> None:
        """Give the tokens that other gateways saved, and go on after them."""
        if (tokens := saved(stream.choice_id, earlier)) is not None:
            stream.put(tokens)
        if earlier.finish_reason is None:
            prompt_tokens = len(stream.spec.prompt_token_ids)
            ids = stream.choice_id, prompt_tokens, earlier.epoch, earlier.token_ids
            origin = earlier.model_digest, earlier.numerics_classes
            self._loop.feed(g.RequestResumed(*ids, *origin, stream.spec.deadline_unix_s))

    def attempts(self, choice_ids: Iterable[str]) -> dict[str, KeptAttempt]:
        """Return the attempts of those choices that run here and were submitted."""
        streams = [self._streams[choice_id] for choice_id in choice_ids if choice_id in self._streams]
        return {
            each.choice_id: KeptAttempt(each.submitted_epoch, each.spec.stop)
            for each in streams
            if each.submitted_epoch
        }

    def step_down(self, choice_id: str) -> None:
        """End a sequence here: another connection or gateway takes it over."""
        self._loop.feed(g.RequestTaken(choice_id))

    def close(self, choice_id: str, epoch: int) -> None:
        """End a sequence that no gateway owns, with all its attempts up to `epoch`."""
        self._host.post(subjects.REQUESTS, CloseRequest(choice_id, epoch, finished=False))

    def _record_names(self, choice_id: str, client_request_id: str) -> None:
        """Link a request's two ids in the ledger, for `spotwise explain`."""
        if client_request_id:
            for known_as, name, other in (
                (choice_id, "client_request_id", client_request_id),
                (subjects.clients_name(client_request_id), "request_id", choice_id),
            ):
                entry = LedgerEntry(known_as, 0, "received", self._host.id, self._host.clock.wall(), ((name, other),))
                self._host.record(entry)

    def _ready_workers(self) -> list[Member]:
        """The workers that take requests, as far as is known: those with the weights that are served."""
        served = {each.model_digest for each in self._role.membership.all(MemberKind.CLUSTER_SCHEDULER)} - {None}
        return [
            worker
            for worker in self._role.membership.workers()
            if worker.state is MemberState.READY and (not served or worker.model_digest in served)
        ]

    def _most_kv_tokens(self, numerics_class: str) -> int:
        """Tokens that the largest KV cache of a worker that takes requests holds now, of a class where that has any; 0 without
        one.
        """
        ready = self._ready_workers()
        of_class = [worker for worker in ready if worker.numerics_class == numerics_class]
        loads = [worker.load for worker in of_class or ready if worker.load is not None]
        return max((load.kv_blocks_total * load.kv_block_size for load in loads), default=0)

    def why_not_ready(self) -> str | None:
        """Return why requests are to be sent to another gateway. Workers do not matter: requests wait for them here. Nor does a
        scheduler that is away, or the store: they are all gateways'.
        """
        if self.ends_soon:
            return "this gateway is about to end"
        if not self._host.receives:
            return "the broker does not answer"
        return None if self._knew_scheduler else "no cluster scheduler has been in the mesh since this gateway's start"

    async def health(self) -> MeshHealth:
        """Return whether requests can be served."""
        workers = self._role.membership.workers()
        schedulers = self._role.membership.all(MemberKind.CLUSTER_SCHEDULER)
        ready = self._ready_workers()
        counts = Counter(worker.kind.value for worker in ready)
        if not schedulers:
            return MeshHealth(False, "no cluster scheduler is in the mesh", counts)
        detail = f"{len(ready)} of {len(workers)} workers ready" if workers else "no workers have joined"
        return MeshHealth(bool(ready), detail, counts)

    # --- events -------------------------------------------------------------------------------------------------------

    async def _on_message(self, message: g.GatewayEvent, raw: BusMessage) -> None:
        self._loop.feed(message)

    def _describe(self, member: Member) -> Member:
        return replace(member, open_requests=self._role.open_requests)

    def _tick(self, tick: Tick) -> None:
        self._loop.feed(tick)
        self._knew_scheduler = self._knew_scheduler or bool(self._role.membership.all(MemberKind.CLUSTER_SCHEDULER))
        self._metrics.observe_workers(self._role.membership.workers())
        self._metrics.observe_classes(self._ready_workers())

    # --- commands -----------------------------------------------------------------------------------------------------

    def _park_attempts(self, command: g.ParkAttempts) -> None:
        self._metrics.count_parked()
        self._attempts.end(self._streams[command.order.choice_id], command.order)

    def _accept(self, command: g.Accept) -> None:
        stream = self._streams.get(command.choice_id)
        if stream is not None:
            stream.assigned_s = self._host.clock.now()
            stream.put(GeneratedTokens(()))

    def _deliver(self, command: g.Deliver) -> None:
        self._observe_queue_time(command)
        self.saver.add(command.choice_id, command.tokens)
        cached_tokens, prefill_s = self._cached_tokens(command), self._prefill_s(command)
        ids = command.choice_id, command.tokens, command.finish_reason
        self._put(command.choice_id, generated(*ids, cached_tokens, prefill_s))
        if command.finish_reason is None:
            self._park_if_unread(command.choice_id)

    def _park_if_unread(self, choice_id: str) -> None:
        """Pause the sequence of a client that takes too little where it is generated."""
        stream = self._streams.get(choice_id)
        if stream is not None and not stream.is_parked and stream.num_tokens > self._max_unread_tokens:
            stream.is_parked = True
            self._loop.feed(g.ReaderStalled(choice_id))

    def _cached_tokens(self, command: g.Deliver) -> int:
        """Prompt tokens found in a prefix cache; of the first attempt only."""
        stream, first = self._streams.get(command.choice_id), command.tokens[0]
        if stream is None or first.token_index > 0 or first.cached_tokens is None:
            return 0
        self._metrics.count_cached(len(stream.spec.prompt_token_ids), first.cached_tokens)
        return first.cached_tokens

    def _observe_queue_time(self, command: g.Deliver) -> None:
        """The wait for workers, measured here, and the wait on the prompt worker, measured there."""
        stream, waited_s = self._streams.get(command.choice_id), command.tokens[0].queue_s
        if stream is not None and waited_s is not None:
            assigned_s = stream.assigned_s or stream.received_s
            self._metrics.queue_time_s.observe(assigned_s - stream.received_s + waited_s)

    def _prefill_s(self, command: g.Deliver) -> float | None:
        """From the end of the queue time to the first token; unknown where that came from a later attempt. Where the assignment
        was heard of so late that nothing would be left, the wait for workers counts as prefill.
        """
        stream, first = self._streams.get(command.choice_id), command.tokens[0]
        if stream is None or stream.attempts > 1 or first.token_index > 0 or first.queue_s is None:
            return None
        now, assigned_s = self._host.clock.now(), stream.assigned_s or stream.received_s
        if assigned_s + first.queue_s >= now:
            assigned_s = stream.received_s
        return max(0.0, now - assigned_s - first.queue_s)

    def _fail(self, command: g.Fail) -> None:
        status, message = _STATUS[command.code], without_addresses(command.message)
        if message.startswith(ENGINE_FAILS):
            message = f"{ENGINE_FAILS}; the server's log says why"  # an exception's words
        if status == 500 or message != command.message:
            _log.warning("request_failed", choice_id=command.choice_id, code=str(command.code), reason=command.message)
        self._put(
            command.choice_id,
            GenerationError(status, command.code, message, command.retry_after_s, is_charged=command.is_charged),
        )

    def _put(self, choice_id: str, item: GeneratedTokens | GenerationError) -> None:
        stream = self._streams.get(choice_id)
        if stream is not None:
            stream.put(item)
