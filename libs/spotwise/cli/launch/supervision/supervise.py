"""Plans and supervises a mesh; as a program, with options as JSON on stdin, the supervisor of `up --detach`."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from spotwise.cli.errors import CommandError, os_error_line
from spotwise.cli.launch.down import end_instances, end_recorded
from spotwise.cli.launch.mesh_processes import mesh_processes
from spotwise.cli.launch.mesh_servers import OPERATOR, WORKER, MeshServers, ServerAccess, principals_of
from spotwise.cli.launch.options import MeshOptions
from spotwise.cli.launch.run_folder import RunFolder, run_folder
from spotwise.cli.launch.service_process import ServiceProcess, StopOrder
from spotwise.cli.launch.supervision.readiness import Readiness, require_reachable
from spotwise.cli.launch.supervision.run_state import RunState, read_state
from spotwise.cli.launch.supervision.service_starts import ServiceStarts
from spotwise.cli.launch.supervision.stop_signals import StopSignals
from spotwise.cli.launch.supervision.supervised_process import SupervisedProcess
from spotwise.cli.launch.supervision.supervisor import Supervisor
from spotwise.cli.launch.worker_cores import LocalHost
from spotwise.cli.mesh.access import operator_access
from spotwise.cli.report import Report
from spotwise.core.access.store_budget import StoreBudget
from spotwise.files.user_folders import NoHomeError, expanded
from spotwise.mesh.embedded.child_process import ProcessIdentity, identify
from spotwise.mesh.embedded.servers import (
    LOOPBACK,
    EmbeddedServer,
    EmbeddedServerError,
    free_port,
    nats_server,
    redis_server,
)
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.process.pulse import has_pulse
from spotwise.mesh.security.secrets import read_mesh_secret, write_mesh_secret
from spotwise.wire.permissions import Principal


def supervise(
    options: MeshOptions, report: Report, on_ready: Callable[[], None], *, signals: StopSignals, verbose: bool = False
) -> int:
    """Run a mesh until it is stopped or fails; returns the command's exit status.

    Raises:
        CommandError: a mesh of that name runs, or a server it needs is missing.
    """
    folder = run_folder(options.name)
    with folder.claimed():
        _clear(folder)
        options = options.model_copy(update={"mesh_secret_file": _mesh_secret(folder)})
        servers = _servers(options)
        services = mesh_processes(options, *servers.urls(WORKER), LocalHost.this(), os.environ)
        embedded = _embedded(servers, principals_of(services), folder, keeps_store=options.keep_store)
        nats_url, redis_url = servers.urls(OPERATOR)
        with (
            Readiness(redis_url, operator_access().tls) as readiness,
            ServiceStarts.opened(services, folder, os.environ, report.say) as starts,
        ):
            processes = [
                *map(_supervised_server, embedded),
                *(_supervised_service(servers.logged_in(service), folder, readiness, starts) for service in services),
            ]
            state = RunState(
                supervisor=identify(os.getpid()) or ProcessIdentity(os.getpid(), 0),
                ready=False,
                options=options,
                nats_url=nats_url,
                redis_url=redis_url,
                servers=servers,
                started_unix_s=time.time(),
                services={},
            )
            supervisor = Supervisor(
                processes,
                state,
                folder.state_path,
                signals,
                report,
                verbose=verbose,
                further_logs=[folder.supervisor_log_path],
                between_looks=lambda: starts.reap([process.pid for process in processes if process.pid is not None]),
            )
            try:
                return supervisor.run(on_ready)
            finally:
                end_instances(options)
                _remove_leftovers(folder)


def _clear(folder: RunFolder) -> None:
    # A killed supervisor leaves its record behind.
    left = read_state(folder.state_path)
    if left is not None:
        end_recorded(left)
    folder.state_path.unlink(missing_ok=True)
    _remove_leftovers(folder)
    folder.pulses_folder.mkdir(mode=0o700, exist_ok=True)
    for log_path in [*folder.logs_folder.glob("*.log"), *folder.logs_folder.glob("*.log.[0-9]")]:
        if log_path != folder.supervisor_log_path:
            log_path.unlink()


def _remove_leftovers(folder: RunFolder) -> None:
    for path in (folder.store_folder, folder.pulses_folder):
        shutil.rmtree(path, ignore_errors=True)


def _mesh_secret(folder: RunFolder) -> Path:
    """Return the file of the mesh's secret: the user's, which processes on other machines may share, or a new one."""
    given = os.environ.get("SPOTWISE_MESH_SECRET_FILE")
    try:
        if not given:
            write_mesh_secret(folder.mesh_secret_path)
            return folder.mesh_secret_path
        path = expanded(given)
        read_mesh_secret(path)
    except OSError as error:
        raise CommandError(
            f"{folder.mesh_secret_path} cannot be written: {error.strerror}; set SPOTWISE_HOME to another folder"
        ) from error
    except (MeshError, NoHomeError) as error:
        raise CommandError(f"SPOTWISE_MESH_SECRET_FILE: {error}") from error
    return path


def _servers(options: MeshOptions) -> MeshServers:
    """Return the servers that the user named, and addresses for those to embed."""
    for url, option in ((options.nats_url, "--nats-url"), (options.redis_url, "--redis-url")):
        if url is not None:
            require_reachable(url, option)
    return MeshServers(
        broker=ServerAccess(url=options.nats_url)
        if options.nats_url
        else ServerAccess.embedded(f"nats://{LOOPBACK}:{free_port()}"),
        store=ServerAccess(url=options.redis_url)
        if options.redis_url
        else ServerAccess.embedded(f"redis://{LOOPBACK}:{free_port()}/0"),
    )


def _embedded(
    servers: MeshServers, users: Sequence[Principal], folder: RunFolder, *, keeps_store: bool
) -> list[EmbeddedServer]:
    kept_in = None
    if keeps_store:
        kept_in = folder.store_folder
        kept_in.mkdir(mode=0o700)
    try:
        return [
            embed(folder.logs_folder, port=urlsplit(access.url).port, users=access.passwords(users))
            for access, embed in (
                (servers.broker, nats_server),
                (servers.store, partial(redis_server, kept_in=kept_in, maxmemory_bytes=_budget().server_bytes)),
            )
            if access.root is not None
        ]
    except EmbeddedServerError as error:
        raise CommandError(f"{error}; or give running servers with --nats-url and --redis-url") from error


def _budget() -> StoreBudget:
    given = os.environ.get("SPOTWISE_STORE_BYTES", "")
    return StoreBudget(int(given)) if given.isdecimal() else StoreBudget()  # what is no number, each member refuses


def _supervised_server(server: EmbeddedServer) -> SupervisedProcess:
    return SupervisedProcess(
        server.name,
        StopOrder.SERVER,
        server.log_path,
        server.start,
        lambda _pid: server.answers(server.port),
        lambda _pid: server.shows_life(),
    )


def _supervised_service(
    service: ServiceProcess, folder: RunFolder, readiness: Readiness, starts: ServiceStarts
) -> SupervisedProcess:
    pulse_path = folder.pulse_path(service.service_id)
    is_healthy = partial(readiness.is_healthy, service.members)
    return SupervisedProcess(
        service.service_id,
        service.stop_order,
        folder.log_path(service.service_id),
        partial(starts.start, service),
        is_healthy,
        lambda pid: has_pulse(pulse_path) or readiness.shows_life(service.members, pid),
        is_essential=service.is_essential,
        service=service.service,
        may_start=partial(starts.may_start, service),
    )


def main() -> None:
    """Supervise the mesh described on stdin."""
    options = MeshOptions.model_validate_json(sys.stdin.read())
    report = Report(Console(width=200))
    try:
        with StopSignals() as signals:
            status = supervise(options, report, lambda: report.say("the mesh is up"), signals=signals)
    except CommandError as error:
        report.say(f"error: {error}")
        status = 1
    except OSError as error:  # on the edge of the program
        report.say(f"error: {os_error_line(error)}")
        status = 1
    sys.exit(status)


if __name__ == "__main__":
    main()
