"""With whom a request shares the KV of a prompt's beginning.

Law: two requests find each other's blocks only if their salts are equal; a salt names the tenant, what the client adds, and the
adapter. Without any it is empty, and all such requests share. A salt tells none of the three.
Why: an adapter's KV is not the model's. How long a prompt takes, and `cached_tokens`, tell whether its beginning was computed
before, and so what others wrote.
"""

from __future__ import annotations

import hashlib

from spotwise.core.requests.adapter import AdapterRef

_SALT_BYTES = 16


def prefix_salt(tenant: str, cache_salt: str = "", adapter: AdapterRef | None = None) -> str:
    """Return the salt of a tenant's requests, in hexadecimal digits; `cache_salt` is the client's own."""
    salt = ""
    if tenant or cache_salt:
        name = tenant.encode()
        salt = _salt(len(name).to_bytes(8, "little") + name + cache_salt.encode())
    return salt if adapter is None else _salt(f"adapter {adapter.digest} {salt}".encode())


def _salt(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[: 2 * _SALT_BYTES]


def root_hash(model: str, salt: str) -> bytes:
    """Return what a prompt's hashes begin with: the model's name and, where there is one, the salt."""
    return hashlib.sha256(model.encode() + (b"\0" + salt.encode() if salt else b"")).digest()
