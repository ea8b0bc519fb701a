"""`spotwise up`: a whole mesh on this machine with one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from spotwise.cli.launch.fleet_options import fleet_options
from spotwise.cli.launch.gateway_options import open_ports, require_keys, require_pair, require_servers
from spotwise.cli.launch.given_options import EngineKind, FleetChoice, LaunchOptions
from spotwise.cli.launch.model_options import (
    ModelChoice,
    adapters_option,
    aliases_option,
    require_aliases,
    require_device,
    require_other_names,
    resolve_with_progress,
)
from spotwise.cli.launch.options import MeshOptions
from spotwise.cli.launch.run_folder import cache_folder, run_folder
from spotwise.cli.launch.supervision.detach import start_detached
from spotwise.cli.launch.supervision.stop_signals import StopSignals
from spotwise.cli.launch.supervision.supervise import supervise
from spotwise.cli.launch.worker_cores import nodes_here
from spotwise.cli.launch.worker_options import PoolOptions, planned_pools, require_engine_options
from spotwise.cli.option_groups import refused_options, with_option_groups
from spotwise.cli.report import Report, public_access_warning, welcome_lines


@with_option_groups
def up(
    pools: PoolOptions,
    fleet: FleetChoice,
    model: ModelChoice,
    launch: LaunchOptions,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when the mesh is up; stop it with `spotwise down`.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the services' logs.")] = False,
) -> None:
    """Start a mesh: model, broker, store and the six services; Ctrl-C stops it."""
    options = checked_options(pools, fleet, model, launch)
    # Options are refused before a model is fetched in vain.
    if options.engine is not EngineKind.SIMULATED:
        require_device(options.device)
    with run_folder(options.name).claimed():
        pass
    port, *further_ports = open_ports(options.host, options.port, options.gateways)
    console = Console()
    resolved = resolve_with_progress(model.model, console)
    options = options.model_copy(
        update={
            "model_folder": resolved.path,
            "model_name": model.model_name or resolved.name,
            "port": port,
            "further_ports": tuple(further_ports),
        }
    )
    require_other_names(options)
    require_aliases(options)
    raise typer.Exit(run_mesh(options, Report(console), detach=detach, verbose=verbose))


def checked_options(pools: PoolOptions, fleet: FleetChoice, model: ModelChoice, launch: LaunchOptions) -> MeshOptions:
    """Return the options of a mesh, whose model is not looked for yet; raises `OptionError` where they do not go together."""
    is_simulated = launch.engine is EngineKind.SIMULATED
    nodes = 1 if is_simulated else len(nodes_here(launch.device))
    planned = planned_pools(pools, is_bought=fleet.is_bought, nodes=nodes)
    bought = fleet_options(run_folder(launch.name), fleet, is_simulated=is_simulated)
    require_servers(launch)
    require_engine_options(launch, planned)
    require_keys(launch.host, launch.allow_anonymous, launch.redis_url is None, launch.api_keys_file)
    require_pair(launch.tls_cert, launch.tls_key)
    with refused_options():
        options = MeshOptions(
            **dict(planned),
            **dict(launch.with_absolute_paths()),
            model_folder=Path(model.model),
            model_name=model.model_name or model.model,
            shared_weights=cache_folder() / "weights",
            cost_profiles=cache_folder() / "profiles",
            reshapable=pools.parallel is not None or bought is not None,
            fleet=bought,
            adapters=adapters_option(model.adapters),
            model_aliases=aliases_option(model.aliases),
        )
    return options if pools.devices is None else options.with_devices(pools.devices)


def run_mesh(options: MeshOptions, report: Report, *, detach: bool = False, verbose: bool = False) -> int:
    """Start a mesh and, unless detached, run it until it is stopped; returns the command's exit status.

    Raises:
        CommandError: a mesh of that name runs, or a server it needs is missing.
    """
    folder = run_folder(options.name)

    def welcome() -> None:
        for line in welcome_lines(options, folder):
            report.say(line)
        if (warning := public_access_warning(options)) is not None:
            report.say(warning, style="bold yellow")

    with StopSignals() as signals:
        if not detach:
            return supervise(options, report, welcome, signals=signals, verbose=verbose)
        status = start_detached(options, report, signals)
    if status == 0:
        welcome()
    return status
