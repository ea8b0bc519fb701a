"""`spotwise plan`: plans a change of the parallel configuration, and shows its effect."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spotwise.cli.bench.plot import require_plotting
from spotwise.cli.bench.report import report_console, require_writable
from spotwise.cli.errors import OptionError
from spotwise.cli.launch.given_options import parse_size
from spotwise.cli.launch.run_folder import DEFAULT_NAME
from spotwise.cli.plan.document import plan_document
from spotwise.cli.plan.lanes import lanes
from spotwise.cli.plan.model_shapes import parse_model_shape
from spotwise.cli.plan.picture import draw_plan
from spotwise.cli.plan.scenario import parse_config, parse_sizes, scenario
from spotwise.cli.plan.tables import mapping_table, order_table, stages_table, summary_table
from spotwise.cli.reshape import show_live_plan
from spotwise.cli.simulate.documents import write_document
from spotwise.core.migration.mapping.mapper import map_devices
from spotwise.core.migration.planning.link_times import Links
from spotwise.core.migration.planning.plan import PlanPolicy
from spotwise.core.migration.planning.planner import plan_migration
from spotwise.simulator.runs.plots import save


def plan(
    context: typer.Context,
    new: Annotated[str, typer.Option("--to", help="Target configuration: D,P,M or D,P,M,B; or Dp+Dt,P,M,B.")],
    old: Annotated[str | None, typer.Option("--from", help="Current configuration, in the same form.")] = None,
    live: Annotated[
        bool,
        typer.Option("--live", help="Plan from what a running mesh holds, in place of --from and all other options."),
    ] = False,
    name: Annotated[str, typer.Option(help="With --live: which of this machine's meshes.")] = DEFAULT_NAME,
    model: Annotated[
        str, typer.Option(help="gpt-20b, opt-6.7b, llama-30b, bloom-176b, llama2-70b, or a model's folder.")
    ] = "gpt-20b",
    devices: Annotated[
        str, typer.Option(help="Devices of an instance, 1 to 8; for several 8,4: the last for all others.")
    ] = "4",
    leaving: Annotated[str | None, typer.Option(help="Numbers of instances under notice, like 0,3.")] = None,
    grace: Annotated[float, typer.Option(min=0, help="Seconds until these instances end.")] = 30.0,
    lost: Annotated[str | None, typer.Option(help="Numbers of instances lost without notice.")] = None,
    joining: Annotated[
        int | None, typer.Option(min=0, help="Instances that join; by default as many as are needed.")
    ] = None,
    requests: Annotated[
        int | None, typer.Option(min=0, help="Requests that each old pipeline decodes; by default its batch.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of each request that have KV.")] = 576,
    decoded: Annotated[int, typer.Option(min=0, help="Decoded tokens among --tokens.")] = 64,
    buffer: Annotated[
        str | None, typer.Option(help="U_max: the largest receive buffer of an instance, like 2GiB.")
    ] = None,
    progressive: Annotated[
        bool, typer.Option("--progressive/--at-once", help="Stages start when they can, or all at the end.")
    ] = True,
    stage_ms: Annotated[
        float, typer.Option(min=0, help="Iteration time of a new stage, ms; hides transfers of later stages.")
    ] = 0.0,
    network: Annotated[str, typer.Option(help="Bytes a second of an instance's network, each way.")] = "5GB",
    within: Annotated[str, typer.Option(help="Bytes a second between devices of an instance.")] = "10GB",
    storage: Annotated[str, typer.Option(help="Bytes a second from storage into an instance.")] = "1GB",
    share_reads: Annotated[
        bool,
        typer.Option(
            "--share-reads/--read-each",
            help="Newcomers read what no device holds in turn, and pass it on; or each reads all of its own, as a mesh's do.",
        ),
    ] = True,
    rows: Annotated[int, typer.Option(min=1, help="Steps shown.")] = 20,
    plot: Annotated[Path | None, typer.Option(help="Draw the plan into this file.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the whole plan to this file.")] = None,
) -> None:
    """Plan a change of the parallel configuration: new positions of devices, order of transfers, duration."""
    given = _given(context)
    if live:
        if others := [option for each, option in given.items() if each not in ("new", "name", "live")]:
            raise OptionError(
                f"{', '.join(others)}: --live asks the devices of the mesh what they hold; leave one of the two out"
            )
        show_live_plan(new, name)
        return
    if "name" in given:
        raise OptionError(f"--name {name}: only --live has a mesh to name; add --live, or leave it out")
    if "grace" in given and leaving is None:
        raise OptionError(f"--grace {grace:g}: no instance is under notice; say which with --leaving, or leave it out")
    if "stage_ms" in given and not progressive:
        raise OptionError("--stage-ms: with --at-once no stage starts before the others; leave one of the two out")
    if "decoded" in given and decoded > tokens:
        raise OptionError(f"--decoded {decoded}: a request has {tokens} tokens (--tokens), decoded ones among them")
    if old is None:
        raise OptionError("--from is missing; --live plans from what a running mesh holds")
    before, after = parse_config(old, "--from"), parse_config(new, "--to")
    if requests is not None and requests > before.max_batch:
        raise OptionError(
            f"--requests {requests}: a pipeline of --from {before} takes {before.max_batch}; write D,P,M,B"
        )
    console = report_console()
    shape = parse_model_shape(model, lambda text: console.print(text, style="yellow", highlight=False))
    for option, config in (("--from", before), ("--to", after)):
        if (reason := shape.why_not(config.pipeline, config.tensor)) is not None:
            raise OptionError(f"{option} {config}: {shape.name} cannot be cut like that: {reason}")
    links = Links(parse_size(within, "--within"), parse_size(network, "--network"), parse_size(storage, "--storage"))
    limit = None if buffer is None else parse_size(buffer, "--buffer")
    policy = PlanPolicy(progressive=progressive, buffer_bytes=limit, stage_s=stage_ms / 1000, shares_reads=share_reads)
    change = scenario(
        before,
        after,
        parse_sizes(devices, "--devices"),
        leaving,
        lost,
        joining,
        grace,
        before.max_batch if requests is None else requests,
        tokens,
        min(decoded, tokens),
    )
    require_writable(json)
    if plot is not None:
        require_plotting(plot)
    device_map = map_devices(change.before, after, shape)
    try:
        planned = plan_migration(device_map, shape, links, policy)
    except ValueError as error:  # a buffer that is too small for any order
        raise OptionError(f"--buffer {buffer}: {error}") from error
    restart = plan_migration(device_map, shape, links, PlanPolicy(restart=True))
    console.print(summary_table(change, device_map, planned, restart))
    console.print(mapping_table(change, device_map))
    if planned.transfers:
        console.print(order_table(planned, rows))
        console.print("busy links: [bold]k[/] KV, [bold]w[/] weights; stages where they may start", highlight=False)
        console.print(lanes(planned), markup=False, highlight=False)
    console.print(stages_table(planned))
    if plot is not None:
        save(draw_plan(device_map, planned), plot)
        console.print(f"drawn into {plot}", style="dim")
    write_document(plan_document(device_map, planned), json, console)


def _given(context: typer.Context) -> dict[str, str]:
    """Return the options that stand in the command line, by the names of their parameters."""
    sources = {each: context.get_parameter_source(each.name or "") for each in context.command.params}
    return {
        each.name: each.opts[0]
        for each, source in sources.items()
        if each.name is not None and source is not None and source.name == "COMMANDLINE"
    }
