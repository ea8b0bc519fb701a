"""The port through which the HTTP layer uses the mesh: token ids in, token ids out.

It knows nothing of HTTP, text or NATS. The HTTP layer closes every generator that it opened; closing cancels the sequence, and
the mesh frees its KV.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from spotwise.core.messages.mesh import TokenDelta
from spotwise.core.requests.names import AdapterRef
from spotwise.core.requests.request import FinishReason, StopCriteria
from spotwise.core.requests.sampling import SampledToken, SamplingParams


@dataclass(frozen=True, slots=True)
class EarlierTokens:
    """What came of a sequence at gateways that had it before.

    Attributes:
        epoch: their last attempt; 0 without any.
        deltas: the tokens that they saved, in order, from the first on.
        model_digest: digest of the weights that drew them.
        numerics_classes: those that they were computed in, the latest last.
        stop: as they had fitted it to the workers; `None` where nothing was submitted.
        chunk: the tokens as they are saved, where they may have to be saved again.
    """

    epoch: int = 0
    deltas: tuple[TokenDelta, ...] = ()
    model_digest: str | None = None
    numerics_classes: tuple[str, ...] = ()
    stop: StopCriteria | None = None
    chunk: bytes = b""

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the sequence has ended; `None` where it has not."""
        return self.deltas[-1].finish_reason if self.deltas else None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Their ids."""
        return tuple(delta.token_id for delta in self.deltas if delta.token_id is not None)


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """One sequence to generate.

    Attributes:
        prompt_token_ids: the prompt, at least one token.
        sampling: how tokens are drawn; the seed is always set.
        stop: when the sequence ends, as far as token ids can tell.
        unbounded: the client gave no `max_tokens`: `stop.max_new_tokens` fills the context, and the mesh may lower it to
            what its workers hold.
        priority: a lower one is scheduled earlier.
        tenant: for fair sharing; empty where unknown.
        prefix_salt: KV of its prompt is shared with requests of the same salt only.
        deadline_unix_s: Unix time at which the client gives up, and the mesh with it; `None` without a deadline.
        client_request_id: what the client calls the request; empty where it gave no id.
        owner: under which the request is kept, and its tokens are saved; empty where it is not.
        earlier: its tokens so far, where this gateway has taken it over.
        adapter: adapter of the model with which it is computed; `None`: without one.
    """

    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    stop: StopCriteria
    unbounded: bool = False
    priority: int = 0
    tenant: str = ""
    client_request_id: str = ""
    prefix_salt: str = ""
    deadline_unix_s: float | None = None
    owner: str = ""
    earlier: EarlierTokens | None = None
    adapter: AdapterRef | None = None


@dataclass(frozen=True, slots=True)
class GeneratedTokens:
    """Tokens that became known together, in order.

    Attributes:
        tokens: one or more; none in a first item that reports acceptance only.
        finish_reason: set on the last item.
        cached_tokens: with the first token: prompt tokens whose KV was cached.
        prefill_s: with the first token: what its prefill took; `None` where an earlier attempt was lost.
    """

    tokens: tuple[SampledToken, ...]
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    prefill_s: float | None = None


@dataclass(frozen=True, slots=True)
class MeshHealth:
    """Whether the mesh can serve now.

    Attributes:
        ready: a request sent now has workers to run on.
        detail: one sentence, why or why not.
        workers: live workers by kind.
    """

    ready: bool
    detail: str
    workers: Mapping[str, int] = field(default_factory=dict)


class TextEndedError(Exception):
    """Thrown into a generator that its user closes because a stop string has ended the text; it passes through."""


#: Gives the tokens of a sequence, from the first on: from a choice's id and what to run. All that generates has this shape: the
#: mesh, which saves the tokens of kept requests (`mesh/client.py`), the log that many connections read (`request_log.py`), and
#: what is whole in the store (`kept_forms.py`). Errors and closing are as in `Generation.generate`.
Generate = Callable[[str, SequenceSpec], AsyncGenerator[GeneratedTokens, None]]


class Generation(Protocol):
    """The mesh, as the gateway's HTTP layer sees it."""

    def generate(self, choice_id: str, spec: SequenceSpec) -> AsyncGenerator[GeneratedTokens, None]:
        """Generate one sequence. Closing the generator, or throwing `TextEndedError` into it, cancels its work in the mesh.

        An optional first item without tokens reports that the mesh accepted the sequence; HTTP streams start with it.
        The last item has a finish reason.

        Raises:
            GenerationError: the sequence cannot be served, at once or from some token on.
        """

    def why_not_ready(self) -> str | None:
        """Return why requests are to be sent to another gateway; `None` where this one takes them, though they may wait."""

    async def health(self) -> MeshHealth:
        """Return whether requests can be served."""
