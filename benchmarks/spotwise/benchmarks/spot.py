"""`spotwise bench spot`: a mesh under a load, while a spot trace takes its instances and gives others.

Three systems under the same trace and load, one after the other: *spotwise*; *rerouting*, whose instances end without notice,
so that what they had is computed again elsewhere; *restart*, whose instances all end at each event of the trace and start anew.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from spotwise.benchmarks.group_faults import undisturbed
from spotwise.benchmarks.moved_streams import Stream, run_stream
from spotwise.benchmarks.spot_report import Alone, SpotFigures, compared_rows, figures_table, plot_runs
from spotwise.benchmarks.spot_run import FIRST_TOKENS, SEED, SpotRequest, SpotRunResult, run_load, trace_start
from spotwise.benchmarks.spot_simulated import agreement_rows, simulate_run
from spotwise.cli.bench.completion import random_prompt
from spotwise.cli.bench.report import environment, progress_bar, report_console, require_writable, write_report
from spotwise.cli.bench.servers import MeshEndpoint, running_mesh, up_arguments
from spotwise.cli.client.gateway_client import GatewayClient
from spotwise.cli.errors import OptionError
from spotwise.cli.launch.given_options import EngineKind
from spotwise.cli.mesh.running import running_state
from spotwise.cli.plan.model_shapes import parse_model_shape
from spotwise.cli.profile_files import read_profile
from spotwise.cli.simulate.market_options import PurchaseOptions, purchase_terms
from spotwise.core.messages.fleet import Market
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.files.fleet_file import FleetFileError, read_fleet
from spotwise.files.spot_traces import SpotTrace, read_spot_trace
from spotwise.files.tables import TraceError
from spotwise.simulator.spotserve.pricing import PurchaseTerms
from spotwise.worker.simulated.groups.part import simulated_model

_FLEET = Path(__file__).parent / "spot_fleet"
#: What the trace's events do, by system.
SYSTEMS = {"spotwise": "notice", "rerouting": "no_notice", "restart": "restart"}
#: The one whose instances get the notices that the simulated world's get.
_SIMULATED = "spotwise"
_PROMPTS = 16
_UP_ARGS = "--dtype bfloat16 --kv-cache 256MiB --threads 1"
#: Without spares, of which few losses would hit one that serves.
POLICY = {"hold_s": 15.0, "spare_instances": 0}
#: Prompts repeat only because each has to be compared with its answer alone: their prefixes are computed each time.
_ENV = {
    "SPOTWISE_PREFIX_CACHING": "false",
    "SPOTWISE_RECOVERY_S": "300",
    "SPOTWISE_MAX_UNREADY_S": "300",
}


def spot(
    trace: Annotated[Path, typer.Option(help="Spot trace; by default a built-in one.")] = _FLEET / "trace.txt",
    compress: Annotated[float, typer.Option(min=1e-3, help="Seconds of the trace in one of the mesh's.")] = 1.0,
    grace: Annotated[float, typer.Option(min=0, help="Seconds of notice, where the trace does not say.")] = 8.0,
    fleet: Annotated[Path, typer.Option(help="Fleet file, of the provider local.")] = _FLEET / "fleet.toml",
    systems: Annotated[str, typer.Option(help="Which, separated by commas; the first is compared.")] = ",".join(
        SYSTEMS
    ),
    rate: Annotated[float, typer.Option(min=1e-3, help="Requests a second, Poisson.")] = 1.0,
    input_tokens: Annotated[int, typer.Option(min=8, help="Tokens of the longest prompt.")] = 192,
    tokens: Annotated[int, typer.Option(min=16, help="Tokens of the longest answer.")] = 192,
    objective: Annotated[
        float, typer.Option(min=1, help="An answer is in time within so often its latency alone.")
    ] = 5.0,
    latency_target: Annotated[
        float, typer.Option(min=0, help="Seconds of a request that are fast enough for the fleet; 0: as few as can be.")
    ] = 0.0,
    up_args: Annotated[str, typer.Option(help="Passed on to `spotwise up`.")] = _UP_ARGS,
    seed: Annotated[int, typer.Option(min=0, help="Of prompts, sizes and arrivals.")] = 1,
    simulate: Annotated[bool, typer.Option(help="Put the simulated world beside spotwise's run.")] = True,
    plot: Annotated[
        Path | None, typer.Option(help="Draw instances, shapes and open requests over time there (PNG).")
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result there.")] = None,
) -> None:
    """Measure goodput, latency, pauses and dollars while spot instances come and go, beside a restart and beside rerouting."""
    require_writable(json)
    require_writable(plot, "--plot")
    names = parse_systems(systems)
    events, on_demand_per_h = _read(trace, fleet)
    policy = POLICY | {"latency_target_s": latency_target}
    terms = _simulated_terms(fleet, policy) if simulate and _SIMULATED in names else None
    model: ModelShape | None = None
    extra = tuple(up_arguments(up_args))
    seconds = events.end_s / compress
    rng = random.Random(seed)
    prompts = [random_prompt(rng, rng.randint(min(32, input_tokens), input_tokens)) for _ in range(_PROMPTS)]
    load = poisson_load(rng, rate, seconds, tokens)
    console = report_console()
    runs: list[SpotRunResult] = []
    with progress_bar(console) as progress:
        task = progress.add_task("each prompt alone", total=len(names) * len(load) + _PROMPTS)
        with running_mesh(("--parallel", "1,1,1", *extra)) as endpoint:
            alone = uvloop.run(_alone(endpoint, prompts, tokens, lambda: progress.advance(task)))
        for name in names:
            progress.update(task, description=name)
            arguments = (
                "--fleet",
                str(fleet),
                "--trace",
                str(trace),
                "--compress",
                str(compress),
                "--grace",
                str(grace),
            )
            settings = _ENV | {"SPOTWISE_FLEET_REACTION": SYSTEMS[name]}
            settings |= {f"SPOTWISE_{field.upper()}": str(value) for field, value in policy.items()}
            with running_mesh((*arguments, *extra), settings) as endpoint:
                first_unix_s = time.time()
                uvloop.run(_first_answer(endpoint, prompts[0]))
                model = model or _model_of(endpoint)
                runs.append(uvloop.run(run_load(endpoint, name, load, prompts, lambda: progress.advance(task))))
                runs[-1].first_s = first_unix_s - trace_start(endpoint.name)
    figures = [SpotFigures.of(run, alone, objective) for run in runs]
    most = max((sample.instances for sample in runs[0].samples), default=0)
    on_demand = None
    if on_demand_per_h is not None:
        on_demand = 1000 * most * on_demand_per_h * runs[0].seconds / 3600 / max(1, len(load))
    console.print(figures_table(figures, on_demand))
    console.print(
        f"in time: within {objective:g} times the latency alone; all on demand: as many instances as {names[0]} had at most "
        f"({most}), all answers in time",
        style="dim",
    )
    rows = compared_rows(figures, on_demand)
    if terms is not None and model is not None:
        live = runs[names.index(_SIMULATED)]
        try:
            rows += agreement_rows(live, simulate_run(live, prompts, events, compress, grace, terms, model))
        except ValueError as error:
            console.print(f"not simulated: {error}", style="yellow")
    write_report(
        rows,
        environment(
            trace=events.name,
            fleet=fleet.name,
            compress=compress,
            rate=rate,
            input_tokens=input_tokens,
            tokens=tokens,
            objective=objective,
            latency_target=latency_target,
            up_args=up_args,
            seed=seed,
        ),
        json,
        console,
        lambda figure: f"{figure:,.2f}",
        runs=[run.as_dict() for run in runs],
        on_demand_per_1000=on_demand,
    )
    if plot is not None:
        plot_runs(runs, plot)
        console.print(f"drawn to {plot}", style="dim")
    if figures[0].lost or figures[0].wrong_tokens or figures[0].recomputed_noticed:
        raise typer.Exit(1)


def parse_systems(text: str) -> list[str]:
    """Return the systems' names; raises `OptionError` for an unknown or repeated one."""
    names = text.replace(" ", "").split(",")
    if not set(names) <= set(SYSTEMS) or len(set(names)) < len(names):
        raise OptionError(f"--systems {text!r}: write some of {', '.join(SYSTEMS)}, each once")
    return names


