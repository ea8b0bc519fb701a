"""A request's inputs and committed tokens, from which any worker can continue at any token: the sampler is stateless."""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.requests.kv_part import KvPart
from spotwise.core.requests.names import AdapterRef
from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import SamplingParams
from spotwise.core.values import value


def sequence_id(choice_id: str, epoch: int) -> str:
    """Return the id of one attempt, for engines and block pools."""
    return f"{choice_id}@{epoch}"


@dataclass(frozen=True, slots=True)
class QueueLevel:
    """A job's level for a move to another machine: its queue, 1 the top, and the share of its quantum `used`, 0 to 1."""

    queue: int
    used: float

    def __post_init__(self) -> None:
        if self.queue < 1 or not 0.0 <= self.used <= 1.0:
            raise ValueError(f"no level: {self.used} of the quantum of queue {self.queue}")


@value
class RequestRecord:
    """One sequence, as kept in the request store; the gateway writes it, workers only read it.

    Attributes:
        choice_id: the choices of one API request share the part before `#`.
        epoch: attempt number, from 1; a higher one fences all lower ones.
        attempt_id: the attempt's number at its gateway; token messages carry it.
        output_token_ids: committed before this attempt; their KV is computed again. `stop.max_new_tokens` counts them too.
        priority: the client's, the lower the earlier.
        tenant: for fairness among tenants; empty by default.
        model_digest: digest of the weights that `output_token_ids` were computed with, which other workers must have.
            `None` without output tokens, or from workers without weights.
        prefix_salt: KV of its prompt is shared with requests of the same salt only (`prefixes.py`).
        deadline_unix_s: Unix time at which the client gives up, from which on nothing is computed; `None` without one.
        adapter: with which all its tokens are computed; `None`: with the model alone.
        numerics_classes: the classes in which `output_token_ids` were computed (`numerics.py`), each once, the latest last.
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
    prefix_salt: str = ""
    deadline_unix_s: float | None = None
    adapter: AdapterRef | None = None
    numerics_classes: tuple[str, ...] = ()

    @property
    def sequence_id(self) -> str:
        """Id of this attempt."""
        return sequence_id(self.choice_id, self.epoch)


@value
class KvHandoff:
    """What the receiver of a sequence needs besides the KV bytes of `num_tokens` tokens: the attempt's tokens, the last of them
    without KV yet, and the level in the sender's queues (`None` without). At the end of a prompt phase there is one token, the
    prefill's; a sequence that moves in its token phase has `later_token_ids` as well. `numerics_class`: the sender's;
    `has_foreign_kv`: some of the KV is of another class.
    """

    choice_id: str
    epoch: int
    num_tokens: int
    first_token_id: int
    level: QueueLevel | None = None
    later_token_ids: tuple[int, ...] = ()
    numerics_class: str = ""
    has_foreign_kv: bool = False

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens of the attempt so far."""
        return self.first_token_id, *self.later_token_ids


@value
class KvShare:
    """One process of a worker, and the part of its KV that it keeps: a block has the same number in each.

    Attributes:
        member_id: its own, also in a group's leader.
        incarnation: incarnation of that process.
        address: its transfer listener, `host:port`.
    """

    member_id: str
    incarnation: int
    address: str
    part: KvPart


@value
class KvSource:
    """The KV of a sequence that is pushed.

    Attributes:
        block_ids: in position order.
        num_tokens: tokens of a prompt that is computed while it is pushed, or before; `None` for a sequence that decodes on.
        written_tokens: those with KV already.
        number: number of the push, as `OpenPush` has it.
    """

    choice_id: str
    epoch: int
    block_ids: tuple[int, ...]
    num_tokens: int | None
    written_tokens: int
    number: int = 0


@value
class KvTarget:
    """The worker of a sequence's token phase, and the blocks reserved there for its prompt's KV, in position order.

    Attributes:
        worker_id: the prompt's worker itself where both phases are in place; no blocks then.
        incarnation: incarnation of that worker; a restarted one refuses its predecessor's hand-offs.
        address: its transfer listener, `host:port`.
        shares: the processes that keep its KV; none where it keeps all itself.
    """

    worker_id: str
    incarnation: int
    address: str
    block_ids: tuple[int, ...]
    shares: tuple[KvShare, ...] = ()
