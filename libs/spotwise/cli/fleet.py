"""`spotwise fleet`: the instances of a mesh, how long they may live, what they cost, and why each is there."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import time
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table

from spotwise.cli.errors import CommandError
from spotwise.cli.launch.run_folder import DEFAULT_NAME
from spotwise.cli.lazy_group import lazy_group
from spotwise.cli.mesh.access import connect_bus
from spotwise.cli.mesh.options import MeshName, NatsUrl
from spotwise.cli.mesh.running import find_broker
from spotwise.cli.mesh.watching import watch as watch_live
from spotwise.cli.quantities import duration_text
from spotwise.core.fleet.learned_hazards import LearnedHazards
from spotwise.core.messages.fleet import (
    FleetInstance,
    FleetReported,
    FleetView,
    InstanceOffer,
    InstanceState,
    Market,
    ShowFleet,
)
from spotwise.mesh.ports.ports import MeshError, NoResponderError, ReplyTimeoutError
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode

_REPLY_TIMEOUT_S = 5.0
_PIPE_WIDTH = 200
_STYLES = {
    InstanceState.STARTING: "yellow",
    InstanceState.RUNNING: "green",
    InstanceState.LEAVING: "red",
    InstanceState.GONE: "dim",
}


app = typer.Typer(
    add_completion=False,
    cls=lazy_group(
        {
            "orphans": "spotwise.cli.fleet_orphans:orphans",
            "user-data": "spotwise.cli.fleet_orphans:print_user_data",
        }
    ),
)


@app.callback(invoke_without_command=True)
def fleet(
    context: typer.Context,
    name: MeshName = DEFAULT_NAME,
    nats_url: NatsUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second until Ctrl-C.")] = False,
    gone: Annotated[bool, typer.Option("--gone", help="Also instances that are gone.")] = False,
) -> None:
    """Show the instances of a mesh: lives, prices, and why each is there; and what can be had."""
    if context.invoked_subcommand is not None:
        return
    url = find_broker(name, nats_url)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_WIDTH)
    if watch:
        watch_live(lambda: _shown(url, gone=gone), console)
        return
    view = asyncio.run(ask_fleet(url))
    if as_json:
        console.print_json(json.dumps(dataclasses.asdict(view)))
    elif view.report is None:
        raise CommandError(view.why)
    else:
        console.print(fleet_view(view, view.report, time.time(), gone=gone))


async def ask_fleet(nats_url: str) -> FleetView:
    """Return the planner's view of a mesh's fleet; raises `CommandError` where no planner or no broker answers."""
    try:
        bus = await connect_bus(nats_url, "spotwise-fleet")
        try:
            answer = decode(await bus.request(subjects.SHOW_FLEET, encode(ShowFleet()), _REPLY_TIMEOUT_S))
        finally:
            await bus.close()
    except NoResponderError as error:
        raise CommandError("no migration planner is in the mesh; `spotwise status` shows the members") from error
    except ReplyTimeoutError as error:
        raise CommandError(
            f"no planner has answered within {_REPLY_TIMEOUT_S:g} s; see whether the store answers (`spotwise status`)"
        ) from error
    except MeshError as error:
        raise CommandError(str(error)) from error
    if not isinstance(answer, FleetView):
        raise CommandError("cannot read the planner's answer; is it of another version?")
    return answer


def _shown(url: str, *, gone: bool) -> RenderableType:
    view = asyncio.run(ask_fleet(url))
    return view.why if view.report is None else fleet_view(view, view.report, time.time(), gone=gone)


def fleet_view(view: FleetView, report: FleetReported, now: float, *, gone: bool = False) -> RenderableType:
    """Return a fleet for people."""
    parts: list[RenderableType] = [*_summary(view, report), _instances(view, report, now, gone=gone)]
    refused = [offer for offer in report.offers if offer.refused_until_s > now]
    parts += [_refusal(offer, now) for offer in refused]
    parts.append(_offers(report))
    return Group(*parts)


def _summary(view: FleetView, report: FleetReported) -> list[str]:
    load = (
        f"load: {view.rate:.2f} requests/s (CV {view.cv:.2f}), {view.input_tokens} tokens in, {view.output_tokens} out"
    )
    each = "more come than it serves" if view.request_s is None else f"{view.request_s:.2f} s a request"
    budget = "no budget" if view.budget_per_h is None else f"budget {view.budget_per_h:.4g}"
    lines = [
        load,
        f"chosen: {view.config or 'none'}, serving: {view.serving or 'none'}"
        + (f" ({view.throughput:.2f} requests/s at most, {each})" if view.config else ""),
        f"price: {view.price_per_h:.4g} $/h now, {budget}; {report.spent:.4f} $ so far; provider {report.provider}",
    ]
    if view.why:
        lines.append(f"why: {view.why}")
    if report.problem:
        lines.append(f"[red]the provider does not list its instances: {report.problem}")
    return lines


def _instances(view: FleetView, report: FleetReported, now: float, *, gone: bool) -> Table:
    table = Table(header_style="bold")
    for heading in ("instance", "type", "market", "zone", "state"):
        table.add_column(heading, no_wrap=True)
    for heading in ("age", "expected to live on", "$/h"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("why it is there")
    reasons = {each.instance_id: each.reason for each in view.reasons}
    for each in report.instances:
        if each.state is InstanceState.GONE and not gone:
            continue
        table.add_row(
            *(each.id, each.type_name, each.market.value, each.zone, f"[{_STYLES[each.state]}]{each.state.value}"),
            duration_text(max(0.0, now - each.launched_s)),
            _life(each, report, now),
            f"{each.price_per_h:.4g}",
            each.why_leaving or reasons.get(each.id, ""),
        )
    return table


def _life(instance: FleetInstance, report: FleetReported, now: float) -> str:
    if instance.state is InstanceState.GONE:
        return ""
    if instance.leaves_at_s is not None:
        return f"{duration_text(max(0.0, instance.leaves_at_s - now))} at most"
    if instance.market is Market.ON_DEMAND:
        return "stays"
    remaining_s = LearnedHazards(report.lives).remaining_s(instance, now)
    return "unknown" if math.isinf(remaining_s) else duration_text(remaining_s)


def _offers(report: FleetReported) -> Table:
    table = Table(title="on offer", title_justify="left", header_style="bold")
    for heading in ("type", "market", "zone"):
        table.add_column(heading, no_wrap=True)
    for heading in ("$/h", "at most"):
        table.add_column(heading, justify="right", no_wrap=True)
    for offer in report.offers:
        table.add_row(
            *(offer.type_name, offer.market.value, offer.zone or "any"), f"{offer.price_per_h:.4g}", str(offer.most)
        )
    return table


def _refusal(offer: InstanceOffer, now: float) -> str:
    zone = f" in {offer.zone}" if offer.zone else ""
    left_s = offer.refused_until_s - now
    return f"[yellow]{offer.type_name}, {offer.market.value}{zone}: not asked for {left_s:.0f} s more: {offer.refusal}"
