"""What the mesh must know of a request to serve it from any worker, at any token.

Law: a request's record holds its inputs and the tokens already committed to the client; with the stateless sampler
(`sampling.py`) that is enough to go on anywhere. The gateway writes it; workers only read it.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.mlfq import QueueLevel
from spotwise.core.request import StopCriteria
from spotwise.core.sampling import SamplingParams


def sequence_id(choice_id: str, epoch: int) -> str:
    """Return the id of one attempt at a request: what an engine and a block pool know it by."""
    return f"{choice_id}@{epoch}"


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One sequence, as kept in the request store.

    Attributes:
        choice_id: the sequence's id; the choices of one API request share the part before `#`.
        epoch: attempt number, from 1; a higher one fences all lower ones.
        gateway_id: who streams it.
        attempt_id: the attempt's number at that gateway; token messages carry it instead of the id.
        model: name the client asked for.
        prompt_token_ids: the prompt.
        output_token_ids: output tokens committed before this attempt; they are computed again, not counted again.
        sampling: how tokens are drawn.
        stop: when it ends; `max_new_tokens` counts `output_token_ids` too.
        arrival_unix_s: when the gateway received it.
        priority: the lower, the earlier its turn, wherever there are turns; the client's, 0 unless it says another.
        tenant: whose it is, for turns among tenants; empty where nobody said.
        model_digest: digest of the weights that `output_token_ids` were computed with; another worker may not go on with
            others. `None` where there are none yet, or a worker without weights drew them.
    """

    choice_id: str
    epoch: int
    gateway_id: str
    attempt_id: int
    model: str
    prompt_token_ids: tuple[int, ...]
    output_token_ids: tuple[int, ...]
    sampling: SamplingParams
    stop: StopCriteria
    arrival_unix_s: float
    priority: int = 0
    tenant: str = ""
    model_digest: str | None = None

    @property
    def sequence_id(self) -> str:
        """Id of this attempt."""
        return sequence_id(self.choice_id, self.epoch)


@dataclass(frozen=True, slots=True)
class KvHandoff:
    """The end of a prompt phase: what the token worker needs besides the KV bytes.

    Attributes:
        choice_id: the sequence.
        epoch: its attempt.
        num_tokens: tokens whose KV travels (the prompt and outputs committed before, not the first new token).
        first_token_id: the token the prefill produced; its KV is not computed yet.
        level: where it stood in the queues of the prompt worker; `None` where that has no queues.
    """

    choice_id: str
    epoch: int
    num_tokens: int
    first_token_id: int
    level: QueueLevel | None = None


@dataclass(frozen=True, slots=True)
class KvTarget:
    """Where a sequence's token phase is to be, with the blocks reserved there for the KV of its prompt.

    Attributes:
        worker_id: who serves the token phase; the worker of the prompt itself, where both phases are in place.
        incarnation: of that worker; a restarted one refuses what was meant for its predecessor.
        address: its transfer listener, `host:port`.
        block_ids: the reserved blocks, in position order; in place none.
    """

    worker_id: str
    incarnation: int
    address: str
    block_ids: tuple[int, ...]
