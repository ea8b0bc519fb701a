"""The options of `spotwise up` about machines that are bought: checked, and completed by what the fleet file says."""

from __future__ import annotations

from pathlib import Path

from spotwise.cli.errors import OptionError
from spotwise.cli.launch.run_folder import RunFolder
from spotwise.cli.options import FleetOptions
from spotwise.files.fleet_file import FleetFileError, read_fleet
from spotwise.files.spot_traces import read_spot_trace
from spotwise.files.tables import TraceError

#: Devices of this computer, for a trace without a fleet file.
_LOCAL_FLEET = Path(__file__).parent / "local_fleet" / "fleet.toml"


def fleet_options(
    folder: RunFolder,
    file: Path | None,
    trace: Path | None,
    *,
    compress: float | None,
    grace_s: float | None,
    budget_per_h: float | None,
    on_demand_floor: int | None,
    spares: int | None,
    latency_target_s: float | None,
) -> FleetOptions | None:
    """Return how a mesh gets its devices; `None` where nothing is bought.

    Raises:
        OptionError: a file cannot be read, or options do not go together.
    """
    if file is None and trace is None:
        given = {
            "--compress": compress,
            "--grace": grace_s,
            "--budget": budget_per_h,
            "--on-demand-floor": on_demand_floor,
            "--spares": spares,
            "--latency-target": latency_target_s,
        }
        if names := [name for name, value in given.items() if value is not None]:
            raise OptionError(f"{', '.join(names)}: only a mesh whose machines are bought has that; add --fleet FILE")
        return None
    if trace is None and (compress is not None or grace_s is not None):
        raise OptionError("--compress and --grace are about a trace; add --trace FILE")
    file = (file or _LOCAL_FLEET).absolute()
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
    if trace is not None and fleet.provider != "local":
        raise OptionError(
            f"--trace takes instances of this computer away; --fleet {file} has the provider {fleet.provider}"
        )
    devices = max(each.devices for each in fleet.types)
    limit = 1 if fleet.local is None else max(1, fleet.local.limit)
    return FleetOptions(
        file=file,
        folder=folder.path / "instances",
        most_devices=devices * limit,
        trace=None if trace is None else trace.absolute(),
        compress=1.0 if compress is None else compress,
        grace_s=grace_s,
        budget_per_h=budget_per_h,
        on_demand_floor=on_demand_floor or 0,
        spares=spares,
        latency_target_s=latency_target_s,
    )
