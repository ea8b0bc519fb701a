"""Prefixes of prompts: with whom a request shares them, and the names by which they are found again.

Law: two requests find each other's blocks only if their salts are equal; a salt names the tenant, what the client adds, and the
adapter. Without any it is empty, and all such requests share. A salt tells none of the three.
Why: an adapter's KV is not the model's. How long a prompt takes, and `cached_tokens`, tell whether its beginning was computed
before, and so what others wrote.

Law: a span runs from the first token to a fixed end, named by 64 bits of a hash over the model's name, the request's salt
and the span's tokens.
Ends are 64 tokens apart at first and twice as far after every eight: about 8 log2(n / 512) + 8 spans for n tokens.
A collision costs computation, never a wrong token: workers find blocks by their own hashes (`worker/prefix_cache.py`).
"""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections.abc import Iterator, Sequence

from spotwise.core.requests.names import AdapterRef

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


#: Tokens of the first span.
FIRST_SPAN_TOKENS = 64
#: Spans after which their distance doubles.
SPANS_A_STEP = 8
#: Bytes of a span's name.
NAME_BYTES = 8


def span_ends() -> Iterator[int]:
    """Yield the ends of spans in tokens: 64, 128, …, 512, 640, …, 1536, 1792, …."""
    end = 0
    for step in itertools.count():
        for _ in range(SPANS_A_STEP):
            end += FIRST_SPAN_TOKENS << step
            yield end


def prefix_spans(model: str, token_ids: Sequence[int], salt: str = "") -> tuple[int, ...]:
    """Return the names of a prompt's spans, the shortest first; none for a prompt shorter than the first."""
    digest = hashlib.sha256(root_hash(model, salt) if salt else model.encode())
    names, start = [], 0
    for end in itertools.takewhile(lambda end: end <= len(token_ids), span_ends()):
        digest.update(array("q", token_ids[start:end]).tobytes())
        names.append(int.from_bytes(digest.copy().digest()[:NAME_BYTES], "little"))
        start = end
    return tuple(names)
