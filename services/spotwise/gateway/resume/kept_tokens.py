"""The tokens of kept requests, as they are saved and as another gateway goes on from them.

A chunk of them is the index of its choice (none for the first), a blank and a `TokenBatch`. To read or write many is work for
a thread.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import replace

from spotwise.core.gateway.kept_request import KeptAttempt
from spotwise.core.messages.mesh import TokenBatch, TokenDelta
from spotwise.gateway.generate.generation import EarlierTokens, GeneratedTokens, SequenceSpec
from spotwise.gateway.generate.token_stream import saved
from spotwise.wire.codec import decode, encode


def written_chunk(index: int, deltas: Sequence[TokenDelta], digest: str | None) -> bytes:
    """Return tokens of a choice as a chunk; `digest` is of the weights that drew them."""
    return (str(index) if index else "").encode() + b" " + encode(TokenBatch(digest or "", tuple(deltas)))


def read_chunks(chunks: Iterable[bytes], choices: int) -> list[EarlierTokens]:
    """Return what was saved of each choice."""
    deltas: list[list[TokenDelta]] = [[] for _ in range(choices)]
    digests: list[str | None] = [None] * choices
    for chunk in chunks:
        number, _, payload = chunk.partition(b" ")
        batch, index = decode(payload), int(number or 0)
        assert isinstance(batch, TokenBatch)
        digests[index] = batch.worker_id or digests[index]
        deltas[index] += [delta for delta in batch.deltas if delta.token_index >= len(deltas[index])]
    return [EarlierTokens(0, tuple(each), digest) for each, digest in zip(deltas, digests, strict=True)]


def tokens_to_go_on(chunks: Iterable[bytes], choices: int) -> list[EarlierTokens]:
    """Return what was saved of each choice, and as one chunk, in which it is saved again where the store loses it."""
    return [
        replace(each, chunk=written_chunk(index, each.deltas, each.model_digest)) if each.deltas else each
        for index, each in enumerate(read_chunks(chunks, choices))
    ]


def after_attempt(earlier: EarlierTokens, attempt: KeptAttempt | None) -> EarlierTokens:
    """Return the tokens of a choice with its latest attempt; a choice with tokens had one."""
    if attempt is None:
        return replace(earlier, epoch=1 if earlier.deltas else 0)
    return replace(earlier, epoch=attempt.epoch, stop=attempt.stop)


async def saved_tokens(choice_id: str, spec: SequenceSpec) -> AsyncGenerator[GeneratedTokens, None]:
    """Give the tokens of a request that is over; where none has a finish reason, a stop string has ended the text."""
    if spec.earlier is not None and (tokens := saved(choice_id, spec.earlier)) is not None:
        yield tokens
