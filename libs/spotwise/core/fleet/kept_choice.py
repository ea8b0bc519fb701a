"""Keeps a configuration until another one is needed, or has been better for long enough.

Law: a choice that cannot be had any more, or that does not meet the demand while another one has more throughput, is replaced
at once. One that serves is replaced once a better choice has been there for `hold_s` without a break; one that still waits
for instances, by a better one at once.
Better is what is cheaper by `gain`, or at no higher price faster by `gain`; where the kept one is slower than the policy
allows, what is faster by `gain` at any price.
"""

from __future__ import annotations

from spotwise.core.parallel.choice import ConfigChoice
from spotwise.core.parallel.policy import Policy

_ROUNDING = 1e-9


class KeptChoice:
    """A configuration, with hysteresis."""

    def __init__(self, gain: float, hold_s: float) -> None:
        self._gain = gain
        self._hold_s = hold_s
        self._better_since_s: float | None = None
        self.choice: ConfigChoice | None = None

    def update(
        self,
        new: ConfigChoice | None,
        current: ConfigChoice | None,
        policy: Policy,
        now: float,
        *,
        is_held: bool = True,
        is_reachable: bool = True,
    ) -> ConfigChoice | None:
        """Return the choice to keep.

        Args:
            new: the best one now.
            current: `choice` with its present figures; `None`: it cannot be had, or there is none.
            policy: the one that `new` was chosen by.
            is_held: all instances of `current` are there or come.
            is_reachable: `new` can be bought beside what is held.
        """
        if current is None or new is None or _is_more(new, current):
            return self.take(new if new is not None else current)
        self.choice = current
        if not is_reachable or not self._is_better(new, current, policy):
            self._better_since_s = None
            return current
        if self._better_since_s is None:
            self._better_since_s = now
        return self.take(new) if not is_held or now - self._better_since_s >= self._hold_s else current

    def take(self, choice: ConfigChoice | None) -> ConfigChoice | None:
        """Keep a choice from now on, and return it."""
        self.choice, self._better_since_s = choice, None
        return choice

    def _is_better(self, new: ConfigChoice, current: ConfigChoice, policy: Policy) -> bool:
        if new.meets_demand < current.meets_demand or (
            not new.meets_demand and new.throughput < current.throughput * (1 - _ROUNDING)
        ):
            return False
        if current.meets_demand:
            is_faster = new.request_s <= current.request_s * (1 - self._gain) < current.request_s
            enough_s = max(new.request_s * (1 + policy.latency_slack), policy.latency_target_s or 0.0)
            if current.request_s > enough_s * (1 + _ROUNDING) and is_faster:
                return True
        else:
            is_faster = new.execution_s <= current.execution_s * (1 - self._gain) < current.execution_s
        if new.price_per_h <= current.price_per_h * (1 - self._gain) < current.price_per_h:
            return True
        return new.price_per_h <= current.price_per_h * (1 + _ROUNDING) and is_faster


def _is_more(new: ConfigChoice, current: ConfigChoice) -> bool:
    """Return whether the demand is not met, and met better by the new choice."""
    return not current.meets_demand and new.throughput > current.throughput * (1 + _ROUNDING)
