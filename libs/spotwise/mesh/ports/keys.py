"""The port to API keys and what they have used: shared by all gateways of a mesh and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from spotwise.core.access.keys import KeyRecord
from spotwise.core.access.quotas import Ask, KeyAdmission, KeyLimits, KeyReport

#: Deleted keys that are remembered, so that no gateway writes them back.
MAX_DELETED = 10_000


@dataclass(frozen=True, slots=True)
class KeyRing:
    """All keys of a mesh as they were at one time.

    Attributes:
        revision: higher after every change; 0 where no key was ever made, or the store has forgotten.
        keys: keys by name.
        changed: revision of each key's last change, by name; also of deleted ones, up to `MAX_DELETED`.
    """

    revision: int = 0
    keys: Mapping[str, KeyRecord] = field(default_factory=dict)
    changed: Mapping[str, int] = field(default_factory=dict)

    def lost_in(self, held: KeyRing) -> KeyRing:
        """Return what this ring knows of later changes than `held`: those that its store has forgotten. That a key was deleted
        is only of interest where `held` still has it.
        """
        lost = {
            name: revision
            for name, revision in self.changed.items()
            if revision > held.changed.get(name, 0) and (name in self.keys or name in held.keys)
        }
        return KeyRing(self.revision, {name: self.keys[name] for name in lost if name in self.keys}, lost)


class KeyStore(Protocol):
    """API keys, without their secrets, and their usage. Every method raises `MeshError` where the store does not answer."""

    async def revision(self) -> int:
        """Return the keys' revision, as in `KeyRing`."""

    async def keys(self) -> KeyRing:
        """Return all keys."""

    async def put_key(self, record: KeyRecord, replaced: KeyRecord | None) -> bool:
        """Write a key; return whether it is written: the store must hold `replaced` under its name, or none for `None`, or the
        key itself, since a call may be repeated.
        """

    async def delete_key(self, name: str) -> bool:
        """Remove a key and what it has used; return whether there was one."""

    async def restore(self, lost: KeyRing) -> int:
        """Write changes back that the store has forgotten, and no others; return how many it had forgotten."""

    async def note_use(self, used_unix_s: Mapping[str, float]) -> None:
        """Keep when keys were last used; an earlier time than the kept one changes nothing."""

    async def last_use(self) -> dict[str, float]:
        """Return when keys were last used, in Unix seconds, by name."""

    async def use(self, name: str, limits: KeyLimits, report: KeyReport, ask: Ask | None = None) -> KeyAdmission:
        """Take in a report, then what a request asks for, if all limits admit it, in one step; see `KeyUsage.use`. Where it
        raises, it may have been done all the same, or will be: the gateway's next report undoes it.
        """
