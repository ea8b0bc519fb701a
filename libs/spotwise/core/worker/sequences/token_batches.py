"""Divides what an event sends to a gateway into batches that a broker takes.

Law: tokens keep their order, and each is in one batch. What is large beside a token (log-probabilities of its prompt, an
embedding) costs no other sequence its token: batches are divided between sequences, and a prompt's log-probabilities too, whose
first parts are sent ahead of their token.
"""

from __future__ import annotations

from collections.abc import Iterator

from spotwise.core.messages.mesh import TokenDelta
from spotwise.core.requests.sampling import TokenLogprobs

#: Of one token batch, as estimated here: a broker's messages have a MiB at most, unless configured otherwise.
MOST_BATCH_BYTES = 1 << 18
#: Of a token with all that is small; of a position of the prompt, and of each of its alternatives; of a number of an embedding.
_TOKEN_BYTES, _POSITION_BYTES, _ALTERNATIVE_BYTES, _FLOAT_BYTES = 64, 20, 13, 4


def sendable(deltas: list[TokenDelta]) -> list[tuple[TokenDelta, ...]]:
    """Return one event's deltas in batches."""
    batches: list[list[TokenDelta]] = [[]]
    filled = 0
    for delta in deltas:
        for part in (delta,) if delta.prompt_logprobs is None else _parts(delta, delta.prompt_logprobs):
            size = _bytes(part)
            if filled + size > MOST_BATCH_BYTES and batches[-1]:
                batches.append([])
                filled = 0
            batches[-1].append(part)
            filled += size
    return [*map(tuple, batches)]


def _parts(delta: TokenDelta, scores: tuple[TokenLogprobs | None, ...]) -> Iterator[TokenDelta]:
    """Yield the delta, after as many without a token as its prompt's log-probabilities fill batches."""
    begin = filled = 0
    for position, score in enumerate(scores):
        size = _score_bytes(score)
        if filled + size > MOST_BATCH_BYTES - _TOKEN_BYTES and position > begin:
            yield TokenDelta(delta.attempt_id, delta.token_index, None, prompt_logprobs=scores[begin:position])
            begin, filled = position, 0
        filled += size
    yield delta if not begin else delta._replace(prompt_logprobs=scores[begin:])


def _bytes(delta: TokenDelta) -> int:
    size = _TOKEN_BYTES
    if delta.embedding is not None:
        size += _FLOAT_BYTES * len(delta.embedding)
    if delta.logprobs is not None:
        size += _score_bytes(delta.logprobs)
    if delta.prompt_logprobs is not None:
        size += sum(map(_score_bytes, delta.prompt_logprobs))
    return size


def _score_bytes(score: TokenLogprobs | None) -> int:
    return _POSITION_BYTES + (0 if score is None else _ALTERNATIVE_BYTES * len(score.top_token_ids))
