"""What keeping requests needs of the mesh and of its store."""

from __future__ import annotations

from typing import Protocol

from spotwise.core.messages import LedgerEntry
from spotwise.core.record import RequestRecord
from spotwise.gateway.generation import Generation
from spotwise.mesh.request_store import KeptRequestStore


class KeepingGeneration(Generation, Protocol):
    """A mesh that saves the tokens of kept requests; `is_leaving` once this process ends."""

    @property
    def is_leaving(self) -> bool:
        """Whether what is cancelled here goes on elsewhere."""

    async def save(self, *choice_ids: str) -> None:
        """Save now what is not saved yet; raises `MeshError`."""

    def step_down(self, choice_id: str) -> None:
        """End a choice here: it has another owner."""

    def close(self, choice_id: str, epoch: int) -> None:
        """End a choice that runs at no gateway, with all its attempts up to `epoch`."""


class KeepingStore(KeptRequestStore, Protocol):
    """The store, with the records of attempts and the ledgers."""

    async def get_ledger(self, choice_id: str) -> list[LedgerEntry]:
        """Return a request's ledger in order of time; empty where there is none."""

    async def get_record(self, choice_id: str) -> RequestRecord | None:
        """Return the record, or `None` where there is none (any more)."""
