"""Encodes and decodes token batches: three packed columns, a few bytes per token; rare fields (a finish reason,
log-probabilities) are in extras, by position.
"""

from __future__ import annotations

from spotwise.core.messages.mesh import TokenBatch, TokenDelta
from spotwise.core.requests.request import FinishReason
from spotwise.core.requests.sampling import TokenLogprobs
from spotwise.wire.v1 import request_pb2 as pb

_FINISH_TO = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.ABORT: pb.FINISH_REASON_ABORT,
    FinishReason.ERROR: pb.FINISH_REASON_ERROR,
}
_FINISH_FROM = {number: reason for reason, number in _FINISH_TO.items()}


def batch_to(batch: TokenBatch) -> pb.TokenBatch:
    """Return a token batch's protobuf message."""
    return pb.TokenBatch(
        worker_id=batch.worker_id,
        attempt_ids=[delta.attempt_id for delta in batch.deltas],
        token_indexes=[delta.token_index for delta in batch.deltas],
        token_ids=[delta.token_id or 0 for delta in batch.deltas],
        extras=[_extra_to(position, delta) for position, delta in enumerate(batch.deltas) if _has_extra(delta)],
        incarnation=batch.incarnation,
        number=batch.number,
    )


def batch_from(proto: pb.TokenBatch) -> TokenBatch:
    """Return the token batch that `batch_to` turned into `proto`."""
    columns = zip(proto.attempt_ids, proto.token_indexes, proto.token_ids, strict=True)
    deltas = [TokenDelta(attempt_id, index, token_id) for attempt_id, index, token_id in columns]
    for extra in proto.extras:
        plain = deltas[extra.position]
        deltas[extra.position] = TokenDelta(
            attempt_id=plain.attempt_id,
            token_index=plain.token_index,
            token_id=None if extra.without_token else plain.token_id,
            finish_reason=_FINISH_FROM.get(extra.finish_reason),
            error=extra.error,
            retryable=extra.retryable,
            queue_s=extra.queue_s if extra.HasField("queue_s") else None,
            cached_tokens=extra.cached_tokens if extra.HasField("cached_tokens") else None,
            logprobs=logprobs_from(extra.logprobs) if extra.HasField("logprobs") else None,
            prompt_logprobs=tuple(logprobs_from(entry) for entry in extra.prompt_logprobs)
            if extra.has_prompt_logprobs
            else None,
            suspects=tuple(extra.suspects),
            embedding=tuple(extra.embedding) or None,
        )
    number = proto.number if proto.HasField("number") else None
    return TokenBatch(proto.worker_id, tuple(deltas), proto.incarnation, number)


def _has_extra(delta: TokenDelta) -> bool:
    return (
        delta.finish_reason is not None
        or delta.token_id is None
        or delta.queue_s is not None
        or delta.cached_tokens is not None
        or delta.logprobs is not None
        or delta.prompt_logprobs is not None
        or delta.embedding is not None
    )


def _extra_to(position: int, delta: TokenDelta) -> pb.TokenExtra:
    return pb.TokenExtra(
        position=position,
        without_token=delta.token_id is None,
        finish_reason=_FINISH_TO[delta.finish_reason] if delta.finish_reason else pb.FINISH_REASON_UNSPECIFIED,
        error=delta.error,
        retryable=delta.retryable,
        queue_s=delta.queue_s,
        cached_tokens=delta.cached_tokens,
        logprobs=logprobs_to(delta.logprobs) if delta.logprobs else None,
        has_prompt_logprobs=delta.prompt_logprobs is not None,
        prompt_logprobs=[logprobs_to(entry) for entry in delta.prompt_logprobs or ()],
        suspects=delta.suspects,
        embedding=delta.embedding or (),
    )


def logprobs_to(logprobs: TokenLogprobs | None) -> pb.TokenLogprobs:
    """Return the protobuf message of one token's log-probabilities, also of a token without."""
    if logprobs is None:
        return pb.TokenLogprobs(absent=True)
    return pb.TokenLogprobs(
        logprob=logprobs.logprob, top_token_ids=logprobs.top_token_ids, top_logprobs=logprobs.top_logprobs
    )


def logprobs_from(proto: pb.TokenLogprobs) -> TokenLogprobs | None:
    """Return what `logprobs_to` turned into `proto`."""
    if proto.absent:
        return None
    return TokenLogprobs(proto.logprob, tuple(proto.top_token_ids), tuple(proto.top_logprobs))
