"""The options of a simulated fleet that is bought, and of its prices over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from spotwise.cli.errors import OptionError
from spotwise.cli.launch.fleet_options import refuse_what_cannot_be_bought
from spotwise.cli.option_groups import OptionGroup, given_flags
from spotwise.cli.profile_files import read_profile
from spotwise.core.fleet.policy import FleetPolicy
from spotwise.files.fleet_file import FleetFile, FleetFileError, read_fleet
from spotwise.files.fleet_prices import FleetPrices
from spotwise.files.prices import PriceList, read_prices
from spotwise.simulator.spotserve.pricing import PurchaseTerms

PricesOption = Annotated[
    Path | None,
    typer.Option(help="CSV of prices over time: time_s,instance_type,zone,market,price_per_h (zone optional)."),
]
InstanceTypeOption = Annotated[
    str | None, typer.Option(help="The machines' type in --prices; needed where the file has several.")
]
ZoneOption = Annotated[str | None, typer.Option(help="The machines' zone in --prices, where prices differ by zone.")]


def parse_prices(path: Path | None, instance_type: str | None, zone: str | None) -> tuple[PriceList, str] | None:
    """Return a file's prices and the machines' type, `None` without a file. An unknown type, none where there are several,
    or options without a file raise `OptionError`; a wrong file raises `TraceError`.
    """
    if path is None:
        for option, given in (("--instance-type", instance_type), ("--zone", zone)):
            if given is not None:
                raise OptionError(f"{option}: there are no prices; give a file with --prices, or leave it out")
        return None
    prices = read_prices(path)
    if instance_type is None and len(prices.types) > 1:
        raise OptionError(f"--prices {path}: choose one of its types with --instance-type: {', '.join(prices.types)}")
    if instance_type is not None and instance_type not in prices.types:
        raise OptionError(f"--instance-type {instance_type!r}: {path} has prices of {', '.join(prices.types)}")
    return prices, instance_type or prices.types[0]


class PurchaseOptions(OptionGroup):
    """The options of a fleet that is bought: its file, and the fields of `FleetPolicy` that are not its defaults."""

    fleet: Annotated[
        Path | None,
        typer.Option(help="Fleet file: instances are bought by spotwise's planner, and the trace's nodes can be had."),
    ] = None
    budget_per_h: Annotated[
        float | None, typer.Option("--budget", min=0, help="With --fleet: dollars an hour at most.")
    ] = None
    on_demand_floor: Annotated[int | None, typer.Option(min=0, help="With --fleet: on-demand instances at least.")] = (
        None
    )
    spare_instances: Annotated[
        int | None, typer.Option("--spares", min=0, help="With --fleet: instances beside those that serve.")
    ] = None
    latency_target_s: Annotated[
        float | None,
        typer.Option("--latency-target", min=0, help="With --fleet: seconds of a request that are fast enough."),
    ] = None
    hold_s: Annotated[
        float | None,
        typer.Option("--hold", min=0, help="With --fleet: seconds that a better choice waits, and a surplus is kept."),
    ] = None


def purchase_terms(given: PurchaseOptions, replaced: Sequence[str] = ()) -> PurchaseTerms | None:
    """Return what a simulated mesh may buy; `None` without a fleet file.

    Args:
        replaced: options that were given, and that the fleet file replaces.

    Raises:
        OptionError: the file cannot be read or simulated, or options do not go together.
    """
    file = given.fleet
    if file is None:
        if flags := given_flags(given):
            raise OptionError(f"{', '.join(flags)}: only a fleet that is bought has that; add --fleet FILE")
        return None
    if replaced:
        raise OptionError(f"{replaced[0]}: --fleet {file} says it; leave one of the two out")
    try:
        fleet = read_fleet(file)
        return _terms(file, fleet, FleetPolicy(**given.model_dump(exclude={"fleet"}, exclude_unset=True)))
    except FleetFileError as error:
        raise OptionError(f"--fleet: {error}") from error


def _terms(file: Path, fleet: FleetFile, policy: FleetPolicy) -> PurchaseTerms:
    kind, *further = fleet.types
    if further:
        raise OptionError(
            f"--fleet {file}: a simulated fleet has one type, and the file has {len(fleet.types)}; leave one of them"
        )
    if kind.profile is None:
        raise OptionError(
            f"--fleet {file}: types.{kind.name} has no profile, by which it is simulated; make one with spotwise profile FILE"
        )
    refuse_what_cannot_be_bought(file, fleet, budget_per_h=policy.budget_per_h, floor=policy.on_demand_floor)
    profile = read_profile(kind.profile, f"--fleet {file}: types.{kind.name}.profile")
    offers = FleetPrices(0.0).offers(fleet, fleet.price_list(), 0.0)
    limit = None if fleet.local is None else fleet.local.limit
    return PurchaseTerms(kind.fleet_type(profile), offers, policy, limit, fleet.refused_s)
