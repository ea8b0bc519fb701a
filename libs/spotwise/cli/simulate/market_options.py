"""The options of a fleet that is bought in simulation, as `spotwise up` has them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from spotwise.cli.errors import OptionError
from spotwise.cli.launch.fleet_options import refuse_what_cannot_be_bought
from spotwise.cli.profile_files import read_profile
from spotwise.core.fleet.policy import FleetPolicy
from spotwise.files.fleet_file import FleetFile, FleetFileError, read_fleet
from spotwise.files.fleet_prices import FleetPrices
from spotwise.simulator.spotserve.purchase_terms import PurchaseTerms

#: By field of the policy.
_OPTIONS = {
    "budget_per_h": "--budget",
    "on_demand_floor": "--on-demand-floor",
    "spare_instances": "--spares",
    "latency_target_s": "--latency-target",
    "hold_s": "--hold",
}
FleetFileOption = Annotated[
    Path | None,
    typer.Option(help="Fleet file: instances are bought by spotwise's planner, and the trace's nodes can be had."),
]
BudgetOption = Annotated[float | None, typer.Option(min=0, help="With --fleet: dollars an hour at most.")]
FloorOption = Annotated[int | None, typer.Option(min=0, help="With --fleet: on-demand instances at least.")]
SparesOption = Annotated[int | None, typer.Option(min=0, help="With --fleet: instances beside those that serve.")]
LatencyTargetOption = Annotated[
    float | None, typer.Option(min=0, help="With --fleet: seconds of a request that are fast enough.")
]
HoldOption = Annotated[
    float | None, typer.Option(min=0, help="With --fleet: seconds that a better choice waits, and a surplus is kept.")
]


def purchase_terms(file: Path | None, policy: dict[str, Any], others: dict[str, object]) -> PurchaseTerms | None:
    """Return what a simulated mesh may buy; `None` without a fleet file.

    Args:
        policy: fields of `FleetPolicy`; `None`: the default.
        others: options that the fleet file replaces.

    Raises:
        OptionError: the file cannot be read or simulated, or options do not go together.
    """
    given = {name: value for name, value in policy.items() if value is not None}
    if file is None:
        if names := [_OPTIONS[name] for name in given]:
            raise OptionError(f"{', '.join(names)}: only a fleet that is bought has that; add --fleet FILE")
        return None
    if replaced := [name for name, value in others.items() if value is not None]:
        raise OptionError(f"{replaced[0]}: --fleet {file} says it; leave one of the two out")
    try:
        fleet = read_fleet(file)
        return _terms(file, fleet, FleetPolicy(**given))
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
