"""With whom a request shares the KV of a prompt's beginning.

Law: two requests find each other's blocks only if their salts are equal; a salt names the tenant and what the client adds.
Without either it is empty, and all such requests share. A salt tells neither of the two.
Why: how long a prompt takes, and `cached_tokens`, tell whether its beginning was computed before, and so what others wrote.
"""

from __future__ import annotations

import hashlib

_SALT_BYTES = 16


def prefix_salt(tenant: str, cache_salt: str = "") -> str:
    """Return the salt of a tenant's requests, in hexadecimal digits; `cache_salt` is the client's own."""
    if not tenant and not cache_salt:
        return ""
    name = tenant.encode()
    return hashlib.sha256(len(name).to_bytes(8, "little") + name + cache_salt.encode()).hexdigest()[: 2 * _SALT_BYTES]


def root_hash(model: str, salt: str) -> bytes:
    """Return what a prompt's hashes begin with: the model's name and, where there is one, the salt."""
    return hashlib.sha256(model.encode() + (b"\0" + salt.encode() if salt else b"")).digest()
