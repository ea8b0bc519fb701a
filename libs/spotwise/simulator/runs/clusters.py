"""Clusters as values: kinds of machine, how many of each are in which pool; and designs, which have a cluster a split."""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.costs.cost_model import IterationCost
from spotwise.core.messages.members import Pool
from spotwise.simulator.costs.hardware import MachineType
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
