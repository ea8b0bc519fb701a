"""`spotwise down`: stops a mesh, and any leftover process that its record names by pid and start time; no other process."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Annotated

import typer

from spotwise.cli.errors import CommandError
from spotwise.cli.launch.options import MeshOptions
from spotwise.cli.launch.run_folder import DEFAULT_NAME, RunFolder, run_folder
from spotwise.cli.launch.supervision.run_state import RunState, read_state
from spotwise.cloud.instances import ProviderError
from spotwise.cloud.local_meshes import release_mesh
from spotwise.mesh.embedded.child_process import ProcessIdentity, is_alive, send_signal

# Four turns of the supervisor's grace, and some.
_SUPERVISOR_GRACE_S = 30.0
_POLL_S = 0.05


def down(
    name: Annotated[str, typer.Option(help="Which mesh, where several run side by side.")] = DEFAULT_NAME,
) -> None:
    """Stop the mesh that `spotwise up` started, and wait until all its processes have ended."""
    folder = run_folder(name)
    state = read_state(folder.state_path)
    if state is None:
        _stop_without_record(folder)
        return
    is_running = send_signal(state.supervisor, signal.SIGTERM)
    if is_running:
        _wait_until_gone(state.supervisor)
    end_recorded(read_state(folder.state_path) or state)
    folder.state_path.unlink(missing_ok=True)
    typer.echo(
        f"mesh {name!r} is stopped"
        if is_running
        else f"mesh {name!r} had lost its supervisor; its processes are stopped"
    )


def _stop_without_record(folder: RunFolder) -> None:
    """Stop a mesh whose record is missing or damaged by the process that holds its name, which ends all the others."""
    holder = folder.holder()
    if holder is not None and send_signal(holder, signal.SIGTERM):
        _wait_until_gone(holder)
        if is_alive(holder):
            raise CommandError(
                f"process {holder.pid} of mesh {folder.name!r} does not end; look at it with: ps -fp {holder.pid}"
            )
        typer.echo(f"mesh {folder.name!r} is stopped; its record {folder.state_path} was damaged")
    else:
        typer.echo(f"nothing to stop: no mesh named {folder.name!r} runs here")
    folder.state_path.unlink(missing_ok=True)


def end_recorded(state: RunState) -> None:
    """End every recorded process that still runs, and wait for it; raises `CommandError` where one does not end."""
    processes = (state.supervisor, *state.processes())
    for process in processes:
        send_signal(process, signal.SIGKILL)
    deadline_s = time.monotonic() + 10.0
    while left := [process.pid for process in processes if is_alive(process)]:
        if time.monotonic() > deadline_s:
            raise CommandError(f"processes {left} do not end; look at them with: ps -fp {','.join(map(str, left))}")
        time.sleep(_POLL_S)
    end_instances(state.options)


def end_instances(options: MeshOptions) -> None:
    """End the local instances of a mesh; raises `CommandError` where one does not end."""
    if options.fleet is None:
        return
    try:
        asyncio.run(release_mesh(options.fleet.folder, options.name, grace_s=0.0))
    except ProviderError as error:
        raise CommandError(f"instances of mesh {options.name!r} do not end: {error}") from error


def _wait_until_gone(process: ProcessIdentity) -> None:
    deadline_s = time.monotonic() + _SUPERVISOR_GRACE_S
    while is_alive(process) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
