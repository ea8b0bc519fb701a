"""The cluster and the request times of a run, read from its journals."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import TypeAdapter, ValidationError

from spotwise.benchmarks.recorded import RecordedCluster, RequestTimes
from spotwise.cli.errors import CommandError
from spotwise.core.messages.members import Pool
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.role import SchedulerRole
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.core.worker.role import WorkerRole
from spotwise.mesh.replay.journal_replay import RecordedRequest, RecordedRole


def recorded_cluster(journals: Sequence[RecordedRole]) -> RecordedCluster:
    """Return the cluster of a run.

    Raises:
        CommandError: the journals are not of one whole mesh, or its workers are not alike.
        JournalError: a line is damaged.
    """
    workers = sorted((each for each in journals if each.role == WorkerRole.__name__), key=lambda each: each.member_id)
    scheduler = next((each for each in journals if each.role == SchedulerRole.__name__), None)
    if not workers or scheduler is None:
        raise CommandError("these journals have no scheduler, or no worker: record the whole mesh")
    if len({worker.member_id for worker in workers}) < len(workers):
        raise CommandError("a worker restarted during the recording; record a run without restarts")
    first = workers[0].parameters
    if any(
        (each.parameters["pool"], each.parameters["policy"]) != (first["pool"], first["policy"]) for each in workers
    ):
        raise CommandError("the workers differ in memory or policy; record a mesh of equal workers")
    home_pools = _home_pools(scheduler)
    try:
        return RecordedCluster(
            tuple(home_pools[worker.member_id] for worker in workers),
            first["pool"]["num_blocks"],
            first["pool"]["block_size"],
            TypeAdapter(WorkerPolicy).validate_python(first["policy"] or {}),
            TypeAdapter(PoolPolicy).validate_python(scheduler.parameters["policy"] or {}),
        )
    except (KeyError, ValidationError) as error:
        raise CommandError(f"the journals lack parameters of the cluster: {error!r}") from error


def times_of(requests: Sequence[RecordedRequest]) -> list[RequestTimes]:
    """Return the times of recorded requests."""
    return [RequestTimes(request.ttft_s, request.tpot_s, request.e2e_s) for request in requests]


def _home_pools(scheduler: RecordedRole) -> dict[str, Pool]:
    home_pools: dict[str, Pool] = {}
    for entry in scheduler.entries():
        if entry.event_type == "Member" and entry.event.get("pool") is not None:
            home_pools.setdefault(entry.event["id"], Pool(entry.event["pool"]))
    return home_pools
