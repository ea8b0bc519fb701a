"""The cluster file: machines of one's own and the paper's together, their objectives and policies, and what happens to them
(TOML; docs/simulator.md, "Your own cluster")."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

from pydantic import ByteSize, Field, ValidationError, model_validator

from spotwise.core.costs.cost_model import LinkCost
from spotwise.core.costs.cost_profile import CostProfile
from spotwise.core.messages.members import Pool
from spotwise.files.cost_profile import FORMAT, profile_from_tables, read_cost_profile
from spotwise.files.spot_traces import SpotTrace, read_spot_trace
from spotwise.files.tables import FileTable, TraceError, first_fault, read_tables
from spotwise.simulator.costs.hardware import LANGUAGE_MODELS
from spotwise.simulator.loads.workload import PriorityShare
from spotwise.simulator.runs.cluster_scenario import ClusterScenario, paper_machine
from spotwise.simulator.runs.clusters import PAPER_MACHINES, Cluster, MachineGroup
from spotwise.simulator.runs.machine_changes import MachineChange, changes_of
from spotwise.simulator.runs.own_machines import OwnMachine
from spotwise.simulator.runs.serving_policy import USUAL_POLICY, ServingPolicy
from spotwise.simulator.runs.slo import SPLITWISE_SLOS, LatencyBound, Objectives

#: It documents the file.
_PAGE = "docs/simulator.md"
Percents = dict[Literal["p50", "p90", "p99"], float]


class ClusterFileError(ValueError):
    """A cluster file is wrong; the message names file, key and what to do."""


class MachineLink(FileTable):
    """A link: seconds after the last byte, and bytes a second each way."""

    latency_s: float = Field(ge=0, allow_inf_nan=False)
    bytes_per_s: float = Field(gt=0, allow_inf_nan=False)

    def cost(self) -> LinkCost:
        """Return it as a cost."""
        return LinkCost(self.latency_s, self.bytes_per_s)


class MachineTerms(FileTable):
    """Machines of one kind in one pool; exactly one of `kind`, `profile` and `cost` says what their iterations cost.

    Attributes:
        kind: one of the paper's machines.
        profile: file of a cost profile, of `spotwise profile` (JSON) or written by hand (JSON or TOML).
        cost: the keys of such a file.
        count: at the start; `None` with a spot trace, which says it.
        price_per_h: US dollars; `None`: the paper's, or 0.
        power: in units of a DGX-A100's; `None`: the paper's, or 0.
        kv_tokens, kv_memory: KV cache, instead of the profile's.
        link: link for hand-offs, instead of the profile's.
        host_memory: for swapped-out KV; `host_link`: to it, instead of the profile's.
        overlap_layers: as in `OwnMachine`.
        spot_trace: recording of when they are there, whose nodes they are.
        notice_s: notice of machines that leave in the recording, where it does not say; 0: they fail.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    kind: Literal["dgx-a100", "dgx-h100", "dgx-h100-capped"] | None = None
    profile: Path | None = None
    cost: dict[str, Any] | None = None
    count: int | None = Field(None, ge=1)
    pool: Pool = Pool.MIXED
    price_per_h: float | None = Field(None, ge=0, allow_inf_nan=False)
    power: float | None = Field(None, ge=0, allow_inf_nan=False)
    kv_tokens: int | None = Field(None, ge=1)
    kv_memory: ByteSize | None = Field(None, gt=0)
    link: MachineLink | None = None
    host_memory: ByteSize = ByteSize(0)
    host_link: MachineLink | None = None
    overlap_layers: int | None = Field(None, ge=1)
    spot_trace: Path | None = None
    notice_s: float = Field(30.0, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _is_whole(self) -> MachineTerms:
        if sum(each is not None for each in (self.kind, self.profile, self.cost)) != 1:
            raise ValueError(
                f"{self.name} needs exactly one of kind (one of the paper's machines), profile (a file) and cost (a table)"
            )
        if (self.count is None) == (self.spot_trace is None):
            raise ValueError(
                f"{self.name} needs either count, how many there are, or spot_trace, a recording that says it"
            )
        if self.kv_tokens is not None and self.kv_memory is not None:
            raise ValueError(f"{self.name} has both kv_tokens and kv_memory; leave one of them out")
        return self


class ObjectiveTerms(FileTable):
    """Upper bounds, by metric and percentile.

    Attributes:
        against: name of the machines that slowdowns are against, one of which is idle; `None`: the first.
        slowdown: bounds of TTFT, TBT and E2E.
        seconds: bounds of these and of ITL.
    """

    against: str | None = None
    slowdown: dict[Literal["ttft", "tbt", "e2e"], Percents] = Field(default_factory=dict)
    seconds: dict[Literal["ttft", "tbt", "e2e", "itl"], Percents] = Field(default_factory=dict)

    def bounds(self) -> tuple[LatencyBound, ...]:
        """Return all bounds; without any the paper's nine slowdowns."""
        own = tuple(
            LatencyBound(metric, int(percent[1:]), below, is_slowdown)
            for is_slowdown, table in ((True, self.slowdown), (False, self.seconds))
            for metric, percents in table.items()
            for percent, below in percents.items()
        )
        return own or SPLITWISE_SLOS.bounds


class ClusterFile(FileTable):
    """A cluster file.

    Attributes:
        name: in tables; `None`: the file's.
        model: language model of the paper's machines.
        message_s: seconds of a message between members; `None`: the longest of the machines' profiles.
        priorities: priorities of the requests, each with its share.
    """

    name: str | None = None
    model: str | None = None
    message_s: float | None = Field(None, ge=0, allow_inf_nan=False)
    machines: tuple[MachineTerms, ...] = Field(min_length=1)
    objectives: ObjectiveTerms = ObjectiveTerms()
    policy: ServingPolicy = USUAL_POLICY
    priorities: tuple[PriorityShare, ...] = ()
    events: tuple[MachineChange, ...] = ()

    @model_validator(mode="after")
    def _is_whole(self) -> ClusterFile:
        twice = [name for name, count in Counter(each.name for each in self.machines).items() if count > 1]
        if twice:
            raise ValueError(f"machines: {twice[0]} is there twice; give each a name of its own")
        if self.model is not None and self.model not in LANGUAGE_MODELS:
            raise ValueError(f"model: {self.model!r} is not one of {', '.join(LANGUAGE_MODELS)}")
        for each in self.machines:
            if each.kind is not None and self.model is None:
                raise ValueError(
                    f"model: the key is missing, for {each.name}; write one of {', '.join(LANGUAGE_MODELS)}"
                )
        return self


def read_cluster(path: Path) -> ClusterScenario:
    """Read a cluster file, and the profiles and spot traces that it names; paths in it are relative to its folder.

    Raises:
        ClusterFileError: a file cannot be read, a key is wrong or missing, or the machines cannot serve together.
    """
    tables = read_tables(path, "cluster", _PAGE, ClusterFileError)
    try:
        file = ClusterFile.model_validate(tables)
    except ValidationError as error:
        raise ClusterFileError(f"{path}: {first_fault(error, _PAGE)}") from error
    folder = path.absolute().parent
    groups: list[MachineGroup] = []
    changes = list(file.events)
    for terms in file.machines:
        try:
            kind = _kind(terms, file, folder)
            count = terms.count or 0
            if terms.spot_trace is not None:
                count, own = changes_of(_trace(folder / terms.spot_trace), terms.name, terms.notice_s)
                changes += own
        except (ValueError, OSError) as error:
            raise ClusterFileError(f"{path}: machines.{terms.name}.{error}") from error
        groups.append(MachineGroup(kind, count, terms.pool))
    try:
        objectives = _objectives(file.objectives, groups)
        cluster = Cluster(file.name or path.stem, tuple(groups))
        return ClusterScenario(cluster, file.policy, objectives, file.priorities, tuple(changes))
    except ValueError as error:
        raise ClusterFileError(f"{path}: {error}") from error


def _trace(path: Path) -> SpotTrace:
    try:
        return read_spot_trace(path)
    except TraceError as error:
        raise ValueError(f"spot_trace: {error}") from error


def _kind(terms: MachineTerms, file: ClusterFile, folder: Path) -> OwnMachine:
    """Return the kind of machine; raises ValueError with the wrong key first."""
    if terms.kind is not None:
        assert file.model is not None
        kind = paper_machine(PAPER_MACHINES[terms.kind], LANGUAGE_MODELS[file.model], terms.name)
    else:
        kind = OwnMachine(terms.name, _profile(terms, folder))
    kv_tokens = terms.kv_tokens
    if terms.kv_memory is not None:
        kv_tokens = terms.kv_memory // kind.profile.kv_bytes_per_token
        if not kv_tokens:
            raise ValueError(f"kv_memory: it holds no token of {kind.profile.kv_bytes_per_token} bytes")
    return kind.changed(
        price_per_hour=terms.price_per_h,
        power=terms.power,
        kv_tokens=kv_tokens,
        link=None if terms.link is None else terms.link.cost(),
        host_memory_bytes=int(terms.host_memory),
        host_link=None if terms.host_link is None else terms.host_link.cost(),
        overlap_layers=terms.overlap_layers,
        message_s=file.message_s,
    )


def _profile(terms: MachineTerms, folder: Path) -> CostProfile:
    if terms.cost is not None:
        try:
            return profile_from_tables({"format": FORMAT, "name": terms.name, **terms.cost})
        except ValueError as error:
            raise ValueError(f"cost.{error}; {_PAGE} has an example") from error
    assert terms.profile is not None
    path = folder / terms.profile
    try:
        return read_cost_profile(path)
    except OSError as error:
        raise ValueError(f"profile: {path} cannot be read: {error.strerror}; make one with spotwise profile") from error
    except ValueError as error:
        raise ValueError(f"profile: {path} is no cost profile: {error}") from error


def _objectives(terms: ObjectiveTerms, groups: list[MachineGroup]) -> Objectives:
    by_name = {group.kind.name: group.kind for group in groups}
    against = groups[0].kind if terms.against is None else by_name.get(terms.against)
    if not isinstance(against, OwnMachine):
        raise ValueError(f"objectives.against: no machines are named {terms.against!r}; there are {', '.join(by_name)}")
    try:
        return Objectives(terms.bounds(), against.profile.iteration)
    except ValueError as error:
        raise ValueError(f"objectives: {error}") from error
