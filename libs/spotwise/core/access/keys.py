"""API keys at rest: their names, digests of their secrets, scopes and ends.

Law:
- A key is known by its name, which is its tenant; only SHA-256 digests of its secrets are kept. A secret has 256 random bits:
  it cannot be searched for, and neither salt nor a slow hash adds anything.
- A key has one secret, or two between a rotation and the end of the old one. At the end of its time no secret of it admits.
- A scope admits to what it names and to nothing else; `generate` contains `read`.

An API that has had a key never opens again by itself; one with a file of keys, though it is empty, counts as such. One that
never had any is open to its own machine only, unless it is configured to be open.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from enum import StrEnum

from spotwise.core.access.quotas import KeyLimits

SECRET_BYTES = 32
#: What every secret made here looks like: 256 bits in base64url.
_SECRET = re.compile(r"sw-[A-Za-z0-9_-]{43}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
#: Keys of a mesh at most: every gateway holds them all.
MAX_KEYS = 10_000


class KeyScope(StrEnum):
    """What a key admits to."""

    GENERATE = "generate"  #: `/v1` as a whole
    READ = "read"  #: what GET shows under `/v1`
    METRICS = "metrics"  #: `/metrics`, where that is not open


class KeyState(StrEnum):
    """Whether a key admits."""

    ACTIVE = "active"
    ROTATING = "rotating"  #: active, with two secrets
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class KeySecret:
    """The digest of a secret, and its end; `None`: that of its key."""

    digest: str
    until_unix_s: float | None = None

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.digest):
            raise ValueError("a secret's digest has 64 hexadecimal digits (SHA-256)")


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One API key, without its secrets.

    Attributes:
        name: name of the key and of its tenant.
        secrets: the newest first.
        scopes: what it admits to, in the order of `KeyScope`.
        created_unix_s, expires_unix_s: its life; without an end where None.
        limits: bounds on its requests and tokens.
    """

    name: str
    secrets: tuple[KeySecret, ...]
    scopes: tuple[KeyScope, ...]
    created_unix_s: float
    expires_unix_s: float | None = None
    limits: KeyLimits = field(default_factory=KeyLimits)

    def __post_init__(self) -> None:
        if not is_key_name(self.name):
            raise ValueError("a key's name has 1 to 64 of A-Z a-z 0-9 . _ -")
        if not self.secrets:
            raise ValueError("a key has at least one secret")
        if not self.scopes:
            raise ValueError("a key has at least one scope")

    def admits(self, digest: str, now_s: float) -> bool:
        """Whether the secret of this digest is one of the key's, and its time has not ended."""
        return any(secret.digest == digest for secret in self.live_secrets(now_s))

    def live_secrets(self, now_s: float) -> tuple[KeySecret, ...]:
        """Return the secrets that admit at `now_s`."""
        if _is_over(self.expires_unix_s, now_s):
            return ()
        return tuple(secret for secret in self.secrets if not _is_over(secret.until_unix_s, now_s))

    def allows(self, scope: KeyScope) -> bool:
        """Whether the key admits to what this scope names."""
        return scope in self.scopes or (scope is KeyScope.READ and KeyScope.GENERATE in self.scopes)

    def state(self, now_s: float) -> KeyState:
        """Return the state at `now_s`."""
        live = len(self.live_secrets(now_s))
        if not live:
            return KeyState.EXPIRED
        return KeyState.ACTIVE if live == 1 else KeyState.ROTATING

    def rotated(self, digest: str, now_s: float, overlap_s: float) -> KeyRecord:
        """Return the key with a new secret; its newest one stays valid for `overlap_s`, older ones end."""
        last = self.secrets[0]
        ends_s = now_s + overlap_s
        kept = replace(last, until_unix_s=ends_s if last.until_unix_s is None else min(ends_s, last.until_unix_s))
        return replace(self, secrets=(KeySecret(digest), *((kept,) if overlap_s > 0 else ())))


def is_key_name(text: str) -> bool:
    """Whether a key may have this name."""
    return _NAME.fullmatch(text) is not None


def is_secret(text: str) -> bool:
    """Whether this may be a secret that was made by `secret_of`: no other text needs to be looked up."""
    return _SECRET.fullmatch(text) is not None


def secret_of(encoded: str) -> str:
    """Return the secret of 256 random bits, given in base64url without padding."""
    secret = f"sw-{encoded}"
    if not is_secret(secret):
        raise ValueError("a secret is made of 32 bytes")
    return secret


def digest_of(secret: bytes) -> str:
    """Return the digest under which a secret is kept."""
    return hashlib.sha256(secret).hexdigest()


def requires_key(has_had_keys: bool, is_loopback: bool, allow_anonymous: bool | None) -> bool | None:
    """Whether clients need a key, by whether there is or has been one; `None` where the gateway must not start.

    Args:
        has_had_keys: a key or a file of keys is configured, or a key was made.
        is_loopback: only this machine reaches the API.
        allow_anonymous: as configured; `None` allows it to this machine, `False` to no client.
    """
    if has_had_keys or allow_anonymous is False:
        return True
    return False if is_loopback or allow_anonymous else None


def _is_over(end_s: float | None, now_s: float) -> bool:
    return end_s is not None and now_s >= end_s
