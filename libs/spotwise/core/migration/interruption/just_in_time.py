"""Just-in-time arrangement: how many steps a batch decodes before a migration (SpotServe, section 4.1).

Law: before a preemption, the most steps S with l_exe(S) < T_left - T_mig: the migration ends within the notice.
Migration pays only if T_mig < l_exe(S); else the batch is re-routed now and recomputed. If its whole output fits, it finishes.
`arrangement.py` decides by request; this rule reproduces the paper's figures.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Stop(StrEnum):
    """What happens to a batch."""

    FINISH = "finish"  #: it ends here
    MIGRATE = "migrate"  #: it decodes so many steps, and resumes remotely with its KV
    REROUTE = "reroute"  #: it stops now, and is computed remote


@dataclass(frozen=True, slots=True)
class StopAfter:
    """When a batch stops: tokens that each of its sequences still decodes here (0 where it is re-routed), and their seconds."""

    stop: Stop
    steps: int
    execution_s: float


@dataclass(frozen=True, slots=True)
class LinearExecution:
    """Seconds of the next S steps: a fixed part (the rest of an iteration, or the prompt) plus S steps."""

    fixed_s: float
    step_s: float

    def __post_init__(self) -> None:
        if self.fixed_s < 0 or self.step_s <= 0:
            raise ValueError(f"fixed_s must be at least 0 and step_s above 0: {self}")

    def __call__(self, steps: int) -> float:
        """Return the seconds of so many steps."""
        return self.fixed_s + steps * self.step_s


def before_preemption(
    execution_s: Callable[[int], float], remaining_steps: int, left_s: float, migration_s: float
) -> StopAfter:
    """Return when a batch on an instance under notice stops.

    Args:
        execution_s: seconds of the next S steps, l_exe(S); must not fall as S rises.
        remaining_steps: until all of the batch has ended, S_out.
        left_s, migration_s: until the instance is reclaimed, T_left; of the migration, T_mig.
    """
    _check(remaining_steps, migration_s)
    most = bisect_left(range(remaining_steps + 1), left_s - migration_s, key=execution_s) - 1
    if most < 0:
        return _REROUTED
    return _if_it_pays(execution_s, most, remaining_steps, migration_s)


_REROUTED = StopAfter(Stop.REROUTE, 0, 0.0)


def _if_it_pays(execution_s: Callable[[int], float], steps: int, remaining_steps: int, migration_s: float) -> StopAfter:
    seconds = execution_s(steps)
    if steps == remaining_steps:
        return StopAfter(Stop.FINISH, steps, seconds)
    return StopAfter(Stop.MIGRATE, steps, seconds) if migration_s < seconds else _REROUTED


def _check(remaining_steps: int, migration_s: float) -> None:
    if remaining_steps < 0 or migration_s < 0:
        raise ValueError(
            f"remaining_steps ({remaining_steps}) and migration_s ({migration_s}) must be at least 0; "
            "a batch that has ended has 0 steps left"
        )
