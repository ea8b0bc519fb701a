"""What the gateway makes of the workers' heartbeats, and of what it answered."""

from __future__ import annotations

import httpx
import pytest
from prometheus_client import CollectorRegistry

from spotwise.core.messages.members import Member, MemberKind, MemberState, Pool, WorkerLoad
from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import SamplingParams
from spotwise.gateway.generate.generation import SequenceSpec
from spotwise.gateway.generate.metrics import GONE_WORKERS_REMEMBERED, GatewayMetrics, token_buckets
from tests.unit.gateway.fake_mesh import COMPLETION, MODEL, FakeMesh


def worker(worker_id: str, incarnation: int, load: WorkerLoad | None) -> Member:
    return Member(
        worker_id, MemberKind.TOKEN_WORKER, incarnation, MemberState.READY, "host", 1, "", pool=Pool.TOKEN, load=load
    )


def test_kv_use_is_that_of_all_workers_together() -> None:
    """A worker without a report of its blocks does not count."""
    registry = CollectorRegistry()
    loads = (WorkerLoad(kv_blocks_total=30, kv_blocks_used=10), WorkerLoad(kv_blocks_total=10, kv_blocks_used=10), None)
    GatewayMetrics(registry, "m").observe_workers(worker(f"w{n}", 1, load) for n, load in enumerate(loads))
    assert registry.get_sample_value("vllm:kv_cache_usage_perc", {"model_name": "m"}) == 0.5


def test_cached_prompt_tokens_are_counted_beside_all_that_were_looked_up() -> None:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry, "m")
    metrics.count_cached(40, 32)
    metrics.count_cached(10, 0)
    names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
    assert [registry.get_sample_value(name, {"model_name": "m"}) for name in names] == [50, 32]


def test_preemptions_are_counted_from_one_heartbeat_to_the_next() -> None:
    """A gateway that joins later counts none of before, and a worker that restarts begins again at zero."""
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry, "m")
    for incarnation, preemptions in ((1, 7), (1, 9), (1, 9), (2, 0), (2, 1)):
        metrics.observe_workers([worker("w", incarnation, WorkerLoad(preemptions=preemptions))])
    assert registry.get_sample_value("vllm:num_preemptions_total", {"model_name": "m"}) == 3


def test_kv_on_the_hosts_is_shown_and_moves_are_counted() -> None:
    """The metrics are sums over all workers, and count moves only from the first report."""
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry, "m")
    for moved in (3, 8):
        loads = [
            WorkerLoad(
                swapped=2,
                kv_host_blocks_total=30,
                kv_host_blocks_free=20,
                kv_blocks_swapped_out=moved,
                kv_blocks_swapped_in=moved - 1,
                refused_connections=moved - 1,
            ),
            WorkerLoad(kv_host_blocks_total=5, kv_host_blocks_free=5, kv_blocks_swapped_out=4),
        ]
        metrics.observe_workers(worker(f"w{number}", 1, load) for number, load in enumerate(loads))
    shown = {
        name: registry.get_sample_value(f"spotwise_{name}", {"model_name": "m"})
        for name in (
            "num_requests_swapped",
            "kv_host_blocks_used",
            "kv_host_blocks_free",
            "kv_blocks_swapped_out_total",
            "kv_blocks_swapped_in_total",
            "transfer_refused_total",
        )
    }
    assert [*shown.values()] == [2, 10, 25, 5, 5, 5]


@pytest.mark.parametrize(
    ("context_length", "last"),
    [(1, (1,)), (256, (20, 50, 100, 200)), (8192, (500, 1000, 2000, 5000)), (10_000, (5000, 10_000))],
)
def test_token_buckets_end_with_the_context(context_length: int, last: tuple[int, ...]) -> None:
    """The last bucket of the token histograms is the context length, as in vLLM."""
    edges = token_buckets(context_length)
    assert edges[-len(last) :] == last
    assert edges[:3] == (1, 2, 5)[: len(edges)]


def test_phases_of_a_sequence_are_observed_at_its_end() -> None:
    """Prefill as the mesh measured it, decode between tokens; without a token nothing is observed."""
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry, "m", 100)
    spec = SequenceSpec((1, 2, 3), SamplingParams(), StopCriteria(9))
    for prefill_s, tokens in ((0.25, (1, 3)), (None, (1, 1)), (0.5, ())):
        timeline = metrics.sequence(0.0, spec)
        for count in tokens:
            timeline.received(count, prefill_s)
        timeline.ended("stop")

    def value(name: str) -> float | None:
        return registry.get_sample_value(f"vllm:request_{name}", {"model_name": "m"})

    assert (value("prefill_time_seconds_count"), value("prefill_time_seconds_sum")) == (1, 0.25)
    assert (value("decode_time_seconds_count"), value("inference_time_seconds_count")) == (2, 1)
    assert (value("prompt_tokens_sum"), value("generation_tokens_sum"), value("params_max_tokens_sum")) == (6, 6, 18)
    assert value("time_per_output_token_seconds_count") == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_is_a_prompt_with_all_its_choices(
    client: httpx.AsyncClient, mesh: FakeMesh, registry: CollectorRegistry, stream: bool
) -> None:
    """A request's longest choice counts, and a failed request does not."""
    mesh.replies = {0: [5, 6, 7, 2], 1: [5, 2]}
    body = COMPLETION | {"prompt": ["Hi", "you"], "n": 2, "stream": stream}
    assert (await client.post("/v1/completions", json=body)).status_code == 200
    mesh.fail_at = 1
    await client.post("/v1/completions", json=body)

    def value(name: str) -> float | None:
        return registry.get_sample_value(f"vllm:request_{name}", {"model_name": MODEL})

    assert (value("params_n_count"), value("params_n_sum")) == (2, 4)
    longest = 4 + max(len(mesh.reply), 1)
    assert (value("max_num_generation_tokens_count"), value("max_num_generation_tokens_sum")) == (2, longest)


def test_workers_that_are_gone_are_forgotten_after_many_others() -> None:
    """One that was only silent is counted on from where it was; there may be ever new ids."""
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry, "m")
    metrics.observe_workers([worker("steady", 1, WorkerLoad()), worker("w", 1, WorkerLoad(preemptions=1))])
    for number in range(10 * GONE_WORKERS_REMEMBERED):
        metrics.observe_workers([worker("steady", 1, WorkerLoad(preemptions=1)), worker(f"v{number}", 1, WorkerLoad())])
        if number == GONE_WORKERS_REMEMBERED // 2:
            metrics.observe_workers([worker("w", 1, WorkerLoad(preemptions=3))])
    assert registry.get_sample_value("vllm:num_preemptions_total", {"model_name": "m"}) == 3
    assert metrics.workers_remembered <= GONE_WORKERS_REMEMBERED + 2
