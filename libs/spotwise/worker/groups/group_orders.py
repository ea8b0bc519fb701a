"""The order to form a worker's group, and what its planner hears of it."""

from __future__ import annotations

from collections.abc import Sequence

from spotwise.core.messages import groups as g
from spotwise.core.messages import mesh as m
from spotwise.mesh.service.host import ServiceHost
from spotwise.worker.settings import WorkerSettings


def unformed(
    settings: WorkerSettings,
    leader_id: str,
    dtype: str,
    model_digest: str | None,
    order: m.LeadGroup | None,
    numerics_class: str = "",
) -> g.FormGroup:
    """Return the order to form a worker's group, but for what its devices decide."""
    return g.FormGroup(
        epoch=0,
        leader_id=leader_id,
        stages=settings.stages,
        shards=settings.shards,
        stage=0,
        shard=0,
        exchange="",
        num_blocks=0,
        host_blocks=0,
        block_size=settings.kv_block_size,
        dtype=dtype,
        model_digest=model_digest,
        serves_early=order is not None and order.serves_early,
        weights=() if order is None else order.weights,
        numerics_class=numerics_class,
    )


def report_formed(host: ServiceHost, order: m.LeadGroup | None, loaded: Sequence[g.LoadedWeights]) -> None:
    """Tell the planner that has ordered a group what its devices got."""
    if order is not None and order.planner_id:
        formed = m.GroupFormed(
            order.worker_id,
            order.change,
            sum(each.fetched_bytes for each in loaded),
            sum(each.unplanned_bytes for each in loaded),
            sum(each.read_bytes for each in loaded),
        )
        host.send(order.planner_id, formed)
