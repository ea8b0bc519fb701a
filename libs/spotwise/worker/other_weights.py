"""What a worker does about weights that are not the mesh's, or not those that a request was begun with."""

from __future__ import annotations

import structlog

from spotwise.core.messages import MemberKind
from spotwise.core.record import RequestRecord
from spotwise.mesh.ports import MeshError
from spotwise.mesh.service import ServiceHost

_log = structlog.get_logger(__name__)


async def warn_of_other_weights(host: ServiceHost) -> None:
    """Say in the log of a worker that has loaded its model, and is to join, why it will get no work, where that is so.

    It joins all the same: `spotwise status` shows it, and it may be there for the time when the mesh serves its model.

    Raises:
        MeshError: the store does not answer.
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
                consequence="no work comes here; give it the model folder that the other workers have",
            )


def require_same_weights(record: RequestRecord, worker_id: str, model_digest: str | None) -> None:
    """Check that a worker may continue a request.

    Raises:
        MeshError: tokens of it were computed with other weights than the worker's.
    """
    if record.model_digest is not None and record.model_digest != model_digest:
        raise MeshError(
            f"the request was begun with the weights {record.model_digest}, and {worker_id} has "
            f"{model_digest or 'none'}; workers of one mesh need the same model folder"
        )
