"""The forms in which a prepared request and its tokens are kept, from which another gateway continues.

A chunk of them is the index of its choice (none for the first), the digest of the weights that drew them, the numerics classes
of all tokens so far (separated by commas) and a `TokenBatch`, with blanks between. To read or write many is work for a thread.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from spotwise.core.gateway.kept_request import KeptAttempt, KeptRequest
from spotwise.core.messages.mesh import TokenBatch, TokenDelta
from spotwise.gateway.generate.generation import EarlierTokens, GeneratedTokens, SequenceSpec
from spotwise.gateway.generate.prepared_request import PreparedBody, PreparedRequest, hash_of
from spotwise.gateway.generate.token_stream import saved
from spotwise.wire.codec import decode, encode

#: Headers for which an answer is kept that is no stream, or looked for among those that are kept.
KEEPING_HEADERS = frozenset({"idempotency-key", "x-spotwise-resumable", "last-event-id"})


def hash_of_body(endpoint: str, parsed: Mapping[str, Any]) -> str:
    """Return a hash of a request's body, whatever the order of its fields."""
    return hash_of(endpoint, orjson.dumps(parsed, option=orjson.OPT_SORT_KEYS))


def form_of(body: PreparedBody, *, key_name: str, claim: str, is_resumable: bool) -> KeptRequest:
    """Return the form of a new request."""
    prepared = body.prepared
    return KeptRequest(
        request_id=prepared.request_id,
        scope=prepared.scope,
        endpoint=body.endpoint,
        body=body.body.decode(),
        body_hash=body.body_hash,
        created_unix_s=prepared.created_unix_s,
        seeds=tuple(sequence.spec.sampling.seed for sequence in prepared.sequences),
        prompt_hash=prepared.prompt_hash,
        is_resumable=is_resumable,
        claim=claim,
        client_request_id=prepared.sequences[0].spec.client_request_id,
        key_name=key_name,
        deadline_unix_s=prepared.sequences[0].spec.deadline_unix_s,
    )


def claim_of(scope: str, idempotency_key: str) -> str:
    """Return the name under which a caller's idempotency key is claimed; empty without a key."""
    return hash_of(scope, idempotency_key) if idempotency_key else ""


def owned(prepared: PreparedRequest, owner: str, earlier: Sequence[EarlierTokens] = ()) -> PreparedRequest:
    """Return a kept request as its owner runs it, after the tokens that there are of each choice."""
    sequences = tuple(
        replace(each, spec=replace(each.spec, owner=owner, earlier=earlier[index] if earlier else None))
        for index, each in enumerate(prepared.sequences)
    )
    return replace(prepared, sequences=sequences)


def written_chunk(
    index: int, deltas: Sequence[TokenDelta], digest: str | None, numerics_classes: Iterable[str] = ()
) -> bytes:
    """Return tokens of a choice as a chunk; `digest` is of the weights that drew them, `numerics_classes` are those of all
    tokens so far.
    """
    return f"{index or ''} {digest or ''} {','.join(numerics_classes)} ".encode() + encode(
        TokenBatch("", tuple(deltas))
    )


def read_chunks(chunks: Iterable[bytes], choices: int) -> list[EarlierTokens]:
    """Return what was saved of each choice."""
    deltas: list[list[TokenDelta]] = [[] for _ in range(choices)]
    digests: list[str | None] = [None] * choices
    classes: list[tuple[str, ...]] = [()] * choices
    for chunk in chunks:
        number, digest, names, payload = chunk.split(b" ", 3)
        batch, index = decode(payload), int(number or 0)
        assert isinstance(batch, TokenBatch)
        digests[index] = digest.decode() or digests[index]
        classes[index] = tuple(names.decode().split(",")) if names else classes[index]
        deltas[index] += [delta for delta in batch.deltas if delta.token_index >= len(deltas[index])]
    return [
        EarlierTokens(0, tuple(each), digest, known)
        for each, digest, known in zip(deltas, digests, classes, strict=True)
    ]


def tokens_to_go_on(chunks: Iterable[bytes], choices: int) -> list[EarlierTokens]:
    """Return what was saved of each choice, and as one chunk, in which it is saved again where the store loses it."""
    return [
        replace(each, chunk=written_chunk(index, each.deltas, each.model_digest, each.numerics_classes))
        if each.deltas
        else each
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
