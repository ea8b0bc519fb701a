"""What is kept of an API request, so that any gateway can go on with its answer.

Law: one gateway owns a kept request at a time; an owner is one turn of one process, and a later one takes the request from it.
Only the owner writes tokens, records of attempts and the ending; the loser finds out at its next write.
A request's form (ids, seeds, body) is written once; with its tokens, from the first on, every byte of the answer follows.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeptRequest:
    """The form of a request.

    Attributes:
        scope: whose it is: a hash of the caller's key; empty where the API is open.
        endpoint: `chat` or `completions`.
        body: as the client sent it, JSON.
        body_hash: of endpoint and parsed body, whatever the order of its fields.
        created_unix_s: time of the answer's objects.
        seeds: of the choices, in order.
        prompt_hash: of the prompts' token ids, which the body must give again.
        is_resumable: it goes on for a while without its client, and its answer is kept.
        key_name: of the caller's key.
        claim: hash of scope and `Idempotency-Key`; empty without one.
    """

    request_id: str
    scope: str
    endpoint: str
    body: str
    body_hash: str
    created_unix_s: int
    seeds: tuple[int, ...]
    prompt_hash: str
    is_resumable: bool
    claim: str = ""
    client_request_id: str = ""
    key_name: str = ""


@dataclass(frozen=True, slots=True)
class KeptEnding:
    """How a request ended: `state` is `finished`, `failed` or `cancelled`; the rest is of a failed one."""

    state: str
    status: int = 0
    code: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class KeptState:
    """All that is kept of a request; `chunks` are its tokens as its owners saved them, in order."""

    request: KeptRequest
    owner: str
    ending: KeptEnding | None
    chunks: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class KeptTokens:
    """Tokens to save, and the request that they are of."""

    request_id: str
    chunk: bytes
