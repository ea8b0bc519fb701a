"""Which weights the mesh serves.

Law: one mesh serves one model. It is that of the worker which has been up longest when the first one is ready to work, and
stays so for as long as the scheduler lives, also while no worker of it is there: a client must not be answered by whatever
worker is left. A worker that says another digest takes no requests. A scheduler that starts anew decides anew, by the same
rule, and so comes to the same model where a worker of it has stayed: registrations count, which it reads first. One that may
outlive its worker decides for good only when that worker is heard of.

Invariants: once a worker of it was heard, the model never changes; the decision depends on the workers present, not on the
order of their messages.
"""

from __future__ import annotations

from collections.abc import Iterable

from spotwise.core.members import Member, MemberState

_LOADED = (MemberState.READY, MemberState.DRAINING)


class ServedModel:
    """The model of one mesh.

    Attributes:
        is_known: whether it was decided.
        is_final: whether a worker of it was heard, so that the decision stays.
        digest: of its weights; `None` where it is not known yet, and of workers without weights.
    """

    def __init__(self) -> None:
        self.is_known = False
        self.is_final = False
        self.digest: str | None = None

    def decide(self, workers: Iterable[Member]) -> None:
        """Settle on a model, unless that was done for good or no worker has loaded one.

        Args:
            workers: those present; of one that was only read from its registration the load is not known.
        """
        loaded = [] if self.is_final else [worker for worker in workers if worker.state in _LOADED]
        if loaded:
            longest_up = min(loaded, key=lambda worker: (worker.incarnation, worker.id))
            self.is_known, self.digest = True, longest_up.model_digest
            heard = (worker for worker in loaded if worker.load is not None)
            self.is_final = any(worker.model_digest == self.digest for worker in heard)

    def admits(self, worker: Member) -> bool:
        """Tell whether a worker computes what the mesh serves, as far as that is known."""
        return not self.is_known or worker.model_digest == self.digest
