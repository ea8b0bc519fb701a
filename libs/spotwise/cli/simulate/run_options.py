"""The options of `spotwise simulate run`, and the case that they describe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from spotwise.cli.errors import OptionError
from spotwise.cli.option_groups import OptionGroup, changed_flags, given_flags, one_of
from spotwise.cli.simulate.market_options import InstanceTypeOption, PricesOption, ZoneOption, parse_prices
from spotwise.cli.simulate.options import (
    LoadOptions,
    ModelOptions,
    parse_design,
    parse_recorded_split,
    parse_split,
    recorded_profile,
)
from spotwise.core.costs.cost_profile import CostProfile
from spotwise.core.fleet.prices import PriceSeries
from spotwise.core.messages.fleet import Market
from spotwise.core.scheduler.policy import DecodeQueue
from spotwise.core.worker.policy import Reserve
from spotwise.core.worker.scheduling.policies import SCHEDULING_POLICIES
from spotwise.files.tables import TraceError
from spotwise.simulator.costs.profile_fit import ProfileError
from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.cluster_file import ClusterFileError, read_cluster
from spotwise.simulator.runs.cluster_scenario import ClusterScenario
from spotwise.simulator.runs.clusters import PAPER_SPLITS, Cluster, Design, Split
from spotwise.simulator.runs.experiment import require_runnable
from spotwise.simulator.runs.machine_changes import MachineChange, MachineChangeKind
from spotwise.simulator.runs.own_machines import OwnMachine
from spotwise.simulator.runs.serving_policy import ServingPolicy

_NOTICE_S = 30.0
#: Name of a cluster of recorded machines.
_RECORDED = "Recorded"


class MachineOptions(OptionGroup):
    """The options that say how many machines there are, and of what kinds."""

    design: Annotated[
        str | None, typer.Option(help="Baseline-A100, Baseline-H100, Splitwise-AA, -HH, -HA or -HHcap; by default HA.")
    ] = None
    machines: Annotated[
        str | None, typer.Option(help="Prompt and token machines, like 25,15; by default the paper's, at equal power.")
    ] = None


class CostOptions(ModelOptions):
    """The options that say what iterations take, and what machines cost."""

    profile: Annotated[
        Path | None,
        typer.Option(
            help="Fit the machines' costs to this CSV; or, where it is a file of `spotwise profile`, all are that machine."
        ),
    ] = None
    price: Annotated[float, typer.Option(min=0, help="Price of a recorded machine, US dollars an hour.")] = 0.0
    prices: PricesOption = None
    instance_type: InstanceTypeOption = None
    zone: ZoneOption = None
    market: Annotated[Market, typer.Option(help="How the machines are bought, of those in --prices.")] = Market.SPOT

    def price_series(self) -> PriceSeries | None:
        """Return the prices of `--prices`; raises `OptionError` where options do not go together, `TraceError` where the file
        is wrong."""
        if self.prices is not None and self.price:
            raise OptionError("--price: --prices has all prices; leave one of the two out")
        listed = parse_prices(self.prices, self.instance_type, self.zone)
        return None if listed is None else listed[0].of(listed[1], self.zone, self.market, 0.0)


def simulated_policy_name(text: str) -> str:
    """Return `text` if it names a scheduling policy, live or simulated; raises `BadParameter` otherwise."""
    return one_of(text, SCHEDULING_POLICIES)


class ServingOptions(OptionGroup):
    """The options of how a cluster batches and routes, by the fields of `ServingPolicy`; `None`: as it is anyway."""

    chunk_tokens: Annotated[int | None, typer.Option(min=256, help="Chunked prefill: most tokens of an iteration.")] = (
        None
    )
    scheduling: Annotated[
        str | None,
        typer.Option(
            "--policy",
            parser=simulated_policy_name,
            metavar=f"<{'|'.join(SCHEDULING_POLICIES)}>",
            help="Order of the sequences: fcfs by default; srpt knows answers' lengths.",
        ),
    ] = None
    reserve: Annotated[
        Reserve | None,
        typer.Option(help="KV blocks as sequences grow (on_demand), or for all that they may have (max_tokens)."),
    ] = None
    decode_queue: Annotated[
        DecodeQueue | None, typer.Option(help="What a decode adds to the queue of a machine for both phases.")
    ] = None
    break_even: Annotated[
        bool | None,
        typer.Option(
            "--break-even/--no-break-even", help="Both phases on one machine where splitting costs more than it saves."
        ),
    ] = None
    repurpose_window_s: Annotated[
        float | None,
        typer.Option(
            "--repurpose-window", min=0, help="Seconds in which a machine may change its home pool; 0: none does."
        ),
    ] = None

    def changed(self, policy: ServingPolicy) -> ServingPolicy:
        """Return a policy with the options that were given; raises `OptionError` where they do not go together."""
        try:
            return replace(policy, **self.model_dump(exclude_unset=True))
        except ValueError as error:
            raise OptionError(f"--policy, --reserve, --chunk-tokens: {error}") from error


class LeavingOptions(OptionGroup):
    """The options that take machines away."""

    leaving: Annotated[
        str | None, typer.Option(help="Machines that get notice, and when: 4@60 is four of them after a minute.")
    ] = None
    notice: Annotated[
        float | None, typer.Option(min=0, help="Seconds from the notice until they are gone; 30 by default.")
    ] = None

    def changes(self, split: Split) -> tuple[MachineChange, ...]:
        """Return the machines that leave; raises `OptionError` where an option is wrong."""
        text, notice = self.leaving, self.notice
        if text is None:
            if notice is not None:
                raise OptionError("--notice: no machine leaves; say which with --leaving 4@60, or leave it out")
            return ()
        machines, _, at_s = text.partition("@")
        try:
            leaving = MachineChange(
                float(at_s), MachineChangeKind.NOTICE, int(machines), notice_s=_NOTICE_S if notice is None else notice
            )
        except ValueError:
            leaving = None
        if leaving is None or leaving.machines >= split.machines:
            raise OptionError(
                f"--leaving {text!r}: write how many machines and when, like 4@60; at least one must stay"
            )
        return (leaving,)


def run_scenario(
    path: Path | None, machines: MachineOptions, costs: CostOptions, leaving: LeavingOptions
) -> ClusterScenario | None:
    """Return what a cluster file says; raises as `cluster_scenario`."""
    of_costs = changed_flags(costs, (*ModelOptions.model_fields, "profile", "price", "prices"))
    return cluster_scenario(path, [*given_flags(machines), *of_costs, *given_flags(leaving)])


def cluster_scenario(path: Path | None, replaced: Sequence[str]) -> ClusterScenario | None:
    """Return what a cluster file says; `None` without one.

    Args:
        replaced: options that were given, and that the file replaces.

    Raises:
        OptionError: the file is wrong, or replaces an option.
    """
    if path is None:
        return None
    if replaced:
        raise OptionError(f"{replaced[0]}: --cluster {path} says it; leave one of the two out")
    try:
        return read_cluster(path)
    except ClusterFileError as error:
        raise OptionError(f"--cluster: {error}") from error


def profile_case(
    machines: MachineOptions,
    load: LoadOptions,
    costs: CostOptions,
    leaving: LeavingOptions,
    seconds: float | None,
    seed: int,
) -> Case:
    """Return the case, without a rate, of the paper's machines or of those of a recorded profile; raises `OptionError` where an
    option is wrong."""
    workload = load.cluster_workload()
    recorded = recorded_profile(costs.profile)
    if recorded is None:
        cluster, csv = _paper_machines(machines, load.workload, costs), costs.profile
    else:
        cluster, csv = _recorded_machines(machines, recorded, costs), None
    model, changes = costs.known_model(), leaving.changes(cluster.split)
    return Case(
        cluster=cluster,
        workload=workload,
        rate=None,
        seconds=seconds,
        seed=seed,
        model=model,
        decode_model=costs.decode_model,
        profile=csv,
        changes=changes,
    )


def _paper_machines(given: MachineOptions, workload: str, costs: CostOptions) -> Cluster:
    """Return the paper's machines, without numbers as many as it has at equal power."""
    if flags := changed_flags(costs, ("price", "prices")):
        raise OptionError(
            f"{flags[0]}: only for a recorded machine; give its --profile, or leave it out for the paper's machines"
        )
    design = parse_design(given.design or "HA")
    if given.machines is not None:
        return design.cluster(parse_split(given.machines, design))
    splits = PAPER_SPLITS["iso-power", workload if workload in ("code", "conv") else "conv"]
    return design.cluster(splits[design.name])


def _recorded_machines(given: MachineOptions, recorded: CostProfile, costs: CostOptions) -> Cluster:
    """Return machines of one profile, in two pools or all mixed."""
    if given.design is not None:
        raise OptionError(
            f"--design {given.design!r}: {costs.profile} has one kind of machine; give only their numbers, --machines 4,2"
        )
    if changed_flags(costs, ModelOptions.model_fields):
        raise OptionError(
            f"--model, --decode-model: {costs.profile} already has its model's iteration times; leave them out"
        )
    split = parse_recorded_split(given.machines, recorded)
    kind = OwnMachine(recorded.name or _RECORDED.lower(), recorded, costs.price)
    return Design(_RECORDED, kind, kind if split.token else None).cluster(split)


def require_case(case: Case, what: str) -> None:
    """Raise `OptionError`, about `what`, where a case cannot run; `ProfileError` or `TraceError` where a file is wrong."""
    try:
        require_runnable(case)
    except (TraceError, ProfileError):
        raise
    except ValueError as error:
        raise OptionError(f"{what}: {error}") from error
