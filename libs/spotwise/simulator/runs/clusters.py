"""Clusters as values: kinds of machine, how many of each are in which pool; and designs, which have a cluster a split.

The clusters that the Splitwise paper compares (tables IV and V, figures 16 to 18, section 6) have prices per GPU-hour and power
of a DGX as given there. A GPU sends its KV shard over its own 200 (A100) or 400 Gbit/s (H100), eight a machine. A capped
machine's GPUs draw half, the machine 70 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spotwise.core.costs.cost_model import IterationCost
from spotwise.core.messages.members import Pool
from spotwise.simulator.costs.hardware import GIB, MachineType
from spotwise.simulator.runs.own_machines import OwnMachine, require_hand_overs


@dataclass(frozen=True, slots=True)
class Hardware:
    """Hardware of one of the paper's machines.

    Attributes:
        profile: its GPUs' name in profiles.
        memory_bytes: memory of all its GPUs.
        link_bytes_per_s: bandwidth of its network, each way.
        price_per_hour: US dollars.
        power: peak, in units of a DGX-A100's (Splitwise, table V).
    """

    name: str
    profile: str
    memory_bytes: int
    link_bytes_per_s: float
    price_per_hour: float
    power: float

    def serving(self, cost: IterationCost) -> MachineType:
        """Return the machine with a model on it."""
        return MachineType(self.name, cost, self.memory_bytes, self.link_bytes_per_s)


#: A kind of machine: one of the paper's, whose costs depend on model and decode model, or one with a profile of its own.
MachineKind = Hardware | OwnMachine


@dataclass(frozen=True, slots=True)
class Split:
    """Prompt and token machines of a cluster; all machines of a baseline are in the first."""

    prompt: int
    token: int = 0

    def __post_init__(self) -> None:
        if self.prompt < 1 or self.token < 0:
            raise ValueError("a cluster has at least one machine that computes prompts")

    @property
    def machines(self) -> int:
        """Number of machines."""
        return self.prompt + self.token


@dataclass(frozen=True, slots=True)
class MachineGroup:
    """Equal machines of one pool."""

    kind: MachineKind
    count: int
    pool: Pool

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"{self.kind.name}: the number of machines is at least 0")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Machines that serve together.

    Attributes:
        groups: groups of the paper's machines, or of machines with profiles; machines have ids in their order.
    """

    name: str
    groups: tuple[MachineGroup, ...]

    def __post_init__(self) -> None:
        """Raise `ValueError` where its machines cannot serve together."""
        _ = self.split
        own = self.own_kinds
        if own and len(own) < len({group.kind for group in self.groups}):
            raise ValueError(f"{self.name}: the paper's machines take profiles beside machines that have some")
        if own and self.hands_over:
            require_hand_overs(own)

    @property
    def hands_over(self) -> bool:
        """Whether KV goes from one pool to another."""
        return any(group.pool is not Pool.MIXED for group in self.groups)

    @property
    def own_kinds(self) -> list[OwnMachine]:
        """Its kinds of machine with profiles of their own, each once."""
        return list(dict.fromkeys(group.kind for group in self.groups if isinstance(group.kind, OwnMachine)))

    @property
    def split(self) -> Split:
        """How many machines compute prompts, mixed ones included, and how many tokens alone."""
        token = sum(group.count for group in self.groups if group.pool is Pool.TOKEN)
        return Split(sum(group.count for group in self.groups) - token, token)

    @property
    def label(self) -> str:
        """The name and the machines, like `Splitwise-HA (25, 26)`."""
        return f"{self.name} ({', '.join(str(group.count) for group in self.groups)})"

    @property
    def group_names(self) -> list[str]:
        """A name for each group: its pool's, with the kind's where several groups are of one pool."""
        pools = [group.pool for group in self.groups]
        return [
            group.pool.value if pools.count(group.pool) == 1 else f"{group.pool.value}, {group.kind.name}"
            for group in self.groups
        ]

    @property
    def price_per_hour(self) -> float:
        """US dollars."""
        return sum(group.kind.price_per_hour * group.count for group in self.groups)

    @property
    def power(self) -> float:
        """In units of a DGX-A100's."""
        return sum(group.kind.power * group.count for group in self.groups)


