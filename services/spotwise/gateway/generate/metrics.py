"""The gateway's metrics, named as vLLM's dashboards expect; those of finished requests have sizes, and times of their phases.

Names, meanings and buckets are vLLM's, so that one dashboard shows both. A sequence is one choice of one prompt; a request is
one prompt with all its choices. Not shown, for the gateway cannot measure them: tokens of an iteration
(`vllm:iteration_tokens_total`), and the prefill time of a sequence whose first token came from a later attempt.

Times are seconds that the client could measure. Every sequence that starts is counted once at its end, whatever that is. Series
that only workers know (queue time, KV use, preemptions) come with their heartbeats.
"""

from __future__ import annotations

import time
from collections import Counter as CountOf
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from spotwise.core.access.quotas import KeyLimit
from spotwise.core.access.store_budget import FULL_FOR_S, Kind, RoomUse
from spotwise.core.messages.members import Member
from spotwise.core.messages.numerics import CrossingKind
from spotwise.gateway.generate.generation import SequenceSpec
from spotwise.gateway.schema.parameters import counted_name

_PHASE_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TIME_PER_TOKEN_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_CHOICES_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)

_TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_ITL_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_BUCKETS = (
    *(0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
#: Workers that are gone whose last counts are remembered: one that was only silent is counted on from there.
GONE_WORKERS_REMEMBERED = 256
_log = structlog.get_logger(__name__)
LOOK_EVERY_S = 5.0


def token_buckets(context_length: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, 50, … as far as a context of so many tokens reaches."""
    decades = range(len(str(context_length)))
    edges = (mantissa * 10**decade for decade in decades for mantissa in (1, 2, 5))
    return tuple(float(edge) for edge in edges if edge <= context_length)


@dataclass(frozen=True, slots=True)
class EndedSequence:
    """The measurements of a sequence that produced a token.

    Attributes:
        prompt_tokens: tokens of its prompt.
        max_tokens: bound of its output tokens.
        output_tokens: tokens that it produced.
        prefill_s: from the beginning of its prefill to its first token; `None` where a later attempt brought that.
        decode_s: from its first token to its last.
    """

    prompt_tokens: int
    max_tokens: int
    output_tokens: int
    prefill_s: float | None
    decode_s: float


class RequestSeries:
    """Histograms of what has ended.

    Args:
        registry: where they are registered.
        model_name: value of their label `model_name`.
        context_length: most tokens of prompt and output together.
    """

    def __init__(self, registry: CollectorRegistry, model_name: str, context_length: int) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            series = Histogram(f"vllm:{name}", text, ("model_name",), registry=registry, buckets=buckets)
            return series.labels(model_name)

        tokens = token_buckets(context_length)
        self._prompt_tokens = histogram("request_prompt_tokens", "Prompt tokens of a sequence.", tokens)
        self._output_tokens = histogram("request_generation_tokens", "Output tokens of a sequence.", tokens)
        self._max_tokens = histogram("request_params_max_tokens", "Bound of output tokens of a sequence.", tokens)
        self._most_output_tokens = histogram(
            "request_max_num_generation_tokens", "Output tokens of a request's longest choice.", tokens
        )
        self._choices = histogram("request_params_n", "Choices of a request.", _CHOICES_BUCKETS)
        self._prefill_s = histogram("request_prefill_time_seconds", "Prefill to first token.", _PHASE_BUCKETS)
        self._decode_s = histogram("request_decode_time_seconds", "First token to last.", _PHASE_BUCKETS)
        self._inference_s = histogram("request_inference_time_seconds", "Prefill to last token.", _PHASE_BUCKETS)
        self._s_per_token = histogram(
            "request_time_per_output_token_seconds",
            "Mean time per output token of a sequence.",
            _TIME_PER_TOKEN_BUCKETS,
        )

    def sequence_ended(self, ended: EndedSequence) -> None:
        """Observe one choice of a prompt."""
        self._prompt_tokens.observe(ended.prompt_tokens)
        self._output_tokens.observe(ended.output_tokens)
        self._max_tokens.observe(ended.max_tokens)
        self._decode_s.observe(ended.decode_s)
        if ended.output_tokens > 1:
            self._s_per_token.observe(ended.decode_s / (ended.output_tokens - 1))
        if ended.prefill_s is not None:
            self._prefill_s.observe(ended.prefill_s)
            self._inference_s.observe(ended.prefill_s + ended.decode_s)

    def request_ended(self, output_tokens: list[int]) -> None:
        """Observe a prompt all of whose choices have been answered, with the output tokens of each."""
        self._choices.observe(len(output_tokens))
        self._most_output_tokens.observe(max(output_tokens))


class GatewayMetrics:
    """The gateway's series.

    Args:
        registry: where they are registered.
        model_name: value of their label `model_name`.
        context_length: most tokens of prompt and output together.

    Attributes:
        registry: as given.
        queue_time_s: histogram; seconds that a sequence waited before its prefill began.
        ended: measurements of sequences and requests that are over.
    """

    def __init__(self, registry: CollectorRegistry, model_name: str, context_length: int = 131_072) -> None:
        self.registry = registry
        self.ended = RequestSeries(registry, model_name, context_length)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            series = Histogram(name, text, ("model_name",), registry=registry, buckets=buckets)
            return series.labels(model_name)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, ("model_name",), registry=registry).labels(model_name)

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, ("model_name",), registry=registry).labels(model_name)

        self._ttft_s = histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", _TTFT_BUCKETS)
        self._itl_s = histogram("vllm:inter_token_latency_seconds", "From token to token.", _ITL_BUCKETS)
        self._e2e_s = histogram("vllm:e2e_request_latency_seconds", "Arrival to last token.", _REQUEST_BUCKETS)
        self.queue_time_s = histogram("vllm:request_queue_time_seconds", "Arrival to prefill.", _REQUEST_BUCKETS)
        self._running = gauge("vllm:num_requests_running", "Sequences in decode.")
        self._waiting = gauge("vllm:num_requests_waiting", "Sequences without a token yet.")
        self._kv_cache_usage = gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.")
        self._prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens of requests.")
        self._generation_tokens = counter("vllm:generation_tokens", "Output tokens sent to clients.")
        self._resumed = counter("spotwise_requests_resumed", "Answers that a further connection went on with.")
        self._store_full = gauge("spotwise_store_full", "1 where the store had no more memory within the last minute.")
        self._parked = counter("spotwise_requests_parked", "Sequences paused because their clients did not read.")
        self._crossings = Counter(
            "spotwise_class_crossings",
            "Sequences that went on in another numerics class.",
            ("model_name", "kind"),
            registry=registry,
        )
        for kind in CrossingKind:
            self._crossings.labels(model_name, kind.value)
        self._class_workers = Gauge(
            "spotwise_class_workers",
            "Workers of a numerics class that take requests.",
            ("model_name", "numerics_class"),
            registry=registry,
        )
        self._classes: frozenset[str] = frozenset()
        #: By what workers count since their start.
        self._counted = {
            "preemptions": counter("vllm:num_preemptions", "Times a sequence lost its KV blocks to another one."),
            "kv_blocks_swapped_out": counter(
                "spotwise_kv_blocks_swapped_out", "KV blocks copied to the hosts' memory."
            ),
            "refused_connections": counter(
                "spotwise_transfer_refused", "Connections that the KV ports of workers refused."
            ),
            "kv_blocks_swapped_in": counter("spotwise_kv_blocks_swapped_in", "KV blocks copied back to the devices."),
        }
        self._last_seen: dict[str, Member] = {}
        self._swapped = gauge("spotwise_num_requests_swapped", "Sequences whose KV is on a host, or on its way.")
        self._host_blocks_used = gauge("spotwise_kv_host_blocks_used", "KV blocks of the hosts' memory in use.")
        self._host_blocks_free = gauge("spotwise_kv_host_blocks_free", "KV blocks of the hosts' memory not in use.")
        self._prefix_queries = counter("vllm:prefix_cache_queries", "Prompt tokens looked up in prefix caches.")
        self._prefix_hits = counter("vllm:prefix_cache_hits", "Prompt tokens found in prefix caches.")
        self._model_name = model_name
        self._success = Counter(
            "vllm:request_success",
            "Ended sequences by finish reason.",
            ("model_name", "finished_reason"),
            registry=registry,
        )
        self._errors = Counter(
            "spotwise_request_errors", "Error answers by code.", ("model_name", "code"), registry=registry
        )
        self._ignored = Counter(
            "spotwise_ignored_parameters",
            "Requests with a parameter that was ignored.",
            ("model_name", "parameter"),
            registry=registry,
        )
        labels = ("model_name", "of")
        self._store_bytes = Gauge("spotwise_store_bytes", "Room that is used in the store.", labels, registry=registry)
        self._store_most_bytes = Gauge("spotwise_store_max_bytes", "Room in the store.", labels, registry=registry)
        self._not_kept = Counter(
            "spotwise_not_kept", "Requests and responses that the store did not keep.", labels, registry=registry
        )
        # Without the names of keys: readers of metrics need not know the tenants.
        self._limited = Counter(
            "spotwise_rate_limited",
            "Requests refused by a limit of their key.",
            ("model_name", "limit"),
            registry=registry,
        )

    def count_ignored(self, names: Iterable[str]) -> None:
        """Count what a request wished for in vain, by parameters' names."""
        for name in sorted({counted_name(name) for name in names}):
            self._ignored.labels(self._model_name, name).inc()

    def count_limited(self, limit: KeyLimit) -> None:
        """Count a refusal by a key's limit."""
        self._limited.labels(self._model_name, limit).inc()

    def observe_store(self, uses: Mapping[Kind, RoomUse], *, is_full: bool) -> None:
        """Show how full the store is."""
        self._store_full.set(is_full)
        for kind, use in uses.items():
            self._store_bytes.labels(self._model_name, kind).set(use.used_bytes)
            if use.most_bytes:
                self._store_most_bytes.labels(self._model_name, kind).set(use.most_bytes)

    def count_not_kept(self, kind: Kind) -> None:
        """Count a request or a response that was answered, and is not kept."""
        self._not_kept.labels(self._model_name, kind).inc()

    def count_resumed(self) -> None:
        """Count a connection that goes on with an answer."""
        self._resumed.inc()

    def count_parked(self) -> None:
        """Count a sequence that gives its place up until its client reads."""
        self._parked.inc()

    def count_crossing(self, kind: CrossingKind) -> None:
        """Count a sequence that goes on in another numerics class."""
        self._crossings.labels(self._model_name, kind.value).inc()

    def observe_classes(self, ready: Iterable[Member]) -> None:
        """Show how many workers of each numerics class take requests; a class without any has no series."""
        workers = CountOf(worker.numerics_class for worker in ready if worker.numerics_class)
        for name in self._classes - workers.keys():
            self._class_workers.remove(self._model_name, name)
        for name, count in workers.items():
            self._class_workers.labels(self._model_name, name).set(count)
        self._classes = frozenset(workers)

    def count_prompt(self, prompt_tokens: int) -> None:
        """Count the prompts of an API request."""
        self._prompt_tokens.inc(prompt_tokens)

    def count_cached(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Count a sequence's prompt tokens, and those of them that needed no computing."""
        self._prefix_queries.inc(prompt_tokens)
        self._prefix_hits.inc(cached_tokens)

    def observe_workers(self, workers: Iterable[Member]) -> None:
        """Take in the last heartbeats of the workers that are there."""
        loads = [(worker, worker.load) for worker in workers if worker.load is not None]
        if total := sum(load.kv_blocks_total for _, load in loads):
            self._kv_cache_usage.set(sum(load.kv_blocks_used for _, load in loads) / total)
        self._swapped.set(sum(load.swapped for _, load in loads))
        host_free = sum(load.kv_host_blocks_free for _, load in loads)
        self._host_blocks_free.set(host_free)
        self._host_blocks_used.set(sum(load.kv_host_blocks_total for _, load in loads) - host_free)
        for worker, load in loads:
            last = self._last_seen.get(worker.id)
            if last is not None and last.load is not None and last.incarnation == worker.incarnation:
                for name, counter in self._counted.items():
                    counter.inc(getattr(load, name) - getattr(last.load, name))
            self._last_seen.pop(worker.id, None)
            self._last_seen[worker.id] = worker  # at the end: live workers come after lost ones
        while len(self._last_seen) > len(loads) + GONE_WORKERS_REMEMBERED:
            del self._last_seen[next(iter(self._last_seen))]

    @property
    def workers_remembered(self) -> int:
        """Workers whose last counts are known, there or gone."""
        return len(self._last_seen)

    def count_error(self, code: str) -> None:
        """Count an error that a client received."""
        self._errors.labels(self._model_name, code).inc()

    def sequence(self, arrived_s: float, spec: SequenceSpec) -> SequenceTimeline:
        """Begin the measures of a sequence; `arrived_s` is `time.monotonic()` when its request came."""
        return SequenceTimeline(self, arrived_s, spec)


class SequenceTimeline:
    """Measures of one sequence, from its submission to its end."""

    __slots__ = ("_arrived_s", "_first_s", "_last_s", "_metrics", "_output_tokens", "_prefill_s", "_spec")

    def __init__(self, metrics: GatewayMetrics, arrived_s: float, spec: SequenceSpec) -> None:
        self._metrics = metrics
        self._arrived_s = arrived_s
        self._spec = spec
        self._output_tokens = 0
        self._prefill_s: float | None = None
        self._first_s: float | None = None
        self._last_s: float | None = None
        metrics._waiting.inc()

    def received(self, num_tokens: int, prefill_s: float | None = None) -> None:
        """Note that tokens came, one or more, the first with the time that its prefill took."""
        metrics, now_s = self._metrics, time.monotonic()
        metrics._generation_tokens.inc(num_tokens)
        self._output_tokens += num_tokens
        if self._last_s is None:
            self._first_s, self._prefill_s = now_s, prefill_s
            metrics._ttft_s.observe(now_s - self._arrived_s)
            metrics._waiting.dec()
            metrics._running.inc()
        else:
            for _ in range(num_tokens):
                metrics._itl_s.observe((now_s - self._last_s) / num_tokens)
        self._last_s = now_s

    def ended(self, finished_reason: str) -> None:
        """Note the end: `stop`, `length`, `abort` or `error`."""
        metrics = self._metrics
        (metrics._waiting if self._last_s is None else metrics._running).dec()
        metrics._success.labels(metrics._model_name, finished_reason).inc()
        if self._first_s is not None and self._last_s is not None:
            metrics._e2e_s.observe(time.monotonic() - self._arrived_s)
            spec, decode_s = self._spec, self._last_s - self._first_s
            metrics.ended.sequence_ended(
                EndedSequence(
                    len(spec.prompt_token_ids), spec.stop.max_new_tokens, self._output_tokens, self._prefill_s, decode_s
                )
            )


class _Store(Protocol):
    async def room_use(self) -> Mapping[Kind, RoomUse]:
        """Return how full the room of each kind is."""


class StoreWatch:
    """The store as one gateway sees it.

    Args:
        store: has the sums of all gateways.
        metrics: this gateway's.
        now_unix_s: a clock.
    """

    def __init__(self, store: _Store, metrics: GatewayMetrics, now_unix_s: Callable[[], float] = time.time) -> None:
        self._store = store
        self._metrics = metrics
        self._now_unix_s = now_unix_s
        self._warned_unix_s = 0.0

    def begin(self, every: Callable[[float, Callable[[], Awaitable[None]], str], None]) -> None:
        """Look from now on."""
        every(LOOK_EVERY_S, self.look, "store_room")

    async def look(self) -> None:
        """Look once; raises `MeshError` where the store does not answer."""
        uses, now_unix_s = await self._store.room_use(), self._now_unix_s()
        full = [kind.value for kind, use in uses.items() if use.is_full(now_unix_s)]
        self._metrics.observe_store(uses, is_full=bool(full))
        if full and now_unix_s - self._warned_unix_s >= FULL_FOR_S:
            self._warned_unix_s = now_unix_s
            message = "the store has no more memory; what is kept makes room for itself, or is not kept"
            _log.warning("store_full", detail=message, kinds=full)
