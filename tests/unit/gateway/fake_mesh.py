"""A mesh in memory: the `Generation` port for tests of the HTTP layer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from spotwise.core.requests.request import FinishReason
from spotwise.core.requests.sampling import Pooling, SampledToken, TokenLogprobs
from spotwise.gateway.generate.embedding_model import EmbeddingModel
from spotwise.gateway.generate.generation import GeneratedTokens, MeshHealth, SequenceSpec, TextEndedError
from spotwise.http.errors import GenerationError

MODEL = "acme/tiny-chat"
CONTEXT_LENGTH = 256
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "Hi"}
RESPONSE: dict[str, Any] = {"model": MODEL, "input": "Hi"}
EMBEDDING: dict[str, Any] = {"model": MODEL, "input": "Hi"}
MESSAGE: dict[str, Any] = CHAT | {"max_tokens": 64}
CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
#: Paths with a body for each: OpenAI's first two, and all whose requests go to the mesh.
BOTH = {CHATS: CHAT, COMPLETIONS: COMPLETION}
PATHS = {**BOTH, "/v1/responses": RESPONSE, "/v1/messages": MESSAGE, "/v1/embeddings": EMBEDDING}
#: Of the model, where it has embeddings.
EMBEDDINGS = EmbeddingModel(Pooling.LAST, size=4, is_matryoshka=True)


@dataclass
class FakeMesh:
    """Answers every sequence with `reply` (choice i with `replies[i]` if set), one token an item, and keeps the books.

    Like the real mesh it ends at stop token ids and at the length.
    """

    reply: Sequence[int] = ()
    replies: dict[int, Sequence[int]] = field(default_factory=dict)
    batch_tokens: int = 1
    fail_at: int | None = None  #: raise before this token
    fail_index: int | None = None  #: only in this choice
    error: Exception = field(default_factory=lambda: GenerationError(503, "mesh_full", "All workers are full.", 1.4))
    hang_at: int | None = None  #: wait for ever before this token
    hung: asyncio.Queue[str] = field(default_factory=asyncio.Queue)  #: the choices that wait so
    announces: bool = False  #: report at once that the sequence was accepted
    ready: bool = True
    problem: str | None = None  #: why it takes no requests
    cached: dict[int, int] = field(default_factory=dict)  #: prompt tokens whose KV was there already, by choice
    specs: dict[str, SequenceSpec] = field(default_factory=dict)
    tokens_sent: dict[str, int] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    cancelled: list[str] = field(default_factory=list)
    text_ended: list[str] = field(default_factory=list)  #: those of the cancelled whose text a stop string ended

    @property
    def spec(self) -> SequenceSpec:
        """The only sequence's."""
        (spec,) = self.specs.values()
        return spec

    def why_not_ready(self) -> str | None:
        return self.problem

    async def health(self) -> MeshHealth:
        return MeshHealth(self.ready, "2 workers" if self.ready else "no workers", {"prompt": 1, "token": 1})

    async def generate(self, choice_id: str, spec: SequenceSpec) -> AsyncGenerator[GeneratedTokens, None]:
        index = int(choice_id.partition("#")[2] or 0)
        self.specs[choice_id] = spec
        self.tokens_sent[choice_id] = 0
        self.open.add(choice_id)
        finished = False
        try:
            if self.announces:
                yield GeneratedTokens(())
            batch: list[SampledToken] = []
            for position, token_id in enumerate(self.replies.get(index, self.reply)):
                await asyncio.sleep(0)
                if position == self.fail_at and self.fail_index in (None, index):
                    raise self.error
                if position == self.hang_at:
                    self.hung.put_nowait(choice_id)
                    await asyncio.Event().wait()
                batch.append(_sampled(choice_id, spec, position, token_id))
                reason = spec.stop.finish_reason(token_id, position + 1)
                if reason is not None or len(batch) == self.batch_tokens:
                    self.tokens_sent[choice_id] += len(batch)
                    finished = reason is not None
                    is_first = self.tokens_sent[choice_id] == len(batch)
                    yield GeneratedTokens(tuple(batch), reason, self.cached.get(index, 0) if is_first else 0)
                    batch = []
                if finished:
                    return
            finished = True
            yield GeneratedTokens(tuple(batch), FinishReason.LENGTH)
        except TextEndedError:
            self.text_ended.append(choice_id)
            raise
        finally:
            self.open.discard(choice_id)
            if not finished:
                self.cancelled.append(choice_id)


def _sampled(choice_id: str, spec: SequenceSpec, position: int, token_id: int) -> SampledToken:
    def scores(count: int | None) -> TokenLogprobs | None:
        if count is None:
            return None
        others = tuple(range(300, 300 + count))
        return TokenLogprobs(-0.5, others, tuple(-1.0 - rank for rank in range(count)))

    prompt_count = spec.sampling.prompt_logprobs
    prompt = None
    if position == 0 and prompt_count is not None:
        prompt = (None, *(scores(prompt_count) for _ in spec.prompt_token_ids[1:]))
    embedding = embedding_of(spec.prompt_token_ids) if position == 0 and spec.sampling.pooling is not None else None
    return SampledToken(choice_id, token_id, scores(spec.sampling.logprobs), prompt, embedding=embedding)


def embedding_of(prompt_token_ids: Sequence[int]) -> tuple[float, ...]:
    """The embedding that the mesh gives for a prompt: of `EMBEDDINGS.size` numbers, none of them like another prompt's."""
    return (float(len(prompt_token_ids)), float(prompt_token_ids[0]), -0.1, float(sum(prompt_token_ids)))
