"""`spotwise status`: the members of the mesh, each queried for its own state."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from spotwise.cli.launch.run_folder import DEFAULT_NAME
from spotwise.cli.launch.supervision.run_state import RunState, ServiceState
from spotwise.cli.mesh.options import MeshName, RedisUrl
from spotwise.cli.mesh.running import find_store, running_state
from spotwise.cli.mesh.watching import watch as watch_live

if TYPE_CHECKING:
    from rich.table import Table

_PIPE_WIDTH = 240


def status(
    name: MeshName = DEFAULT_NAME,
    redis_url: RedisUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second until Ctrl-C.")] = False,
) -> None:
    """Show services, pools, queues and KV use. Exit status 1 where a member is not healthy, is refused, or one is missing, and
    where the store had no more memory within the last minute.
    """
    url = find_store(name, redis_url)
    # Only now: the clients of gRPC and the store take longer to import than all else here.
    from spotwise.cli.mesh.status_table import (
        as_dict,
        gather_status,
        missing_services,
        status_table,
        store_problems,
        store_use,
        use_line,
        with_other_weights,
    )

    console = _console()

    def shown() -> Table:
        members, uses = asyncio.run(gather_status(url)), asyncio.run(store_use(url))
        return status_table(members, [*store_problems(uses, time.time()), use_line(uses)])

    if watch:
        watch_live(shown, console)
        return
    members, uses = asyncio.run(gather_status(url)), asyncio.run(store_use(url))
    if as_json:
        console.print_json(json.dumps([as_dict(member) for member in members]))
    else:
        console.print(status_table(members, [use_line(uses)]))
    problems = [
        *missing_services(members),
        *store_problems(uses, time.time()),
        *(_unhealthy(running_state(name)) if redis_url is None else ()),
    ]
    for problem in problems:
        typer.echo(problem, err=True)
    if problems or not all(member.serving for member in members) or with_other_weights(members):
        raise typer.Exit(1)


def _unhealthy(state: RunState) -> list[str]:
    return [
        f"{service_id} is {service.state.value}, after {service.restarts} restarts"
        for service_id, service in state.services.items()
        if service.state not in (ServiceState.HEALTHY, ServiceState.LEFT)
    ]


def _console() -> Console:
    """A pipe has no width; its reader wants whole words."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)
