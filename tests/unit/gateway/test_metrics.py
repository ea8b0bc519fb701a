"""What the gateway makes of the workers' heartbeats, of what it answered, and of how full the store is."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import structlog
from prometheus_client import CollectorRegistry

from spotwise.core.access.store_budget import FULL_FOR_S, Kind, RoomUse
from spotwise.core.messages.members import Member, MemberKind, MemberState, Pool, WorkerLoad
from spotwise.core.messages.numerics import CrossingKind, Numerics
from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import SamplingParams
from spotwise.gateway.generate.generation import SequenceSpec
from spotwise.gateway.generate.metrics import GONE_WORKERS_REMEMBERED, GatewayMetrics, StoreWatch, token_buckets
from tests.unit.gateway.apps import Http, Json, metric
from tests.unit.gateway.fake_mesh import COMPLETION, COMPLETIONS, MODEL, FakeMesh


def worker(worker_id: str, incarnation: int, load: WorkerLoad | None) -> Member:
    return Member(
        worker_id, MemberKind.TOKEN_WORKER, incarnation, MemberState.READY, "host", 1, "", pool=Pool.TOKEN, load=load
    )


@pytest.fixture
def metrics() -> GatewayMetrics:
    return GatewayMetrics(CollectorRegistry(), MODEL, 100)


def test_kv_use_is_that_of_all_workers_together(metrics: GatewayMetrics) -> None:
    """A worker without a report of its blocks does not count."""
    loads = (WorkerLoad(kv_blocks_total=30, kv_blocks_used=10), WorkerLoad(kv_blocks_total=10, kv_blocks_used=10), None)
    metrics.observe_workers(worker(f"w{n}", 1, load) for n, load in enumerate(loads))
    assert metric(metrics.registry, "vllm:kv_cache_usage_perc") == 0.5


def test_cached_prompt_tokens_are_counted_beside_all_that_were_looked_up(metrics: GatewayMetrics) -> None:
    metrics.count_cached(40, 32)
    metrics.count_cached(10, 0)
    names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
    assert [metric(metrics.registry, name) for name in names] == [50, 32]


def test_preemptions_are_counted_from_one_heartbeat_to_the_next(metrics: GatewayMetrics) -> None:
    """A gateway that joins later counts none of before, and a worker that restarts begins again at zero."""
    for incarnation, preemptions in ((1, 7), (1, 9), (1, 9), (2, 0), (2, 1)):
        metrics.observe_workers([worker("w", incarnation, WorkerLoad(preemptions=preemptions))])
    assert metric(metrics.registry, "vllm:num_preemptions_total") == 3


def test_classes_are_shown_while_they_have_workers(metrics: GatewayMetrics) -> None:
    """Workers that compute nothing have none; each way to cross has a series from the start."""
    dot, fma = Numerics("bfloat16", "dot"), Numerics("float32", "fma")

    def shown() -> dict[str, float]:
        (family,) = (each for each in metrics.registry.collect() if each.name == "spotwise_class_workers")
        return {sample.labels["numerics_class"]: sample.value for sample in family.samples}

    plain = worker("w", 1, None)
    metrics.observe_classes([plain, *(replace(plain, numerics=each) for each in (dot, dot, fma))])
    assert shown() == {dot.name: 2.0, fma.name: 1.0}
    metrics.observe_classes([replace(plain, numerics=fma)])
    assert shown() == {fma.name: 1.0}
    metrics.count_crossing(CrossingKind.MOVE)
    counted = {
        each: metric(metrics.registry, "spotwise_class_crossings_total", kind=each.value) for each in CrossingKind
    }
    assert counted == {CrossingKind.RECOVERY: 0.0, CrossingKind.HAND_OFF: 0.0, CrossingKind.MOVE: 1.0}


def test_kv_on_the_hosts_is_shown_and_moves_are_counted(metrics: GatewayMetrics) -> None:
    """The metrics are sums over all workers, and count moves only from the first report."""
    for moved in (3, 8):
        blocks: Json = {"kv_host_blocks_total": 30, "kv_host_blocks_free": 20, "kv_blocks_swapped_out": moved}
        loads = [
            WorkerLoad(swapped=2, kv_blocks_swapped_in=moved - 1, refused_connections=moved - 1, **blocks),
            WorkerLoad(kv_host_blocks_total=5, kv_host_blocks_free=5, kv_blocks_swapped_out=4),
        ]
        metrics.observe_workers(worker(f"w{number}", 1, load) for number, load in enumerate(loads))
    expected = {
        "num_requests_swapped": 2,
        "kv_host_blocks_used": 10,
        "kv_host_blocks_free": 25,
        "kv_blocks_swapped_out_total": 5,
        "kv_blocks_swapped_in_total": 5,
        "transfer_refused_total": 5,
    }
    assert {name: metric(metrics.registry, f"spotwise_{name}") for name in expected} == expected


@pytest.mark.parametrize(
    ("context_length", "last"),
    [(1, (1,)), (256, (20, 50, 100, 200)), (8192, (500, 1000, 2000, 5000)), (10_000, (5000, 10_000))],
)
def test_token_buckets_end_with_the_context(context_length: int, last: tuple[int, ...]) -> None:
    """The last bucket of the token histograms is the context length, as in vLLM."""
    edges = token_buckets(context_length)
    assert edges[-len(last) :] == last
    assert edges[:3] == (1, 2, 5)[: len(edges)]


def test_phases_of_a_sequence_are_observed_at_its_end(metrics: GatewayMetrics) -> None:
    """Prefill as the mesh measured it, decode between tokens; without a token nothing is observed."""
    spec = SequenceSpec((1, 2, 3), SamplingParams(), StopCriteria(9))
    for prefill_s, tokens in ((0.25, (1, 3)), (None, (1, 1)), (0.5, ())):
        timeline = metrics.sequence(0.0, spec)
        for count in tokens:
            timeline.received(count, prefill_s)
        timeline.ended("stop")

    def value(name: str) -> float | None:
        return metric(metrics.registry, f"vllm:request_{name}")

    assert (value("prefill_time_seconds_count"), value("prefill_time_seconds_sum")) == (1, 0.25)
    assert (value("decode_time_seconds_count"), value("inference_time_seconds_count")) == (2, 1)
    assert (value("prompt_tokens_sum"), value("generation_tokens_sum"), value("params_max_tokens_sum")) == (6, 6, 18)
    assert value("time_per_output_token_seconds_count") == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_is_a_prompt_with_all_its_choices(
    client: Http, mesh: FakeMesh, registry: CollectorRegistry, stream: bool
) -> None:
    """A request's longest choice counts, and a failed request does not."""
    mesh.replies = {0: [5, 6, 7, 2], 1: [5, 2]}
    body = COMPLETION | {"prompt": ["Hi", "you"], "n": 2, "stream": stream}
    assert (await client.post(COMPLETIONS, json=body)).status_code == 200
    mesh.fail_at = 1
    await client.post(COMPLETIONS, json=body)

    def value(name: str) -> float | None:
        return metric(registry, f"vllm:request_{name}")

    assert (value("params_n_count"), value("params_n_sum")) == (2, 4)
    longest = 4 + max(len(mesh.reply), 1)
    assert (value("max_num_generation_tokens_count"), value("max_num_generation_tokens_sum")) == (2, longest)