def poisson_load(rng: random.Random, rate: float, seconds: float, tokens: int) -> list[SpotRequest]:
    """Return the requests of so many seconds; answers of unequal lengths, up to `tokens`."""
    load = []
    at_s = rng.expovariate(rate)
    while at_s < seconds:
        load.append(SpotRequest(at_s, rng.randrange(_PROMPTS), rng.randint(tokens // 8, tokens)))
        at_s += rng.expovariate(rate)
    return load


def _read(trace: Path, fleet: Path) -> tuple[SpotTrace, float | None]:
    """Return the trace, and dollars an hour of the cheapest instance on demand; `None` where none is sold."""
    try:
        events, types = read_spot_trace(trace), read_fleet(fleet).types
    except TraceError as error:
        raise OptionError(f"--trace: {error}") from error
    except FleetFileError as error:
        raise OptionError(f"--fleet: {error}") from error
    prices = [terms.price_per_h for each in types if (terms := each.terms(Market.ON_DEMAND)) is not None]
    return events, min(prices, default=None)


def _simulated_terms(fleet: Path, policy: dict[str, float]) -> PurchaseTerms | None:
    try:
        return purchase_terms(PurchaseOptions.model_validate({"fleet": fleet, **policy}))
    except OptionError as error:
        raise OptionError(f"{error}; --no-simulate leaves the simulated world out") from error


async def _alone(
    endpoint: MeshEndpoint, prompts: Sequence[list[int]], tokens: int, answered: Callable[[], object]
) -> list[Alone]:
    """Send each prompt alone."""
    await undisturbed(endpoint, prompts[:1], tokens)  # what is first is slower
    found = []
    async with GatewayClient(endpoint.url) as client:
        for prompt in prompts:
            stream, sent_s = Stream(prompt, seed=SEED), time.perf_counter()
            await run_stream(client, endpoint.model, stream, tokens)
            found.append(_timed(stream, sent_s))
            answered()
    return found


def _timed(stream: Stream, sent_s: float) -> Alone:
    arrival_s: list[float] = []
    for at_s, count in stream.arrivals:
        arrival_s += [at_s - sent_s] * (count - len(arrival_s))
    return Alone(tuple(stream.token_ids), tuple(arrival_s))


def _model_of(endpoint: MeshEndpoint) -> ModelShape:
    """Return the shape of a mesh's model, or of the one that it pretends to have."""
    options = running_state(endpoint.name).options
    if options.engine is EngineKind.SIMULATED:
        profile = options.profile or (None if options.fleet is None else options.fleet.profile)
        assert profile is not None, "a fleet file's types have profiles"
        costs = read_profile(profile, "--profile")
        return simulated_model(options.model_folder.name, costs.kv_bytes_per_token)
    return parse_model_shape(str(options.model_folder), lambda text: None)


async def _first_answer(endpoint: MeshEndpoint, prompt: list[int]) -> None:
    """Wait until the mesh, which begins without an instance, serves."""
    async with GatewayClient(endpoint.url) as client:
        await run_stream(client, endpoint.model, Stream(prompt), FIRST_TOKENS)
