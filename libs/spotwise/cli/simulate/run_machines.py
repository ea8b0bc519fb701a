"""From the options of `spotwise simulate run` to its machines."""

from __future__ import annotations

from pathlib import Path

from spotwise.cli.errors import OptionError
from spotwise.cli.simulate.options import parse_design, parse_recorded_split, parse_split
from spotwise.core.costs.cost_profile import CostProfile
from spotwise.files.tables import TraceError
from spotwise.simulator.costs.hardware import BLOOM_176B
from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.costs.profile_fit import ProfileError
from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.cluster_file import ClusterFileError, read_cluster
from spotwise.simulator.runs.cluster_scenario import ClusterScenario
from spotwise.simulator.runs.clusters import Cluster, Design, Split
from spotwise.simulator.runs.designs import PAPER_SPLITS
from spotwise.simulator.runs.experiment import require_runnable
from spotwise.simulator.runs.machine_changes import MachineChange, MachineChangeKind
from spotwise.simulator.runs.own_machines import OwnMachine

_NOTICE_S = 30.0
#: Name of a cluster of recorded machines.
_RECORDED = "Recorded"


def cluster_scenario(path: Path | None, others: dict[str, object]) -> ClusterScenario | None:
    """Return what a cluster file says; `None` without one.

    Args:
        others: values of other options that the file replaces: `None`, or another default, where the option was not given.

    Raises:
        OptionError: the file is wrong, or one of the others was given.
    """
    if path is None:
        return None
    if given := [option for option, value in others.items() if value]:
        raise OptionError(f"{given[0]}: --cluster {path} says it; leave one of the two out")
    try:
        return read_cluster(path)
    except ClusterFileError as error:
        raise OptionError(f"--cluster: {error}") from error


def leaving_machines(text: str | None, notice: float | None, split: Split) -> tuple[MachineChange, ...]:
    """Return the machines of `--leaving`, with the seconds of `--notice`; raises `OptionError` where one of them is wrong."""
    if text is None and notice is not None:
        raise OptionError("--notice: no machine leaves; say which with --leaving 4@60, or leave it out")
    if text is None:
        return ()
    machines, _, at_s = text.partition("@")
    try:
        leaving = MachineChange(
            float(at_s), MachineChangeKind.NOTICE, int(machines), notice_s=_NOTICE_S if notice is None else notice
        )
    except ValueError:
        leaving = None
    if leaving is None or leaving.machines >= split.machines:
        raise OptionError(f"--leaving {text!r}: write how many machines and when, like 4@60; at least one must stay")
    return (leaving,)


def paper_machines(
    design: str | None, machines: str | None, workload: str, price: float, prices: Path | None
) -> Cluster:
    """Return the paper's machines, without numbers as many as it has at equal power; raises `OptionError` where an option is
    wrong."""
    if price or prices is not None:
        option = "--price" if price else "--prices"
        raise OptionError(
            f"{option}: only for a recorded machine; give its --profile, or leave it out for the paper's machines"
        )
    chosen = parse_design(design or "HA")
    if machines is not None:
        return chosen.cluster(parse_split(machines, chosen))
    splits = PAPER_SPLITS["iso-power", workload if workload in ("code", "conv") else "conv"]
    return chosen.cluster(splits[chosen.name])


def recorded_machines(machines: str | None, recorded: CostProfile, price: float) -> Cluster:
    """Return machines of one profile, in two pools or all mixed; raises `OptionError` where numbers are wrong, or missing."""
    split = parse_recorded_split(machines, recorded)
    kind = OwnMachine(recorded.name or _RECORDED.lower(), recorded, price)
    return Design(_RECORDED, kind, kind if split.token else None).cluster(split)


def refuse_beside_a_profile(profile: Path | None, design: str | None, model: str, decode_model: DecodeModel) -> None:
    """Raise `OptionError` where an option says what a recorded profile already says."""
    if design is not None:
        raise OptionError(
            f"--design {design!r}: {profile} has one kind of machine; give only their numbers, --machines 4,2"
        )
    if model != BLOOM_176B.name or decode_model is not DecodeModel.HONEST:
        raise OptionError(f"--model, --decode-model: {profile} already has its model's iteration times; leave them out")


def require_case(case: Case, what: str) -> None:
    """Raise `OptionError`, about `what`, where a case cannot run; `ProfileError` or `TraceError` where a file is wrong."""
    try:
        require_runnable(case)
    except (TraceError, ProfileError):
        raise
    except ValueError as error:
        raise OptionError(f"{what}: {error}") from error
