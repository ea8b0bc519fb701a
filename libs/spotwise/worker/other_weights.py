"""Checks a worker's weights against the mesh's, and against those that a request began with."""

from __future__ import annotations

import structlog

from spotwise.core.messages.members import MemberKind
from spotwise.core.requests.record import RequestRecord
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.service.host import ServiceHost

_log = structlog.get_logger(__name__)


async def warn_of_other_weights(host: ServiceHost) -> None:
    """Log an error where a worker's weights differ from the mesh's, so that it will get no work; raises `MeshError` without the
    store. The worker joins nevertheless: `spotwise status` shows it, and the mesh may serve its model later.
    """
    mine = host.member.model_digest
    for member in await host.store.members():
        served = member.model_digest
        if member.kind is MemberKind.CLUSTER_SCHEDULER and served is not None and served != mine:
            _log.error(
                "other_weights",
                worker=host.id,
                weights=mine,
                served=served,
                consequence="the scheduler sends this worker no requests; give it the model folder that the other workers have",
            )


def require_same_weights(record: RequestRecord, worker_id: str, model_digest: str | None) -> None:
    """Check that a worker may continue a request; raises `MeshError` where its tokens were computed with other weights."""
    if record.model_digest is not None and record.model_digest != model_digest:
        raise MeshError(
            f"the request was begun with the weights {record.model_digest}, and {worker_id} has "
            f"{model_digest or 'none'}; workers of one mesh need the same model folder"
        )