def test_workers_that_are_gone_are_forgotten_after_many_others(metrics: GatewayMetrics) -> None:
    """One that was only silent is counted on from where it was; there may be ever new ids."""
    metrics.observe_workers([worker("steady", 1, WorkerLoad()), worker("w", 1, WorkerLoad(preemptions=1))])
    for number in range(10 * GONE_WORKERS_REMEMBERED):
        metrics.observe_workers([worker("steady", 1, WorkerLoad(preemptions=1)), worker(f"v{number}", 1, WorkerLoad())])
        if number == GONE_WORKERS_REMEMBERED // 2:
            metrics.observe_workers([worker("w", 1, WorkerLoad(preemptions=3))])
    assert metric(metrics.registry, "vllm:num_preemptions_total") == 3
    assert metrics.workers_remembered <= GONE_WORKERS_REMEMBERED + 2


NOW_S = 1_700_000_000.0


class FakeStore:
    """Its sums are set by the test."""

    def __init__(self) -> None:
        self.uses = dict.fromkeys(Kind, RoomUse(5, 10))

    async def room_use(self) -> dict[Kind, RoomUse]:
        return self.uses


async def test_a_full_store_is_in_the_metrics_and_once_a_minute_in_the_log(metrics: GatewayMetrics) -> None:
    store, now_s = FakeStore(), [NOW_S]
    watch = StoreWatch(store, metrics, lambda: now_s[0])

    shown = partial(metric, metrics.registry)

    with structlog.testing.capture_logs() as logs:
        await watch.look()
        assert (shown("spotwise_store_bytes", of="ledgers"), shown("spotwise_store_max_bytes", of="ledgers")) == (5, 10)
        assert (shown("spotwise_store_full"), logs) == (0, [])
        store.uses[Kind.LEDGERS] = RoomUse(5, 10, NOW_S)
        for _ in range(3):
            now_s[0] += 10
            await watch.look()
        assert shown("spotwise_store_full") == 1
        assert [(line["event"], line["log_level"], line["kinds"]) for line in logs] == [
            ("store_full", "warning", ["ledgers"])
        ]
        now_s[0] = NOW_S + FULL_FOR_S
        await watch.look()
        assert shown("spotwise_store_full") == 0
        assert len(logs) == 1
