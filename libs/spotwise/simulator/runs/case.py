"""A case: everything that a run of a cluster depends on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.loads.workload import ClusterWorkload
from spotwise.simulator.runs.clusters import Cluster, Split
from spotwise.simulator.runs.machine_changes import MachineChange
from spotwise.simulator.runs.serving_policy import USUAL_POLICY, ServingPolicy
from spotwise.simulator.runs.slo import SPLITWISE_SLOS, Objectives


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that a run depends on.

    Attributes:
        rate: requests a second; `None` for a trace's own.
        seconds: time in which requests arrive; `None` to the end of a trace.
        model: name of one of `LANGUAGE_MODELS`; this and the next two are of the paper's machines only.
        decode_model: how iterations are timed. All but the honest one also take the published settings where they exist: known
            output lengths, all memory in use, no message latency.
        profile: profile of the machines; `None` for the built-in costs.
        verdict_only: end the run at the first broken SLO. Only the verdict of its summary is valid then; requests unanswered by
            that time count as failed.
        changes: machines that come and go in the course of the run.
        prefix_caching: workers reuse equal beginnings of prompts, where the workload knows them; not in the published settings.
    """

    cluster: Cluster
    workload: ClusterWorkload
    rate: float | None
    seconds: float | None
    seed: int = 0
    model: str = "bloom-176b"
    decode_model: DecodeModel = DecodeModel.HONEST
    profile: Path | None = None
    policy: ServingPolicy = USUAL_POLICY
    objectives: Objectives = SPLITWISE_SLOS
    verdict_only: bool = False
    changes: tuple[MachineChange, ...] = ()
    prefix_caching: bool = True

    @property
    def caches_prefixes(self) -> bool:
        """Whether its workers have prefix caches; raises TraceError if its trace cannot be read."""
        is_live = bool(self.cluster.own_kinds) or self.decode_model is DecodeModel.HONEST
        return self.prefix_caching and is_live and self.workload.knows_contents

    @property
    def files(self) -> tuple[Path | None, ...]:
        """Files that the run reads."""
        return self.workload.path, self.profile

    @property
    def split(self) -> Split:
        """The cluster's machines that compute prompts, and those for tokens alone."""
        return self.cluster.split

    @property
    def label(self) -> str:
        """The cluster and its machines, like `Splitwise-HA (25, 26)`."""
        chunks = "" if self.policy.chunk_tokens is None else f", chunks of {self.policy.chunk_tokens})"
        return self.cluster.label[:-1] + chunks if chunks else self.cluster.label
