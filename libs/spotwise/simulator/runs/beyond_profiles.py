"""The parts of a run beyond the measurements of its machines' profiles: by kind of machine, and in all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spotwise.core.costs.cost_model import BatchShape
from spotwise.core.costs.measured_range import Extrapolation, TimeBeyond
from spotwise.simulator.runs.clusters import MachineKind
from spotwise.simulator.runs.own_machines import OwnMachine


@dataclass(frozen=True, slots=True)
class KindBeyond:
    """The shares of the time of all machines of one kind, by its name."""

    kind: str
    beyond: Extrapolation


@dataclass(frozen=True, slots=True)
class BeyondProfiles:
    """Which part of the iterations' time is extrapolated, of the kinds of machine whose profiles say how far they measured.

    Attributes:
        share: share of the time of all these machines together, 0 to 1.
        kinds: at least one, in the cluster's order.
    """

    share: float
    kinds: tuple[KindBeyond, ...]


class TimeBeyondProfiles:
    """Adds up the time of iterations by kind of machine, and of those beyond its profile's range; nothing of kinds that have
    none. `kinds` are by the machines' ids."""

    def __init__(self, kinds: Mapping[str, MachineKind]) -> None:
        self._of_kind: dict[OwnMachine, TimeBeyond] = {}
        self._of_machine: dict[str, TimeBeyond] = {}
        for machine_id, kind in kinds.items():
            if isinstance(kind, OwnMachine) and kind.profile.measured is not None:
                of_kind = self._of_kind.get(kind) or self._of_kind.setdefault(kind, TimeBeyond(kind.profile.measured))
                self._of_machine[machine_id] = of_kind

    def count(self, machine_id: str, shape: BatchShape, seconds: float) -> None:
        """Count a machine's iterations of this shape, `seconds` long in all."""
        beyond = self._of_machine.get(machine_id)
        if beyond is not None:
            beyond.count(shape, seconds)

    def in_all(self) -> BeyondProfiles | None:
        """Return the shares so far; `None` where no profile says how far it measured."""
        if not self._of_kind:
            return None
        total_s = sum(each.total_s for each in self._of_kind.values()) or 1.0
        share = sum(each.beyond_s for each in self._of_kind.values()) / total_s
        return BeyondProfiles(
            share, tuple(KindBeyond(kind.name, each.extrapolation()) for kind, each in self._of_kind.items())
        )
