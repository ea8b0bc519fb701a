"""`spotwise plan`: plans a change of the parallel configuration, and shows its effect."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spotwise.cli.bench.report import report_console, require_plotting, require_writable
from spotwise.cli.errors import OptionError
from spotwise.cli.launch.given_options import parse_size
from spotwise.cli.launch.run_folder import DEFAULT_NAME
from spotwise.cli.option_groups import OptionGroup, given_flags, with_option_groups
from spotwise.cli.plan.model_shapes import parse_model_shape
from spotwise.cli.plan.picture import draw_plan, lanes
from spotwise.cli.plan.scenario import ScenarioOptions, parse_config, scenario
from spotwise.cli.plan.tables import mapping_table, order_table, plan_document, stages_table, summary_table
from spotwise.cli.reshape import show_live_plan
from spotwise.cli.simulate.documents import write_document
from spotwise.core.migration.mapping.mapper import map_devices
from spotwise.core.migration.planning.link_times import Links
from spotwise.core.migration.planning.plan import PlanPolicy
from spotwise.core.migration.planning.planner import plan_migration
from spotwise.simulator.runs.plots import save


class TargetOptions(OptionGroup):
    """The options that say which configurations are changed, and whose."""

    new: Annotated[str, typer.Option("--to", help="Target configuration: D,P,M or D,P,M,B; or Dp+Dt,P,M,B.")]
    old: Annotated[str | None, typer.Option("--from", help="Current configuration, in the same form.")] = None
    live: Annotated[
        bool,
        typer.Option("--live", help="Plan from what a running mesh holds, in place of --from and all other options."),
    ] = False
    name: Annotated[str, typer.Option(help="With --live: which of this machine's meshes.")] = DEFAULT_NAME


class TransferOptions(OptionGroup):
    """The options that say how transfers are ordered, and over which links they go."""

    buffer: Annotated[str | None, typer.Option(help="U_max: the largest receive buffer of an instance, like 2GiB.")] = (
        None
    )
    progressive: Annotated[
        bool, typer.Option("--progressive/--at-once", help="Stages start when they can, or all at the end.")
    ] = True
    stage_ms: Annotated[
        float, typer.Option(min=0, help="Iteration time of a new stage, ms; hides transfers of later stages.")
    ] = 0.0
    network: Annotated[str, typer.Option(help="Bytes a second of an instance's network, each way.")] = "5GB"
    within: Annotated[str, typer.Option(help="Bytes a second between devices of an instance.")] = "10GB"
    storage: Annotated[str, typer.Option(help="Bytes a second from storage into an instance.")] = "1GB"
    share_reads: Annotated[
        bool,
        typer.Option(
            "--share-reads/--read-each",
            help="Newcomers read what no device holds in turn, and pass it on; or each reads all of its own, as a mesh's do.",
        ),
    ] = True

    def links(self) -> Links:
        """Return the links; raises `OptionError` where a size is wrong."""
        return Links(
            parse_size(self.within, "--within"),
            parse_size(self.network, "--network"),
            parse_size(self.storage, "--storage"),
        )

    def policy(self) -> PlanPolicy:
        """Return the order's policy; raises `OptionError` where a size is wrong."""
        return PlanPolicy(
            progressive=self.progressive,
            buffer_bytes=None if self.buffer is None else parse_size(self.buffer, "--buffer"),
            stage_s=self.stage_ms / 1000,
            shares_reads=self.share_reads,
        )


class OutputOptions(OptionGroup):
    """The options that say what is shown and written."""

    rows: Annotated[int, typer.Option(min=1, help="Steps shown.")] = 20
    plot: Annotated[Path | None, typer.Option(help="Draw the plan into this file.")] = None
    document: Annotated[Path | None, typer.Option("--json", help="Write the whole plan to this file.")] = None


@with_option_groups
def plan(target: TargetOptions, given: ScenarioOptions, transfers: TransferOptions, output: OutputOptions) -> None:
    """Plan a change of the parallel configuration: new positions of devices, order of transfers, duration."""
    if target.live:
        others = [flag for group in (given, transfers, output) for flag in given_flags(group)]
        if others := given_flags(target, ("old",)) + others:
            raise OptionError(
                f"{', '.join(others)}: --live asks the devices of the mesh what they hold; leave one of the two out"
            )
        show_live_plan(target.new, target.name)
        return
    if given_flags(target, ("name",)):
        raise OptionError(f"--name {target.name}: only --live has a mesh to name; add --live, or leave it out")
    given.require_consistent()
    if given_flags(transfers, ("stage_ms",)) and not transfers.progressive:
        raise OptionError("--stage-ms: with --at-once no stage starts before the others; leave one of the two out")
    if target.old is None:
        raise OptionError("--from is missing; --live plans from what a running mesh holds")
    before, after = parse_config(target.old, "--from"), parse_config(target.new, "--to")
    console = report_console()
    shape = parse_model_shape(given.model, lambda text: console.print(text, style="yellow", highlight=False))
    for option, config in (("--from", before), ("--to", after)):
        if (reason := shape.why_not(config.pipeline, config.tensor)) is not None:
            raise OptionError(f"{option} {config}: {shape.name} cannot be cut like that: {reason}")
    links, policy = transfers.links(), transfers.policy()
    change = scenario(before, after, given)
    require_writable(output.document)
    if output.plot is not None:
        require_plotting(output.plot)
    device_map = map_devices(change.before, after, shape)
    try:
        planned = plan_migration(device_map, shape, links, policy)
    except ValueError as error:  # a buffer that is too small for any order
        raise OptionError(f"--buffer {transfers.buffer}: {error}") from error
    restart = plan_migration(device_map, shape, links, PlanPolicy(restart=True))
    console.print(summary_table(change, device_map, planned, restart))
    console.print(mapping_table(change, device_map))
    if planned.transfers:
        console.print(order_table(planned, output.rows))
        console.print("busy links: [bold]k[/] KV, [bold]w[/] weights; stages where they may start", highlight=False)
        console.print(lanes(planned), markup=False, highlight=False)
    console.print(stages_table(planned))
    if output.plot is not None:
        save(draw_plan(device_map, planned), output.plot)
        console.print(f"drawn into {output.plot}", style="dim")
    write_document(plan_document(device_map, planned), output.document, console)
