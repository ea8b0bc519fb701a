"""The beginnings of a prompt, named so that whoever has not seen it can tell whether two prompts begin alike.

Law: a span runs from the prompt's first token to a fixed end, and is named by 64 bits of a hash over the model's name and all
tokens of the span. Its ends lie 64 tokens apart at first and twice as far after every eight: a prompt of n tokens has about
8 log2(n / 512) + 8 of them, and its longest known beginning is told to an eighth. Two prompts of one name in common are taken
for alike; an error costs computing, never a token, because a worker finds its blocks by hashes of its own.

Source: prefix caching by chained hashes, as the workers have it (`worker/prefix_cache.py`), with spans in place of blocks.
"""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections.abc import Iterator, Sequence

#: Tokens of the first span.
FIRST_SPAN_TOKENS = 64
#: Spans after which they grow twice as fast.
SPANS_A_STEP = 8
#: Bytes of a hash that name a span.
NAME_BYTES = 8


def span_ends() -> Iterator[int]:
    """Yield where spans end, in tokens: 64, 128, …, 512, 640, …, 1536, 1792, …."""
    end = 0
    for step in itertools.count():
        for _ in range(SPANS_A_STEP):
            end += FIRST_SPAN_TOKENS << step
            yield end


def prefix_spans(model: str, token_ids: Sequence[int]) -> tuple[int, ...]:
    """Return the names of a prompt's spans, the shortest first; none for a prompt shorter than the first."""
    digest = hashlib.sha256(model.encode())
    names, start = [], 0
    for end in itertools.takewhile(lambda end: end <= len(token_ids), span_ends()):
        digest.update(array("q", token_ids[start:end]).tobytes())
        names.append(int.from_bytes(digest.copy().digest()[:NAME_BYTES], "little"))
        start = end
    return tuple(names)
