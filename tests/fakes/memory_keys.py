"""API keys and their usage in memory, for unit tests, and for the time in which a gateway's store is away."""

from __future__ import annotations

from collections.abc import Mapping

from spotwise.core.access.keys import KeyRecord
from spotwise.core.access.quotas import Ask, KeyAdmission, KeyLimits, KeyReport, KeyUsage
from spotwise.mesh.ports.keys import KeyRing
from spotwise.mesh.process.clock import Clock


class MemoryKeys:
    """See `KeyStore`; what keys have used is counted by `clock`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ring = KeyRing()
        self._used: dict[str, float] = {}
        self._usage: dict[str, KeyUsage] = {}

    async def revision(self) -> int:
        return self._ring.revision

    async def keys(self) -> KeyRing:
        return self._ring

    async def put_key(self, record: KeyRecord, replaced: KeyRecord | None) -> bool:
        held = self._ring.keys.get(record.name)
        if held == record:
            return True
        if held != replaced:
            return False
        self._change({**self._ring.keys, record.name: record}, record.name)
        return True

    async def delete_key(self, name: str) -> bool:
        if name not in self._ring.keys:
            return False
        self._change({other: record for other, record in self._ring.keys.items() if other != name}, name)
        for held in (self._used, self._usage):
            held.pop(name, None)
        return True

    def _change(self, keys: dict[str, KeyRecord], name: str) -> None:
        revision = max(self._ring.revision + 1, int(self._clock.now() * 1000))
        self._ring = KeyRing(revision, dict(sorted(keys.items())), {**self._ring.changed, name: revision})

    async def restore(self, lost: KeyRing) -> int:
        held, lost = self._ring, lost.lost_in(self._ring)
        if lost.changed:
            keys = {name: record for name, record in held.keys.items() if name not in lost.changed} | dict(lost.keys)
            revision = max(held.revision + 1, lost.revision)
            self._ring = KeyRing(revision, dict(sorted(keys.items())), {**held.changed, **lost.changed})
        return len(lost.changed)

    async def note_use(self, used_unix_s: Mapping[str, float]) -> None:
        for name, at_s in used_unix_s.items():
            self._used[name] = max(at_s, self._used.get(name, 0.0))

    async def last_use(self) -> dict[str, float]:
        return dict(self._used)

    async def use(self, name: str, limits: KeyLimits, report: KeyReport, ask: Ask | None = None) -> KeyAdmission:
        return self._usage.setdefault(name, KeyUsage()).use(limits, self._clock.now(), report, ask)
