"""The scheduling policies by name: settings, command line and simulator offer what is in this table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spotwise.core.worker.kv.prefix_cache import PrefixCache
from spotwise.core.worker.policy import Discipline, WorkerPolicy
from spotwise.core.worker.scheduling.mlfq_policy import mlfq_policy_of
from spotwise.core.worker.scheduling.policy import KeyedPolicy, SchedulingPolicy, by_priority, by_tokens_left
from spotwise.core.worker.sequences.table import SequenceTable


@dataclass(frozen=True, slots=True)
class RegisteredPolicy:
    """How a scheduling policy is made for one worker; `needs_oracle`: for answers' lengths, known in simulation only."""

    make: Callable[[WorkerPolicy, SequenceTable, PrefixCache], SchedulingPolicy]
    needs_oracle: bool = False


SCHEDULING_POLICIES: dict[str, RegisteredPolicy] = {
    Discipline.FCFS: RegisteredPolicy(lambda *_: KeyedPolicy()),
    Discipline.PRIORITY: RegisteredPolicy(lambda *_: KeyedPolicy(by_priority)),
    Discipline.SRPT: RegisteredPolicy(lambda *_: KeyedPolicy(by_tokens_left), needs_oracle=True),
    Discipline.MLFQ: RegisteredPolicy(mlfq_policy_of),
}


def served_policies() -> list[str]:
    """Return the names of the scheduling policies that live workers offer."""
    return [str(name) for name, registered in SCHEDULING_POLICIES.items() if not registered.needs_oracle]


def scheduling_policy_of(policy: WorkerPolicy, table: SequenceTable, prefixes: PrefixCache) -> SchedulingPolicy:
    """Return a worker's scheduling policy; `ValueError` where none has that name."""
    registered = SCHEDULING_POLICIES.get(policy.discipline)
    if registered is None:
        raise ValueError(
            f"no scheduling policy is named {policy.discipline!r}; there are {', '.join(SCHEDULING_POLICIES)}"
        )
    return registered.make(policy, table, prefixes)
