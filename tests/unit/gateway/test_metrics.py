"""What the gateway makes of the workers' heartbeats."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from spotwise.core.messages import Member, MemberKind, MemberState, Pool, WorkerLoad
from spotwise.gateway.metrics import GatewayMetrics


def worker(worker_id: str, incarnation: int, load: WorkerLoad | None) -> Member:
    return Member(
        worker_id, MemberKind.TOKEN_WORKER, incarnation, MemberState.READY, "host", 1, "", pool=Pool.TOKEN, load=load
    )


def test_kv_use_is_that_of_all_workers_together() -> None:
    """A worker that has not said yet what it holds does not count."""
    registry = CollectorRegistry()
    loads = (WorkerLoad(kv_blocks_total=30, kv_blocks_free=20), WorkerLoad(kv_blocks_total=10, kv_blocks_free=0), None)
    GatewayMetrics(registry, "m").observe_workers(worker(f"w{n}", 1, load) for n, load in enumerate(loads))
    assert registry.get_sample_value("vllm:kv_cache_usage_perc", {"model_name": "m"}) == 0.5


def test_preemptions_are_counted_from_one_heartbeat_to_the_next() -> None:
    """A gateway that joins later counts none of before, and a worker that restarts begins again at zero."""
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry, "m")
    for incarnation, preemptions in ((1, 7), (1, 9), (1, 9), (2, 0), (2, 1)):
        metrics.observe_workers([worker("w", incarnation, WorkerLoad(preemptions=preemptions))])
    assert registry.get_sample_value("vllm:num_preemptions_total", {"model_name": "m"}) == 3
