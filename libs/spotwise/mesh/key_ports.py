"""The port to API keys and what they have used: shared by all gateways of a mesh and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from spotwise.core.access.keys import KeyRecord
from spotwise.core.access.quotas import Ask, KeyAdmission, KeyLimits, Settlement


@dataclass(frozen=True, slots=True)
class KeyRing:
    """All keys of a mesh as they were at one time.

    Attributes:
        revision: higher after every change; 0 where no key was ever made, or the store has forgotten.
        keys: by name.
    """

    revision: int = 0
    keys: Mapping[str, KeyRecord] = field(default_factory=dict)


class KeyStore(Protocol):
    """API keys, without their secrets, and their usage. Every method raises `MeshError` where the store does not answer."""

    async def revision(self) -> int:
        """Return the keys' revision, as in `KeyRing`."""

    async def keys(self) -> KeyRing:
        """Return all keys."""

    async def put_key(self, record: KeyRecord, replaced: KeyRecord | None) -> bool:
        """Write a key; return whether it was written: the store must hold `replaced` under its name, or none for `None`."""

    async def delete_key(self, name: str) -> bool:
        """Remove a key and what it has used; return whether there was one."""

    async def restore(self, ring: KeyRing) -> bool:
        """Write all keys back into a store that has forgotten them; return whether it had: its revision was lower."""

    async def note_use(self, used_unix_s: Mapping[str, float]) -> None:
        """Keep when keys were last used; an earlier time than the kept one changes nothing."""

    async def last_use(self) -> dict[str, float]:
        """Return when keys were last used, in Unix seconds, by name."""

    async def use(self, name: str, limits: KeyLimits, settlement: Settlement, ask: Ask | None = None) -> KeyAdmission:
        """Take in a settlement, then what a request asks for, if all limits admit it, in one step; see `KeyUsage.use`."""
