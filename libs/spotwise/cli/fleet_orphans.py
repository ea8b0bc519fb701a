"""`spotwise fleet orphans` and `user-data`: instances of a cloud that no living mesh knows, and how they end themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from spotwise.cli.errors import CommandError
from spotwise.cli.fleet import ask_fleet
from spotwise.cli.launch.run_folder import DEFAULT_NAME
from spotwise.cli.mesh.options import NatsUrl
from spotwise.cli.mesh.running import find_broker
from spotwise.cli.quantities import duration_text
from spotwise.cloud.ec2_client import Ec2Options
from spotwise.cloud.ec2_dead_man import renewal_s, user_data
from spotwise.cloud.ec2_instances import Ec2Instances
from spotwise.cloud.instances import AcquiredInstance, InstanceProvider, ProviderError
from spotwise.core.messages.fleet import InstanceState
from spotwise.files.fleet_file import FleetFileError, read_fleet

#: A keeper that lives renews an instance's mark at least once in so many renewals' time; also one that was just bought.
_RENEWALS = 3

FleetFileOption = Annotated[Path, typer.Option("--fleet", help="The mesh's fleet file.")]


def orphans(
    fleet: FleetFileOption,
    name: Annotated[str, typer.Option(help="The mesh's name, by which its instances are tagged.")] = DEFAULT_NAME,
    nats_url: NatsUrl = None,
    end: Annotated[bool, typer.Option("--end", help="End them.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before.")] = False,
) -> None:
    """List the instances that carry a mesh's tag and that no living mesh knows; with --end, end them."""
    options = _options(fleet)
    try:
        asyncio.run(_run(options, name, nats_url, end=end, yes=yes))
    except ProviderError as error:
        raise CommandError(str(error)) from error


def print_user_data(fleet: FleetFileOption) -> None:
    """Print the script for a launch template's user data by which instances end themselves without their mesh."""
    typer.echo(user_data(_options(fleet).alone_s), nl=False)


def find_orphans(
    instances: Sequence[AcquiredInstance], known: Collection[str], fresh_s: float, now: float
) -> list[AcquiredInstance]:
    """Return the instances that are there, that no reachable mesh knows and that no keeper has marked lately.

    Args:
        instances: instances that carry a mesh's tag.
        known: ids that a mesh of that name reports now.
        fresh_s: an instance that was marked, or launched, less than so many seconds ago has a keeper somewhere.
        now: Unix time.
    """
    return [
        each
        for each in instances
        if each.state is not InstanceState.GONE  # one that is stopped still pays for its volumes
        and each.id not in known
        and now - max(each.launched_unix_s, each.seen_unix_s or 0.0) > fresh_s
    ]


async def end_orphans(
    provider: InstanceProvider, chosen: Collection[str], known: Collection[str], fresh_s: float, now: float
) -> list[str]:
    """End those of the chosen instances that are still orphans; return their ids.

    Raises:
        ProviderRefused, ProviderUnavailable: some may not have been ended.
    """
    found = find_orphans(await provider.instances(), known, fresh_s, now)
    ids = [each.id for each in found if each.id in chosen]
    await provider.release(ids)
    return ids


async def _run(options: Ec2Options, name: str, nats_url: str | None, *, end: bool, yes: bool) -> None:
    console = Console(highlight=False)
    fresh_s = _RENEWALS * renewal_s(options.alone_s)
    provider = await Ec2Instances.connect(name, options)
    try:
        known = await _known(name, nats_url, console)
        found = find_orphans(await provider.instances(), known, fresh_s, time.time())
        if not found:
            console.print(f"no instance of mesh {name!r} is without a mesh")
            return
        console.print(_table(found, time.time()))
        if not end:
            console.print("--end ends them")
            return
        if not yes and not typer.confirm(f"End {len(found)} instances of mesh {name!r}?"):
            raise CommandError("nothing was ended")
        known = await _known(name, nats_url, console)
        ended = await end_orphans(provider, {each.id for each in found}, known, fresh_s, time.time())
        console.print(f"ended: {', '.join(ended) or 'none, they have a mesh by now'}")
    finally:
        await provider.close()


async def _known(name: str, nats_url: str | None, console: Console) -> frozenset[str]:
    try:
        view = await ask_fleet(find_broker(name, nats_url))
    except CommandError as error:
        console.print(f"no mesh says what it knows ({error}): the instances' marks decide")
        return frozenset()
    return frozenset() if view.report is None else frozenset(each.id for each in view.report.instances)


def _table(found: Sequence[AcquiredInstance], now: float) -> Table:
    table = Table(header_style="bold")
    for heading in ("instance", "type", "market", "zone", "age", "last seen by a keeper"):
        table.add_column(heading, no_wrap=True)
    for each in found:
        seen = "never" if each.seen_unix_s is None else f"{duration_text(max(0.0, now - each.seen_unix_s))} ago"
        age = duration_text(max(0.0, now - each.launched_unix_s))
        table.add_row(each.id, each.instance_type, each.market.value, each.zone or "", age, seen)
    return table


def _options(path: Path) -> Ec2Options:
    try:
        fleet = read_fleet(path)
    except FleetFileError as error:
        raise CommandError(str(error)) from error
    if fleet.aws is None or fleet.provider != "aws":
        raise CommandError(f"{path}: its provider is {fleet.provider}, whose instances end with their mesh")
    return Ec2Options(**fleet.aws.model_dump())
