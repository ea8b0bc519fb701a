"""The secret that all processes of a mesh share, its files, which only their owner may read, and proofs of knowing it.

Each use has a key of its own, derived from the secret, so that one plane's key is of no use on another. A proof is an HMAC
under such a key.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from pathlib import Path

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from spotwise.mesh.ports.ports import MeshError


def require_private(path: Path) -> None:
    """Check that no other user can read or change a file; raises `ValueError` where one can, or there is no such file."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if mode & 0o077:
        raise ValueError(f"{path} may be read by other users (mode {mode:04o}); chmod 600 {path}")


#: A shorter secret could be guessed.
MIN_SECRET_BYTES = 32
#: A longer file is no secret.
MAX_SECRET_BYTES = 4096
#: Bytes of a derived key.
KEY_BYTES = 32


def derived_key(material: bytes, size: int, salt: bytes, purpose: str) -> bytes:
    """Return `size` bytes of keys for one purpose (HKDF with SHA-256)."""
    return HKDF(SHA256(), size, salt=salt, info=purpose.encode()).derive(material)


def proof(key: bytes, *fields: bytes) -> bytes:
    """Return the `KEY_BYTES` bytes that prove a key, for these fields: their HMAC with SHA-256.

    Each field counts with its length, so that no two lists of fields have the same proof.
    """
    return hmac.digest(key, b"".join(len(field).to_bytes(4, "big") + field for field in fields), "sha256")


def is_proof(given: bytes, key: bytes, *fields: bytes) -> bool:
    """Whether this is the proof of a key for these fields, in time that does not depend on where it differs."""
    return hmac.compare_digest(given, proof(key, *fields))


class MeshSecret:
    """A mesh's secret; it shows in no text of this object."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        """Take a secret; raises `ValueError` where it is shorter than `MIN_SECRET_BYTES`."""
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"a mesh secret needs {MIN_SECRET_BYTES} bytes or more, this one has {len(secret)}")
        self._secret = secret

    def key(self, purpose: str) -> bytes:
        """Return the key of `KEY_BYTES` bytes for one purpose, the same in every process of the mesh."""
        return derived_key(self._secret, KEY_BYTES, b"spotwise mesh secret", purpose)


def read_mesh_secret(path: Path) -> MeshSecret:
    """Read a secret's file; blanks at its end do not count.

    Raises:
        MeshError: the file cannot be read, is too short or too long, or others than its owner can read or write it. The group
            may read a file of root, as in the secrets of a container.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            secret = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise MeshError(f"the mesh secret {path} cannot be read: {error.strerror}") from error
    allowed = 0o640 if status.st_uid == 0 else 0o600
    if (mode := stat.S_IMODE(status.st_mode) & 0o777) & ~(allowed | 0o100):
        raise MeshError(
            f"the mesh secret {path} has mode {mode:04o}, so that others can use it; run `chmod 600 {path}`"
        )
    if len(secret) > MAX_SECRET_BYTES:
        raise MeshError(f"the mesh secret {path} has more than {MAX_SECRET_BYTES} bytes: is it the right file?")
    try:
        return MeshSecret(secret.rstrip())
    except ValueError as error:
        raise MeshError(f"{path}: {error}; make one with `openssl rand -hex 32`") from None


def write_mesh_secret(path: Path) -> None:
    """Write a new random secret to a file that only its owner can read; replaces an older one. Raises `OSError`."""
    draft = path.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(MIN_SECRET_BYTES) + "\n")
    draft.replace(path)
