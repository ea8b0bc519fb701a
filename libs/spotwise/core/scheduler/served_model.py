"""Which model's weights the mesh serves.

Law: one mesh serves one model: that of the worker longest up when the first worker is ready.
The model stays for the scheduler's life, also while no worker of it is present; workers with other weights get no requests.
A restarted scheduler decides anew by the same rule, from registrations; it is final once such a worker sends a heartbeat.
The decision depends on the workers present, not on the order of their messages.
"""

from __future__ import annotations

from collections.abc import Iterable

from spotwise.core.messages.members import Member, MemberState

_LOADED = (MemberState.READY, MemberState.DRAINING)


class ServedModel:
    """The model of one mesh; `digest` is `None` while unknown, and for workers without weights."""

    def __init__(self) -> None:
        self.is_known = False
        self.is_final = False
        self.digest: str | None = None

    def decide(self, workers: Iterable[Member]) -> None:
        """Settle on a model, unless that is final or no worker has loaded one.

        Of the `workers` present, one known from its registration only has no load.
        """
        loaded = [] if self.is_final else [worker for worker in workers if worker.state in _LOADED]
        if loaded:
            longest_up = min(loaded, key=lambda worker: (worker.incarnation, worker.id))
            self.is_known, self.digest = True, longest_up.model_digest
            reporting = (worker for worker in loaded if worker.load is not None)
            self.is_final = any(worker.model_digest == self.digest for worker in reporting)

    def admits(self, worker: Member) -> bool:
        """Tell whether a worker has the served weights, as far as those are known."""
        return not self.is_known or worker.model_digest == self.digest