@dataclass(frozen=True, slots=True)
class Design:
    """Kinds of machine of a cluster's pools; a baseline has no token machines, and serves all with the first kind."""

    name: str
    prompt: MachineKind
    token: MachineKind | None = None

    def cluster(self, split: Split) -> Cluster:
        """Return the cluster of a split; raises `ValueError` if the split has token machines and the design none, or the
        reverse, or its machines cannot serve together."""
        if (self.token is None) != (split.token == 0):
            raise ValueError(f"{self.name} cannot be split {split.prompt}, {split.token}")
        if self.token is None:
            return Cluster(self.name, (MachineGroup(self.prompt, split.prompt, Pool.MIXED),))
        groups = MachineGroup(self.prompt, split.prompt, Pool.PROMPT), MachineGroup(self.token, split.token, Pool.TOKEN)
        return Cluster(self.name, groups)

    def price_per_hour(self, split: Split) -> float:
        """US dollars."""
        return self.cluster(split).price_per_hour

    def power(self, split: Split) -> float:
        """In units of a DGX-A100's."""
        return self.cluster(split).power


_GPUS = 8
_DGX_MEMORY_BYTES = _GPUS * 80 * GIB
_A100_POWER = 24.8
_H100_POWER = 44.0
_CAPPED_POWER = 30.8

DGX_A100 = Hardware("dgx-a100", "a100-80gb", _DGX_MEMORY_BYTES, _GPUS * 25e9, _GPUS * 2.21, 1.0)
DGX_H100 = Hardware("dgx-h100", "h100-80gb", _DGX_MEMORY_BYTES, _GPUS * 50e9, _GPUS * 4.76, _H100_POWER / _A100_POWER)
#: The cap slows prompts only, so capped machines serve tokens.
DGX_H100_CAPPED = Hardware(
    "dgx-h100-capped", "h100-80gb-pcap", _DGX_MEMORY_BYTES, _GPUS * 50e9, _GPUS * 4.76, _CAPPED_POWER / _A100_POWER
)

#: By name.
PAPER_MACHINES = {hardware.name: hardware for hardware in (DGX_A100, DGX_H100, DGX_H100_CAPPED)}

BASELINE_A100 = Design("Baseline-A100", DGX_A100)
BASELINE_H100 = Design("Baseline-H100", DGX_H100)
SPLITWISE_AA = Design("Splitwise-AA", DGX_A100, DGX_A100)
SPLITWISE_HH = Design("Splitwise-HH", DGX_H100, DGX_H100)
SPLITWISE_HA = Design("Splitwise-HA", DGX_H100, DGX_A100)
SPLITWISE_HHCAP = Design("Splitwise-HHcap", DGX_H100, DGX_H100_CAPPED)

DESIGNS = {
    design.name: design
    for design in (BASELINE_A100, BASELINE_H100, SPLITWISE_AA, SPLITWISE_HH, SPLITWISE_HA, SPLITWISE_HHCAP)
}

#: The paper's clusters: splits by design, by their common budget and the workload they were made for.
PAPER_SPLITS: Mapping[tuple[str, str], Mapping[str, Split]] = {
    ("iso-power", "conv"): {
        BASELINE_A100.name: Split(70),
        BASELINE_H100.name: Split(40),
        SPLITWISE_AA.name: Split(45, 25),
        SPLITWISE_HH.name: Split(25, 15),
        SPLITWISE_HA.name: Split(25, 26),
        SPLITWISE_HHCAP.name: Split(25, 21),
    },
    ("iso-power", "code"): {
        BASELINE_A100.name: Split(70),
        BASELINE_H100.name: Split(40),
        SPLITWISE_AA.name: Split(55, 15),
        SPLITWISE_HH.name: Split(35, 5),
        SPLITWISE_HA.name: Split(35, 8),
        SPLITWISE_HHCAP.name: Split(35, 7),
    },
    ("iso-cost", "conv"): {
        BASELINE_A100.name: Split(86),
        BASELINE_H100.name: Split(40),
        SPLITWISE_AA.name: Split(51, 35),
        SPLITWISE_HH.name: Split(25, 15),
        SPLITWISE_HA.name: Split(30, 21),
        SPLITWISE_HHCAP.name: Split(30, 10),
    },
}
