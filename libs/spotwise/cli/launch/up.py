"""`spotwise up`: a whole mesh on this machine with one command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console

from spotwise.cli.errors import OptionError
from spotwise.cli.launch.fleet_options import fleet_options
from spotwise.cli.launch.gateway_options import open_ports, require_keys, require_pair
from spotwise.cli.launch.model_options import (
    adapters_option,
    aliases_option,
    require_aliases,
    require_device,
    require_other_names,
    resolve_with_progress,
)
from spotwise.cli.launch.options import (
    EngineKind,
    GroupShape,
    MeshOptions,
    SimulatedKv,
    parse_size,
    unnamed_pools,
)
from spotwise.cli.launch.run_folder import DEFAULT_NAME, cache_folder, run_folder
from spotwise.cli.launch.supervision.detach import start_detached
from spotwise.cli.launch.supervision.stop_signals import StopSignals
from spotwise.cli.launch.supervision.supervise import supervise
from spotwise.cli.launch.worker_options import PoolShapes, parse_parallel, policy_name
from spotwise.cli.mesh.server_addresses import server_addresses
from spotwise.cli.profile_files import read_profile
from spotwise.cli.report import Report, public_access_warning, welcome_lines
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.worker.policy import Scheduling
from spotwise.core.worker.scheduling.policies import served_policies
from spotwise.engine.model.model_store import DEFAULT_MODEL


def up(
    prompt_workers: Annotated[
        int | None,
        typer.Option(min=0, help="Workers of the prompt phase (prefill); 1, or none beside --mixed-workers."),
    ] = None,
    token_workers: Annotated[
        int | None,
        typer.Option(min=0, help="Workers of the token phase (decode); 1, or none beside --mixed-workers."),
    ] = None,
    mixed_workers: Annotated[
        int, typer.Option(min=0, help="Workers of both phases; named alone, there are no others.")
    ] = 0,
    parallel: Annotated[
        str | None,
        typer.Option(
            metavar="D,P,M",
            help="D workers of both phases, each of P stages of M shards, instead of the three options above.",
        ),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --parallel: processes that compute; those that no worker needs at first wait for a re-shape.",
        ),
    ] = None,
    fleet: Annotated[
        Path | None,
        typer.Option(
            help="Fleet file (TOML): machines are bought and given back for the load, instead of all the above."
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Spot trace by which instances of this computer come and go; --fleet may be left out."),
    ] = None,
    compress: Annotated[
        float | None, typer.Option(min=1e-3, help="Seconds of the trace in one of the mesh's; 1 by default.")
    ] = None,
    grace: Annotated[
        float | None, typer.Option(min=0, help="Seconds from a notice to the loss, where the trace does not say.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(min=0, help="Dollars an hour that a fleet may cost; without a limit by default.")
    ] = None,
    on_demand_floor: Annotated[
        int | None, typer.Option(min=0, help="On-demand instances of a fleet that serve, at least; 0 by default.")
    ] = None,
    spares: Annotated[
        int | None, typer.Option(min=0, help="Instances of a fleet held beside those that serve; 1 by default.")
    ] = None,
    latency_target: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Seconds of a request that are fast enough for a fleet; 0: as few as can be; by default twice those of a "
            "request without load.",
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="A folder, a GGUF file or a hub id.")] = DEFAULT_MODEL,
    model_name: Annotated[str | None, typer.Option(help="Model name in requests; by default the model's own.")] = None,
    model_alias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=MODEL",
            help="A further name of the model, or of an adapter; *=MODEL: any name that is not known; repeatable.",
        ),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FOLDER",
            help="A LoRA adapter (PEFT's layout) that requests may name as their model; repeatable.",
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    host: Annotated[str, typer.Option(help="Address the gateway listens on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the gateway; 0 takes a free one.")] = 8000,
    allow_anonymous: Annotated[
        bool,
        typer.Option("--allow-anonymous", help="With another --host: clients need no key while there is none."),
    ] = False,
    api_keys_file: Annotated[
        Path | None,
        typer.Option(envvar="SPOTWISE_API_KEYS_FILE", help="File of API keys, as `spotwise keys hash` prints them."),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(envvar="SPOTWISE_TLS_CERT", help="Certificate chain (PEM) of the gateway, which then speaks TLS."),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(envvar="SPOTWISE_TLS_KEY", help="Its private key (PEM), private to its owner.")
    ] = None,
    gateways: Annotated[
        int, typer.Option(min=1, help="Gateways, on --port and the ports that follow it; any serves any request.")
    ] = 1,
    schedulers: Annotated[
        int, typer.Option(min=1, help="Cluster schedulers: one acts, the others stand by and take over.")
    ] = 1,
    planners: Annotated[
        int, typer.Option(min=1, help="Migration planners: one acts, the others stand by and take over.")
    ] = 1,
    nats_url: Annotated[str | None, typer.Option(help="A running NATS server, instead of an embedded one.")] = None,
    redis_url: Annotated[str | None, typer.Option(help="A running Redis server, instead of an embedded one.")] = None,
    keep_store: Annotated[
        bool,
        typer.Option(
            "--keep-store",
            help="The embedded Redis writes an append-only file while the mesh runs, and its restart forgets nothing.",
        ),
    ] = False,
    kv_cache: Annotated[str | None, typer.Option(help="KV memory of each worker, for instance 4GiB.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Compute threads of each worker.")] = None,
    engine: Annotated[
        EngineKind, typer.Option(help="simulated: only take the time; hundreds fit on one machine.")
    ] = EngineKind.TORCH,
    policy: Annotated[
        str | None,
        typer.Option(
            parser=policy_name,
            metavar=f"<{'|'.join(served_policies())}>",
            help="Scheduling policy; mlfq: no short request waits behind a long one.",
        ),
    ] = None,
    kv_host: Annotated[
        str | None, typer.Option(help="Host memory of each worker for swapped KV, for instance 16GiB.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="What a worker costs, for mlfq or simulated ones: a file of `spotwise profile`.")
    ] = None,
    speed: Annotated[
        float | None, typer.Option(min=1e-6, help="Speed of a simulated worker over that of its profile.")
    ] = None,
    simulated_kv: Annotated[
        SimulatedKv | None, typer.Option(help="KV hand-offs of simulated workers: timed, or real bytes over UCX.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the mesh; each mesh of a machine has its own.")] = DEFAULT_NAME,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds all services together may take to start.")] = 180.0,
    hang_timeout: Annotated[
        float,
        typer.Option(min=0, help="Seconds without activity after which a process is replaced; 0: never."),
    ] = 15.0,
    log_size: Annotated[
        str, typer.Option(help="Size at which a process's log begins anew; the last two are kept beside it.")
    ] = "16MiB",
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when the mesh is up; stop it with `spotwise down`.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the services' logs.")] = False,
) -> None:
    """Start a mesh: model, broker, store and the six services; Ctrl-C stops it."""
    folder = run_folder(name)
    shapes = PoolShapes()
    if fleet is not None or trace is not None:
        if parallel is not None or devices is not None or prompt_workers or token_workers or mixed_workers:
            raise OptionError("--fleet and --trace: the planner decides what serves; leave out workers and devices")
    elif parallel is not None:
        if prompt_workers or token_workers or mixed_workers:
            raise OptionError("--parallel says how many workers there are; leave out --prompt-workers and its like")
        shapes = parse_parallel(parallel)
        prompt_workers, token_workers, mixed_workers = (
            0 if config is None else config.data for config in (shapes.prompt, shapes.token, shapes.mixed)
        )
    elif devices is not None:
        raise OptionError("--devices: only workers of --parallel can be re-shaped; add for instance --parallel 1,1,1")
    fleet_mesh = fleet_options(
        folder,
        fleet,
        trace,
        compress=compress,
        grace_s=grace,
        budget_per_h=budget,
        on_demand_floor=on_demand_floor,
        spares=spares,
        latency_target_s=latency_target,
        is_simulated=engine is EngineKind.SIMULATED,
    )
    if fleet_mesh is not None:
        prompt_workers = token_workers = 0
    prompt_workers, token_workers = unnamed_pools(prompt_workers, token_workers, mixed_workers)
    for url, option in ((nats_url, "--nats-url"), (redis_url, "--redis-url")):
        if url is not None:
            server_addresses(url, option)
    if keep_store and redis_url is not None:
        raise OptionError(
            "--keep-store: what the server of --redis-url keeps is its own configuration's; leave one out"
        )
    given = {"--speed": speed, "--simulated-kv": simulated_kv}
    if engine is not EngineKind.SIMULATED and any(value is not None for value in given.values()):
        names = ", ".join(option for option, value in given.items() if value is not None)
        raise OptionError(f"{names}: only a simulated mesh has that option; add --engine simulated")
    has_queues = (policy or os.environ.get("SPOTWISE_POLICY")) == Scheduling.MLFQ
    if profile is not None and not has_queues and engine is not EngineKind.SIMULATED:
        raise OptionError("--profile: only mlfq and simulated workers use it; add --policy mlfq or --engine simulated")
    if kv_host is not None and not has_queues and "SPOTWISE_WHEN_FULL" not in os.environ:
        raise OptionError("--kv-host: nothing is swapped; add --policy mlfq")
    if profile is not None:
        costs = read_profile(profile, "--profile")  # before anything starts; the workers read it again
        if engine is EngineKind.SIMULATED and costs.link is None and prompt_workers + token_workers:
            raise OptionError(
                f"--profile {profile}: it has no cost of hand-offs; serve with mixed workers alone (--prompt-workers 0 "
                "--token-workers 0 --mixed-workers 2), or record a mesh that hands over with `spotwise profile`"
            )
    require_keys(host, allow_anonymous, redis_url is None, api_keys_file)
    require_pair(tls_cert, tls_key)
    try:
        options = MeshOptions(
            name=name,
            prompt_workers=prompt_workers,
            token_workers=token_workers,
            mixed_workers=mixed_workers,
            prompt_shape=_shape(shapes.prompt),
            token_shape=_shape(shapes.token),
            mixed_shape=_shape(shapes.mixed),
            model_folder=Path(model),
            model_name=model_name or model,
            shared_weights=cache_folder() / "weights",
            cost_profiles=cache_folder() / "profiles",
            dtype=dtype,
            device=device,
            host=host,
            port=port,
            allow_anonymous=allow_anonymous,
            api_keys_file=api_keys_file and api_keys_file.absolute(),
            tls_cert=tls_cert and tls_cert.absolute(),
            tls_key=tls_key and tls_key.absolute(),
            schedulers=schedulers,
            planners=planners,
            nats_url=nats_url,
            redis_url=redis_url,
            keep_store=keep_store,
            kv_cache_bytes=None if kv_cache is None else parse_size(kv_cache, "--kv-cache"),
            threads=threads,
            policy=policy,
            kv_host_bytes=None if kv_host is None else parse_size(kv_host, "--kv-host"),
            engine=engine,
            profile=None if profile is None else profile.absolute(),
            speed=1.0 if speed is None else speed,
            simulated_kv=simulated_kv or SimulatedKv.TIMED,
            start_timeout_s=timeout,
            hang_timeout_s=hang_timeout,
            log_bytes=parse_size(log_size, "--log-size"),
            reshapable=parallel is not None or fleet_mesh is not None,
            fleet=fleet_mesh,
            adapters=adapters_option(adapter or ()),
            model_aliases=aliases_option(model_alias or ()),
        )
        if devices is not None:
            options = options.with_devices(devices)
    except ValidationError as error:
        raise OptionError(
            "; ".join(problem["msg"].removeprefix("Value error, ") for problem in error.errors())
        ) from error
    # Options are refused before a model is fetched in vain.
    if engine is not EngineKind.SIMULATED:
        require_device(device)
    with folder.claimed():
        pass
    port, *further_ports = open_ports(host, port, gateways)
    console = Console()
    resolved = resolve_with_progress(model, console)
    options = options.model_copy(
        update={
            "model_folder": resolved.path,
            "model_name": model_name or resolved.name,
            "port": port,
            "further_ports": tuple(further_ports),
        }
    )
    require_other_names(options)
    require_aliases(options)
    raise typer.Exit(run_mesh(options, Report(console), detach=detach, verbose=verbose))


def _shape(config: ParallelConfig | None) -> GroupShape:
    return GroupShape() if config is None else GroupShape(stages=config.pipeline, shards=config.tensor)


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
