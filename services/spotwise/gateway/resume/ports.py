"""Ports to the mesh and the store for kept requests, and the seconds for which requests are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from spotwise.core.gateway.kept_request import KeptAttempt, KeptRequest
from spotwise.core.messages.members import Member
from spotwise.core.messages.mesh import LedgerEntry
from spotwise.gateway.access.quotas import Continued, Reservation
from spotwise.gateway.generate.answer import AnswerTerms
from spotwise.gateway.generate.answer_work import AnswerWork
from spotwise.gateway.generate.generation import Generation
from spotwise.gateway.generate.prepared_request import PreparedRequest
from spotwise.gateway.resume.token_saver import TokenSaver
from spotwise.mesh.ports.requests import KeptRequestStore


@dataclass(frozen=True, slots=True)
class KeepingLimits:
    """`process`: this one, `id/incarnation`; `resume_s`: how long a resumable request continues without its client;
    `answer_kept_s`: how long its answer is kept; `store_timeout_s`: wait for the store.
    """

    process: str
    resume_s: float = 30.0
    answer_kept_s: float = 600.0
    store_timeout_s: float = 5.0


class KeepingGeneration(Generation, Protocol):
    """A mesh that saves the tokens of kept requests; `is_leaving` once this process ends."""

    @property
    def is_leaving(self) -> bool:
        """Whether what is cancelled here goes on elsewhere."""

    @property
    def saver(self) -> TokenSaver:
        """What saves their tokens."""

    def step_down(self, choice_id: str) -> None:
        """End a choice here: it has another owner."""

    def close(self, choice_id: str, epoch: int) -> None:
        """End a choice that runs at no gateway, with all its attempts up to `epoch`."""

    def attempts(self, choice_ids: Iterable[str]) -> Mapping[str, KeptAttempt]:
        """Return the attempts of those choices that run here and were submitted."""


class KeepingStore(KeptRequestStore, Protocol):
    """The store, with the ledgers and the registrations."""

    async def get_ledger(self, choice_id: str) -> list[LedgerEntry]:
        """Return a request's ledger in order of time; empty where there is none."""

    async def registered(self, member_ids: Sequence[str]) -> list[Member]:
        """Return those of some members that are registered."""


class RequestPreprocessor(Protocol):
    """Prepares requests, and makes their answers."""

    async def reserve(
        self, request: Request, prepared: PreparedRequest, continued: Continued | None = None
    ) -> Reservation:
        """Take what a request needs of its key's limits; raises `ApiError`, a 429."""

    async def prepare_again(self, form: KeptRequest) -> PreparedRequest:
        """Prepare a kept request again, with its ids and seeds; raises `ApiError`, a 409, where it has other prompts here."""

    def work_of(self, scope: str) -> AnswerWork:
        """Return where an answer of a caller's is written."""

    def response(self, endpoint: str, terms: AnswerTerms) -> Response:
        """Return the response of a prepared request."""
