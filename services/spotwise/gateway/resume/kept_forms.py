"""The forms in which a plan and its tokens are kept, from which another gateway continues.

A chunk of them is the index of its choice (none for the first), a blank and a `TokenBatch`. To read or write many is work for
a thread.
"""

from __future__ import annotations

import hashlib
import time
from array import array
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from spotwise.core.gateway.kept_request import KeptAttempt, KeptRequest
from spotwise.core.messages.mesh import TokenBatch, TokenDelta
from spotwise.gateway.generate.generation import EarlierTokens, GeneratedTokens, SequenceSpec
from spotwise.gateway.generate.plan import GenerationPlan
from spotwise.gateway.generate.token_stream import saved
from spotwise.http.errors import ApiError
from spotwise.wire.codec import decode, encode


def hash_of(*parts: bytes | str) -> str:
    """Return a hash of texts; where one ends matters."""
    whole = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        whole.update(len(content).to_bytes(8, "big") + content)
    return whole.hexdigest()


def hash_of_body(endpoint: str, parsed: Mapping[str, Any]) -> str:
    """Return a hash of a request's body, whatever the order of its fields."""
    return hash_of(endpoint, orjson.dumps(parsed, option=orjson.OPT_SORT_KEYS))


def form_of(
    plan: GenerationPlan,
    endpoint: str,
    body: bytes,
    body_hash: str,
    *,
    scope: str,
    key_name: str,
    idempotency_key: str,
    is_resumable: bool,
    client_request_id: str,
) -> KeptRequest:
    """Return the form of a new request."""
    return KeptRequest(
        request_id=plan.request_id,
        scope=scope,
        endpoint=endpoint,
        body=body.decode(),
        body_hash=body_hash,
        created_unix_s=int(time.time()),
        seeds=tuple(sequence.spec.sampling.seed for sequence in plan.sequences),
        prompt_hash=plan.prompt_hash,
        is_resumable=is_resumable,
        claim=hash_of(scope, idempotency_key) if idempotency_key else "",
        client_request_id=client_request_id,
        key_name=key_name,
        deadline_unix_s=plan.sequences[0].spec.deadline_unix_s,
    )


def restored(
    plan: GenerationPlan, form: KeptRequest, owner: str = "", earlier: Sequence[EarlierTokens | None] = ()
) -> GenerationPlan:
    """Return a plan, new or made of the kept body again, as the request of the form.

    Raises:
        ApiError: 409, the body gives other prompts here.
    """
    if plan.prompt_hash != form.prompt_hash or len(plan.sequences) != len(form.seeds):
        message = "This gateway makes another prompt of the request (its model's files differ); send the request anew."
        raise ApiError(409, message, code="cannot_resume")
    sequences = []
    for index, (sequence, seed) in enumerate(zip(plan.sequences, form.seeds, strict=True)):
        spec = replace(
            sequence.spec,
            sampling=replace(sequence.spec.sampling, seed=seed),
            client_request_id=form.client_request_id,
            deadline_unix_s=form.deadline_unix_s,
            owner=owner,
            earlier=earlier[index] if earlier else None,
        )
        _, of_several, number = sequence.choice_id.partition("#")
        sequences.append(replace(sequence, choice_id=form.request_id + of_several + number, spec=spec))
    return replace(
        plan,
        request_id=form.request_id,
        sequences=tuple(sequences),
        created_unix_s=form.created_unix_s,
        scope=form.scope,
    )


def prompt_hash(plan: GenerationPlan) -> str:
    """Return a hash of what is read, prompts and the adapter that they are read with; work for a thread where they are long."""
    prompts = {id(sequence.prompt): sequence.prompt for sequence in plan.sequences}
    adapters = {adapter.digest for sequence in plan.sequences if (adapter := sequence.spec.adapter) is not None}
    return hash_of(*(array("I", prompt.token_ids).tobytes() for prompt in prompts.values()), *adapters)


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
