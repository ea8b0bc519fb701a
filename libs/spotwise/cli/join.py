"""`spotwise join`: one more worker for a running mesh."""

from __future__ import annotations

import asyncio
import os
import uuid
from enum import StrEnum
from typing import Annotated

import typer

from spotwise.cli.errors import CommandError
from spotwise.cli.launch.given_options import size_option
from spotwise.cli.launch.mesh_processes import joining_worker
from spotwise.cli.launch.run_folder import DEFAULT_NAME
from spotwise.cli.launch.worker_cores import LocalHost
from spotwise.cli.launch.worker_options import require_worker_id
from spotwise.cli.mesh.access import open_store, operator_access
from spotwise.cli.mesh.options import MeshName
from spotwise.cli.mesh.running import running_state
from spotwise.mesh.service.registration import holder


class HomePool(StrEnum):
    """The home pool of a worker."""

    PROMPT = "prompt"
    TOKEN = "token"
    MIXED = "mixed"


def join(
    pool: Annotated[HomePool, typer.Argument(help="Home pool of the worker.")],
    worker_id: Annotated[str | None, typer.Option("--id", help="Id of the worker; by default a new one.")] = None,
    kv_cache_bytes: Annotated[
        int | None, size_option("--kv-cache", help="KV memory of the worker, for instance 4GiB.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Compute threads of the worker.")] = None,
    name: MeshName = DEFAULT_NAME,
) -> None:
    """Add a worker to a running mesh, in the foreground; Ctrl-C or `spotwise drain` removes it again."""
    worker_id = worker_id or f"{pool}-{uuid.uuid4().hex[:6]}"
    require_worker_id(worker_id, "--id")
    own = {"threads": threads, "kv_cache_bytes": kv_cache_bytes}
    changes = {name: value for name, value in own.items() if value is not None}
    state = running_state(name)
    asyncio.run(_require_free(state.redis_url, worker_id))
    plan = joining_worker(
        state.options.model_copy(update=changes), *state.worker_urls(), pool, worker_id, LocalHost.this()
    )
    typer.echo(f"{worker_id} joins mesh {name!r}", err=True)
    os.execve(plan.argv[0], plan.argv, plan.environment(os.environ))


async def _require_free(redis_url: str, worker_id: str) -> None:
    """Refuse a taken id at once, which the worker would find out only after loading its libraries."""
    async with open_store(redis_url) as store:
        other = await holder(store, worker_id, operator_access())
    if other is not None:
        raise CommandError(
            f"--id {worker_id!r} is in use by pid {other.pid} on {other.host}; choose another, or `spotwise drain` that one"
        )
