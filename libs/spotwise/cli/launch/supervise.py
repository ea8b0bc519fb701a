"""Plans and supervises a mesh; as a program, with options as JSON on stdin, the supervisor of `up --detach`."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from rich.console import Console

from spotwise.cli.errors import CommandError
from spotwise.cli.launch.down import end_instances, end_recorded
from spotwise.cli.launch.plan import plan_services
from spotwise.cli.launch.readiness import Readiness, require_reachable
from spotwise.cli.launch.run_folder import RunFolder, run_folder
from spotwise.cli.launch.run_state import RunState, read_state
from spotwise.cli.launch.service_process import ServiceProcess, StopOrder
from spotwise.cli.launch.stop_signals import StopSignals
from spotwise.cli.launch.supervised_process import SupervisedProcess
from spotwise.cli.launch.supervisor import Supervisor
from spotwise.cli.launch.worker_plan import LocalHost
from spotwise.cli.options import MeshOptions
from spotwise.cli.report import Report
from spotwise.mesh.child_process import ProcessIdentity, identify, start_child
from spotwise.mesh.embedded import EmbeddedServer, EmbeddedServerError, nats_server, redis_server


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
        servers, nats_url, redis_url = _servers(options, folder)
        with Readiness(redis_url) as readiness:
            processes = [
                *map(_supervised_server, servers),
                *(
                    _supervised_service(service, folder, readiness)
                    for service in plan_services(options, nats_url, redis_url, LocalHost.this())
                ),
            ]
            state = RunState(
                supervisor=identify(os.getpid()) or ProcessIdentity(os.getpid(), 0),
                ready=False,
                options=options,
                nats_url=nats_url,
                redis_url=redis_url,
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
            )
            try:
                return supervisor.run(on_ready)
            finally:
                end_instances(options)


def _clear(folder: RunFolder) -> None:
    # A killed supervisor leaves its record behind.
    left = read_state(folder.state_path)
    if left is not None:
        end_recorded(left)
    folder.state_path.unlink(missing_ok=True)
    for log_path in [*folder.logs_folder.glob("*.log"), *folder.logs_folder.glob("*.log.[0-9]")]:
        if log_path != folder.supervisor_log_path:
            log_path.unlink()


def _servers(options: MeshOptions, folder: RunFolder) -> tuple[list[EmbeddedServer], str, str]:
    embedded: list[EmbeddedServer] = []
    try:
        for url, option, embed in (
            (options.nats_url, "--nats-url", nats_server),
            (options.redis_url, "--redis-url", redis_server),
        ):
            if url is None:
                embedded.append(embed(folder.logs_folder, password=secrets.token_urlsafe(24)))
            else:
                require_reachable(url, option)
    except EmbeddedServerError as error:
        raise CommandError(f"{error}; or give running servers with --nats-url and --redis-url") from error
    urls: Iterator[str] = (server.url for server in embedded)
    return embedded, options.nats_url or next(urls), options.redis_url or next(urls)


def _supervised_server(server: EmbeddedServer) -> SupervisedProcess:
    def answers(_pid: int) -> bool:
        return server.answers(server.port)

    return SupervisedProcess(server.name, StopOrder.SERVER, server.log_path, server.start, answers, answers)


def _supervised_service(service: ServiceProcess, folder: RunFolder, readiness: Readiness) -> SupervisedProcess:
    log_path = folder.log_path(service.service_id)
    start = partial(start_child, service.argv, log_path=log_path, env={**os.environ, **service.env})
    is_healthy = partial(readiness.is_healthy, service.members)
    return SupervisedProcess(
        service.service_id,
        service.stop_order,
        log_path,
        start,
        is_healthy,
        partial(readiness.shows_life, service.members),
        is_essential=service.is_essential,
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
    sys.exit(status)


if __name__ == "__main__":
    main()
