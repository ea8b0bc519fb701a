"""The kept state of an API request, and of a response that is found again by its id.

Law: one gateway owns a kept request at a time; an owner is one turn of one process, and a later one takes the request from it.
Only the owner writes tokens, records of attempts and the ending; the loser finds out at its next write.
Turns are numbered, by the store's clock, the first one 0. A store that has lost the latest turn learns of it from its owner: a
higher number than the kept one's is a later turn.
A request's form (ids, seeds, body) is written once; with its tokens, from the first on, every byte of the answer follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from spotwise.core.access.store_budget import size_of
from spotwise.core.requests.request import StopCriteria


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that is whole.

    Attributes:
        scope: whose it is: a hash of the caller's key; empty where the API is open.
        body: the response, JSON.
        items: the conversation that it follows on, its request's items included; a list in JSON.
    """

    response_id: str
    scope: str
    body: bytes
    items: bytes

    @property
    def size_bytes(self) -> int:
        """Room that it takes."""
        return size_of(self.body, self.items)


@dataclass(frozen=True, slots=True)
class KeptRequest:
    """The form of a request.

    Attributes:
        scope: whose it is: a hash of the caller's key; empty where the API is open.
        endpoint: `chat`, `completions` or `responses`.
        body: as the client sent it, JSON.
        body_hash: hash of endpoint and parsed body, whatever the order of its fields.
        created_unix_s: time of the answer's objects.
        seeds: seeds of the choices, in order.
        prompt_hash: hash of the prompts' token ids, which the body must give again.
        is_resumable: it continues for a while without its client, and its answer is kept.
        key_name: name of the caller's key.
        claim: hash of scope and `Idempotency-Key`; empty without one.
        deadline_unix_s: when the client gives up; `None` without a deadline.
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
    deadline_unix_s: float | None = None


#: The owner of a request that was forgotten on purpose; its turn is later than all others'.
FORGOTTEN = "9007199254740991 -"


def owner_of(process: str, turn: int = 0) -> str:
    """Return the owner that a process is in a turn."""
    return f"{turn} {process}"


def turn_of(owner: str) -> int:
    """Return the number of an owner's turn; 0 where no process took the request from another."""
    return int(owner.partition(" ")[0])


def process_of(owner: str) -> str:
    """Return an owner's process, `id/incarnation`."""
    return owner.partition(" ")[2]


@dataclass(frozen=True, slots=True)
class KeptEnding:
    """How a request ended: `state` is `finished`, `failed` or `cancelled`; the rest is of a failed one."""

    state: str
    status: int = 0
    code: str = ""
    message: str = ""


FINISHED, CANCELLED = KeptEnding("finished"), KeptEnding("cancelled")


@dataclass(frozen=True, slots=True)
class KeptAttempt:
    """The latest attempt of a choice, and when its tokens end, as its gateway had fitted that to the workers."""

    epoch: int
    stop: StopCriteria


@dataclass(frozen=True, slots=True)
class KeptState:
    """All that is kept of a request.

    Attributes:
        attempts: the newest attempt by choice id; choices whose attempts never began are left out.
        chunks: its tokens as its owners saved them; of each choice in order and without a gap.
        saved_tokens: how many these are.
    """

    request: KeptRequest
    owner: str
    ending: KeptEnding | None
    attempts: Mapping[str, KeptAttempt]
    chunks: tuple[bytes, ...]
    saved_tokens: int = 0


@dataclass(frozen=True, slots=True)
class KeptTokens:
    """Tokens of one choice to save.

    Attributes:
        owner: who saves them.
        choice: index of the choice.
        first, count: the tokens of `chunk`, in order of their indexes; without a chunk, how many are thought to be saved.
    """

    request_id: str
    owner: str
    choice: int = 0
    first: int = 0
    count: int = 0
    chunk: bytes = b""


class NotSaved(Enum):
    """Why tokens were not saved."""

    TAKEN = "taken"  #: the request has another owner
    FORGOTTEN = "forgotten"  #: the store knows no such request (any more)
    NO_ROOM = "no room"  #: the store has forgotten the request, since its tokens had no room


#: How many tokens of the choice are saved by now: fewer than were sent before where the store has lost some, and takes none
#: behind a gap.
SavedTokens = int | NotSaved
