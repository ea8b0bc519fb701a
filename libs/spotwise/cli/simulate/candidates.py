"""Designs among which `spotwise simulate provision` searches, and the case that each is tried in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from spotwise.cli.errors import OptionError
from spotwise.cli.option_groups import OptionGroup, changed_flags
from spotwise.cli.simulate.options import ModelOptions, command_errors, parse_designs, recorded_profile
from spotwise.cli.simulate.run_options import cluster_scenario, require_case
from spotwise.simulator.loads.workload import ClusterWorkload
from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.cluster_scenario import ClusterScenario
from spotwise.simulator.runs.clusters import DESIGNS, Cluster, Design, Split
from spotwise.simulator.runs.experiment import require_runnable
from spotwise.simulator.searches.provisioning import Objective


@dataclass(frozen=True, slots=True)
class Candidates:
    """Designs, and a case of one of them, without a rate."""

    designs: Sequence[Design]
    base: Case

    def case(self, design: Design, rate: float | None) -> Case:
        """Return a design's case, with the fewest machines."""
        return replace(self.base, cluster=_smallest(design), rate=rate)

    def require_known(self, objective: Objective, option: str) -> None:
        """Raise `OptionError` where a kind of machine costs nothing, or draws no power, and the option is about that."""
        if objective is Objective.MACHINES:
            return
        key = "price_per_h" if objective is Objective.COST else "power"
        for design in self.designs:
            for group in _smallest(design).groups:
                if not (group.kind.price_per_hour if objective is Objective.COST else group.kind.power):
                    raise OptionError(f"{option}: {group.kind.name} has no {key}; give it one in the cluster file")


class CandidateOptions(OptionGroup):
    """The options that say among which machines to search."""

    designs: Annotated[str | None, typer.Option(help="Designs, separated by commas; by default all.")] = None
    cluster: Annotated[
        Path | None,
        typer.Option(
            help="Cluster file: its kinds of machine in any numbers, each of mixed machines alone, and each of prompt with "
            "each of token machines."
        ),
    ] = None
    most: Annotated[str, typer.Option(help="Upper bounds of prompt and token machines, for --rate.")] = "100,60"


class FittedCostOptions(ModelOptions):
    """The options that say what iterations of the paper's machines take."""

    profile: Annotated[Path | None, typer.Option(help="Fit the machines' costs to this CSV.")] = None


def chosen_candidates(
    given: CandidateOptions, load: ClusterWorkload, seconds: float, costs: FittedCostOptions
) -> Candidates:
    """Return the paper's designs, or what a cluster file's kinds of machine make, of the names given or all; raises
    `OptionError` where an option or a file is wrong."""
    if given.cluster is None:
        return _paper_candidates(given.designs, load, seconds, costs)
    return _own_candidates(given.cluster, given.designs, load, seconds, costs)


def _paper_candidates(names: str | None, load: ClusterWorkload, seconds: float, costs: FittedCostOptions) -> Candidates:
    model, profile = costs.known_model(), costs.profile
    if recorded_profile(profile) is not None:
        raise OptionError(
            f"--profile {profile}: a recorded profile, and the paper's machines take a CSV of their costs; to search among "
            "machines of your own name it in a file for --cluster"
        )
    designs = parse_designs(names or ",".join(DESIGNS))
    case = Case(
        cluster=_smallest(designs[0]),
        workload=load,
        rate=None,
        seconds=seconds,
        seed=0,
        model=model,
        decode_model=costs.decode_model,
        profile=profile,
    )
    with command_errors():
        require_runnable(case)
    return Candidates(designs, case)


def _own_candidates(
    path: Path, names: str | None, load: ClusterWorkload, seconds: float, costs: FittedCostOptions
) -> Candidates:
    scenario = cluster_scenario(path, changed_flags(costs))
    assert scenario is not None
    if scenario.changes:
        raise OptionError(f"--cluster {path}: machines to buy stay; leave events and spot_trace out")
    designs = _chosen(scenario, names)
    if not designs:
        raise OptionError(f"--cluster {path}: prompt machines without token machines make no design; add some of these")
    candidates = Candidates(designs, scenario.case(load, None, seconds))
    with command_errors():
        for design in candidates.designs:
            require_case(candidates.case(design, None), f"--cluster {path}: {design.name}")
    return candidates


def _chosen(scenario: ClusterScenario, names: str | None) -> list[Design]:
    own = {design.name: design for design in scenario.designs()}
    if names is None:
        return list(own.values())
    chosen = list(dict.fromkeys(name.strip() for name in names.split(",")))
    if unknown := [name for name in chosen if name not in own]:
        raise OptionError(f"--designs {unknown[0]!r}: choose some of {', '.join(own)}")
    return [own[name] for name in chosen]


def _smallest(design: Design) -> Cluster:
    return design.cluster(Split(1) if design.token is None else Split(1, 1))
