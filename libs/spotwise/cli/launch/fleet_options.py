"""The options of `spotwise up` about machines that are bought: checked, and completed by what the fleet file says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from spotwise.cli.errors import OptionError
from spotwise.cli.launch.given_options import FleetChoice
from spotwise.cli.launch.options import FleetOptions
from spotwise.cli.launch.run_folder import RunFolder
from spotwise.cli.option_groups import given_flags

if TYPE_CHECKING:
    from spotwise.files.fleet_file import FleetFile

#: Devices of this computer, for a trace without a fleet file.
_LOCAL_FLEET = Path(__file__).parent / "local_fleet" / "fleet.toml"
#: Requests wait for a first instance until it would be late, and so much longer: it is bought before, and forms a group after.
_FIRST_GROUP_S = 60.0


def fleet_options(folder: RunFolder, given: FleetChoice, *, is_simulated: bool = False) -> FleetOptions | None:
    """Return how a mesh gets its devices; `None` where nothing is bought. `is_simulated`: these only take the time.

    Raises:
        OptionError: a file cannot be read, or options do not go together.
    """
    trace = given.trace
    if not given.is_bought:
        if flags := given_flags(given):
            raise OptionError(f"{', '.join(flags)}: only a mesh whose machines are bought has that; add --fleet FILE")
        return None
    if trace is None and given_flags(given, ("compress", "grace_s")):
        raise OptionError("--compress and --grace are about a trace; add --trace FILE")
    # Most meshes buy nothing, and start without waiting for what reads these files.
    from spotwise.core.fleet.policy import FleetPolicy
    from spotwise.files.fleet_file import FleetFileError, read_fleet
    from spotwise.files.spot_traces import read_spot_trace
    from spotwise.files.tables import TraceError

    file = (given.file or _LOCAL_FLEET).absolute()
    try:
        fleet = read_fleet(file)
        if trace is not None:
            read_spot_trace(trace)
    except FleetFileError as error:
        raise OptionError(f"--fleet: {error}") from error
    except TraceError as error:
        raise OptionError(f"--trace: {error}") from error
    if unprofiled := [each.name for each in fleet.types if each.profile is None]:
        raise OptionError(
            f"--fleet {file}: types.{unprofiled[0]} has no profile, by which configurations are chosen; make one with "
            "spotwise profile FILE"
        )
    if trace is not None:
        _refuse_what_no_trace_takes(file, fleet)
    refuse_what_cannot_be_bought(file, fleet, budget_per_h=given.budget_per_h, floor=given.on_demand_floor)
    if is_simulated and (wide := [each.name for each in fleet.types if each.devices > 1]):
        raise OptionError(f"--engine simulated: its instances have one device; {file}: types.{wide[0]}.devices is more")
    devices = max(each.devices for each in fleet.types)
    limit = 1 if fleet.local is None else max(1, fleet.local.limit)
    waits_s = _FIRST_GROUP_S + FleetPolicy().late_factor * max(each.start_s for each in fleet.types)
    own: dict[str, Path | None] = {"file": file, "trace": None if trace is None else trace.absolute()}
    return FleetOptions(
        **dict(given) | own,
        folder=folder.path / "instances",
        profile=fleet.types[0].profile,
        most_devices=devices * limit,
        max_unready_s=None if "SPOTWISE_MAX_UNREADY_S" in os.environ else waits_s,
        max_queue_s=None if "SPOTWISE_MAX_QUEUE_S" in os.environ else waits_s,
    )


def _refuse_what_no_trace_takes(file: Path, fleet: FleetFile) -> None:
    if fleet.provider != "local":
        raise OptionError(
            f"--trace takes instances of this computer away; --fleet {file} has the provider {fleet.provider}"
        )
    if all(each.spot is None for each in fleet.types):
        raise OptionError(f"--trace takes spot instances away; give a type of {file} a spot price")


def refuse_what_cannot_be_bought(
    file: Path, fleet: FleetFile, *, budget_per_h: float | None, floor: int | None
) -> None:
    """Raise `OptionError` where a fleet file has nothing within a budget, or fewer instances on demand than a floor."""
    if budget_per_h == 0:
        raise OptionError("--budget 0: nothing could be bought; leave it out for no limit")
    if fleet.local is not None and fleet.local.limit == 0:
        raise OptionError(f"--fleet {file}: local.limit is 0, so that nothing can be bought; set at least 1")
    if floor and floor > (sold := sum(each.on_demand.most for each in fleet.types if each.on_demand is not None)):
        raise OptionError(f"--on-demand-floor {floor}: the types of {file} have {sold} on-demand instances at most")
    if budget_per_h is not None and fleet.prices is None:  # those of a CSV change
        terms = [terms for each in fleet.types for terms in (each.spot, each.on_demand) if terms is not None]
        if budget_per_h < (least := min(each.price_per_h for each in terms)):
            raise OptionError(f"--budget {budget_per_h:g}: the cheapest instance of {file} costs {least:g} $/h")
