"""Keeps a configuration while another one gains too little, for as long as loads have lasted before.

Law: the expectation is the mean of the spans that have ended, of which older ones count less, or the age of the present one
where that is more: what has lasted is expected to last as long again, and a burst of short spans is forgotten in time.

Law: a choice that cannot be had any more, or that does not meet the demand while another one has more throughput, is replaced
at once. A choice that serves is replaced once a better one has been there for `hold_s` without a break; a choice that still
waits for instances, by a better one at once.
A choice is better if it is cheaper by `gain`, or at no higher price faster by `gain`; where the kept one is slower than the
policy allows, a choice faster by `gain` is better at any price.

A faster choice pays for its change while it is the best (`_pays`): that time is learned from how long the best shape has stayed
the same (`learned_spans`), so that the more often load and fleet alternate, the greater is the gain that a change takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.instances import ConfigChoice
from spotwise.core.parallel.policy import Policy

#: Weight of the newest span.
_NEWEST = 0.25


class LearnedSpan:
    """Spans that follow one another, from the first end on."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._mean_s: float | None = None

    def ended(self, now: float) -> None:
        """Note that a span ends, and the next one begins; at one time once."""
        if self._began_s is not None:
            span_s = now - self._began_s
            if span_s <= 0:
                return
            self._mean_s = span_s if self._mean_s is None else self._mean_s + _NEWEST * (span_s - self._mean_s)
        self._began_s = now

    def expected_s(self, now: float) -> float:
        """Return the seconds that the present span is expected to last from now on; 0 before the first end."""
        age_s = 0.0 if self._began_s is None else now - self._began_s
        return max(age_s, self._mean_s or 0.0)


_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class ChangeSeconds:
    """What a change takes: seconds until the new configuration serves, while the old one does; and those for which each request
    that it interrupts pauses.
    """

    forms_s: float = 0.0
    pause_s: float = 0.0


class KeptChoice:
    """A configuration, with hysteresis."""

    def __init__(self, gain: float, hold_s: float) -> None:
        self._gain = gain
        self._hold_s = hold_s
        self._better_since_s: float | None = None
        self._best: ParallelConfig | None = None
        self._span = LearnedSpan()  # in which it is the best shape
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
        change: ChangeSeconds | None = None,
    ) -> ConfigChoice | None:
        """Return the choice to keep.

        Args:
            new: the best one now.
            current: `choice` with its present figures, or the best of its shape; `None`: neither can be had, or there is none.
            policy: the one that `new` was chosen by.
            is_held: all instances of `current` are there or come.
            is_reachable: `new` can be bought beside what is held.
            change: to `new`; `None`: it takes no time.
        """
        if new is not None and new.config.shape != self._best:
            self._best = new.config.shape
            self._span.ended(now)
        if current is None or new is None or _is_more(new, current):
            return self.take(new if new is not None else current)
        self.choice = current
        if not is_reachable or not self._is_better(new, current, policy, change or ChangeSeconds(), now):
            self._better_since_s = None
            return current
        if self._better_since_s is None:
            self._better_since_s = now
        return self.take(new) if not is_held or now - self._better_since_s >= self._hold_s else current

    def take(self, choice: ConfigChoice | None) -> ConfigChoice | None:
        """Keep a choice from now on, and return it."""
        self.choice, self._better_since_s = choice, None
        return choice

    def _is_better(
        self, new: ConfigChoice, current: ConfigChoice, policy: Policy, change: ChangeSeconds, now: float
    ) -> bool:
        if new.meets_demand < current.meets_demand or (
            not new.meets_demand and new.throughput < current.throughput * (1 - _ROUNDING)
        ):
            return False
        if current.meets_demand:
            new_s, current_s = new.request_s, current.request_s
        else:
            new_s, current_s = new.execution_s, current.execution_s
        is_faster = new_s <= current_s * (1 - self._gain) < current_s and self._pays(new_s, current_s, change, now)
        if current.meets_demand:
            enough_s = max(new.request_s * (1 + policy.latency_slack), policy.latency_target_s or 0.0)
            if current.request_s > enough_s * (1 + _ROUNDING) and is_faster:
                return True
        if new.price_per_h <= current.price_per_h * (1 - self._gain) < current.price_per_h:
            return True
        return new.price_per_h <= current.price_per_h * (1 + _ROUNDING) and is_faster

    def _pays(self, new_s: float, current_s: float, change: ChangeSeconds, now: float) -> bool:
        """Return whether a change spares requests more than it costs them, while its shape is expected to be the best.

        At a rate r it spares r x (l - l') a second from when the new one serves. It costs its pause to the r x l requests that
        run (Little's law), and half of it to the r x pause that come meanwhile. r is on both sides.
        """
        used_s = self._span.expected_s(now) - change.forms_s
        return (current_s - new_s) * used_s >= change.pause_s * (current_s + change.pause_s / 2)


def _is_more(new: ConfigChoice, current: ConfigChoice) -> bool:
    """Return whether the demand is not met, and met better by the new choice."""
    return not current.meets_demand and new.throughput > current.throughput * (1 + _ROUNDING)
