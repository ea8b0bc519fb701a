"""Names of a prompt's prefixes, by which schedulers tell whether two prompts begin alike.

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

from spotwise.core.requests.prefix_salt import root_hash

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
