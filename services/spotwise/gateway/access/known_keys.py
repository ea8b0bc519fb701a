"""The API keys that a gateway knows: those of its configuration, and all of the store.

A gateway holds every key of the store and asks each second whether they have changed, so that a request costs no look-up and an
unknown key no memory. An unknown key of the right form makes the gateway look at once, a few times a second at most: a key that
was just made works. While the store is away, known keys still work, and unknown ones are answered with a 503. A store that has
forgotten keys, all (a restart without persistence) or the latest (a fail-over), gets them back from the gateways that know
them, beside those that were made in it since; one that has forgotten that a key was deleted forgets the key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import structlog

from spotwise.core.access.keys import KeyRecord, digest_of, is_secret, requires_key
from spotwise.gateway.access.auth import ApiKey, Caller
from spotwise.http.errors import ApiError
from spotwise.http.event_loop import patience
from spotwise.mesh.ports.keys import KeyRing, KeyStore
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.process.clock import MemberClock
from spotwise.mesh.redis.keys import read_key_file

#: How often the store is asked for changes: a revoked key works for no longer.
LOOK_S = 1.0
#: Least pause between two looks because of unknown keys.
LOOK_AGAIN_S = 0.2
#: How long a look may take.
LOOK_TIMEOUT_S = 2.0
#: How often the last uses of keys are written.
REPORT_S = 10.0

_log = structlog.get_logger("spotwise.gateway")


class KnownKeys:
    """Finds the caller of a request by its secret.

    Args:
        configured: keys of the environment; they have all scopes and no limits.
        clock: time against which keys expire.
        store: keys of the mesh; None: there are none.
        file: file with further keys, read again when it changes; with one, clients need a key whatever it holds.
        is_loopback: only this machine reaches the API.
        allow_anonymous: see `requires_key`.
    """

    def __init__(
        self,
        configured: Iterable[ApiKey],
        clock: MemberClock,
        store: KeyStore | None = None,
        file: Path | None = None,
        *,
        is_loopback: bool = True,
        allow_anonymous: bool | None = None,
    ) -> None:
        self._clock = clock
        self._store = store
        self._file = file
        self._is_loopback = is_loopback
        self._allow_anonymous = allow_anonymous
        # Secrets are found by their digests, so that the time of a look-up reveals nothing of them.
        self._configured = {digest_of(key.key.encode()): Caller(key.name) for key in configured}
        self._of_file: dict[str, Caller] = {}
        self._of_store: dict[str, Caller] = {}
        self._file_seen: tuple[int, int] | None = None
        self._ring = KeyRing()
        self._looked_s = -1.0
        self._is_away = False
        self._looking = asyncio.Lock()
        self._used_unix_s: dict[str, float] = {}

    @property
    def requires_key(self) -> bool | None:
        """Whether every client needs a key; None where the gateway must not serve at all."""
        has_had = bool(self._configured) or self._file is not None or self._ring.revision > 0
        return requires_key(has_had, self._is_loopback, self._allow_anonymous)

    async def caller(self, secret: bytes) -> Caller | None:
        """Return whose secret this is; None for one that admits no client (any more).

        Raises:
            ApiError: 503, it is unknown here and the store is away.
        """
        digest = digest_of(secret)
        found = self._find(digest)
        if found is None and self._may_be_new(secret):
            await self._look_again()
            found = self._find(digest)
        if found is not None and found.record is not None:
            self._used_unix_s[found.name] = self._clock.wall()
        return found

    async def look_for(self, secret: bytes) -> None:
        """Take in the store's keys if this may be the secret of one that is not known yet; a store that is away has none."""
        if self._may_be_new(secret):
            with suppress(ApiError):
                await self._look_again()

    def _may_be_new(self, secret: bytes) -> bool:
        return self._store is not None and is_secret(secret.decode("latin-1")) and self._find(digest_of(secret)) is None

    def _find(self, digest: str) -> Caller | None:
        for known in (self._configured, self._of_file, self._of_store):
            caller = known.get(digest)
            if caller is not None and (caller.record is None or caller.record.admits(digest, self._clock.wall())):
                return caller
        return None

    async def _look_again(self) -> None:
        came_s = self._clock.now()
        if self._is_away:
            raise _cannot_check()
        async with self._looking:
            if self._looked_s >= came_s:
                return  # another one looked meanwhile
            await asyncio.sleep(min(LOOK_AGAIN_S, max(0.0, self._looked_s + LOOK_AGAIN_S - self._clock.now())))
            try:
                await self.look()
            except MeshError as error:
                raise _cannot_check() from error

    async def look(self) -> None:
        """Take in changes of the store's keys; raises `MeshError` where it does not answer."""
        if self._store is None:
            return
        began_s = self._clock.now()
        try:
            async with patience(LOOK_TIMEOUT_S):
                await self._take_changes(self._store)
        except (MeshError, TimeoutError) as error:
            self._is_away = True
            raise MeshError(f"the API keys cannot be read: {str(error) or 'the store is slow'}") from error
        self._is_away, self._looked_s = False, began_s

    async def _take_changes(self, store: KeyStore) -> None:
        if await store.revision() == self._ring.revision:
            return
        held = await store.keys()
        lost = self._ring.lost_in(held)
        if lost.changed:
            if restored := await store.restore(lost):
                _log.warning("api_keys_restored", keys=restored)
            held = await store.keys()
        self._ring = held
        self._of_store = _by_digest(self._ring.keys.values())

    def read_file(self) -> None:
        """Take in a changed file; raises `ValueError` where it is wrong, and keeps what was read before."""
        if self._file is None:
            return
        try:
            status = self._file.stat()
        except OSError as error:
            raise ValueError(f"{self._file} cannot be read: {error.strerror}") from error
        seen = (status.st_mtime_ns, status.st_ino)
        if seen != self._file_seen:
            self._file_seen = seen
            self._of_file = _by_digest(read_key_file(self._file))

    async def watch(self) -> None:
        """Look for changes once; what cannot be read is logged, and the last keys stay."""
        try:
            self.read_file()
        except ValueError as error:
            _log.error("api_key_file_unreadable", error=str(error))
        was_away = self._is_away
        try:
            await self.look()
        except MeshError as error:
            if not was_away:  # once an outage, not each second
                _log.warning("api_keys_unreadable", error=str(error))

    async def report_use(self) -> None:
        """Write when keys were last used; raises `MeshError` where the store does not answer."""
        if self._store is not None and self._used_unix_s:
            used, self._used_unix_s = self._used_unix_s, {}
            known = {name: at_s for name, at_s in used.items() if name in self._ring.keys}
            try:
                await self._store.note_use(known)
            except MeshError:
                self._used_unix_s = {**used, **self._used_unix_s}
                raise


def _by_digest(records: Iterable[KeyRecord]) -> dict[str, Caller]:
    return {secret.digest: Caller(record.name, record) for record in records for secret in record.secrets}


def _cannot_check() -> ApiError:
    message = "The API key cannot be checked now, because the store does not answer; try again shortly."
    return ApiError(503, message, code="store_unavailable", headers={"Retry-After": "1"})
