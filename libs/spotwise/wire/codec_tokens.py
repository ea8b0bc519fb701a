"""Encodes and decodes request records and token batches, the messages that carry token ids. A batch is three packed columns, a
few bytes per token; rare fields (a finish reason, log-probabilities) are in extras, by position.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from spotwise.core.adapter import AdapterRef
from spotwise.core.messages import TokenBatch, TokenDelta
from spotwise.core.record import RequestRecord
from spotwise.core.request import FinishReason, StopCriteria
from spotwise.core.sampling import Pooling, SamplingParams, TokenLogprobs
from spotwise.wire.v1 import request_pb2 as pb

_FINISH_TO = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.ABORT: pb.FINISH_REASON_ABORT,
    FinishReason.ERROR: pb.FINISH_REASON_ERROR,
}
_FINISH_FROM = {number: reason for reason, number in _FINISH_TO.items()}
_POOLING_TO = {None: pb.POOLING_UNSPECIFIED, Pooling.LAST: pb.POOLING_LAST, Pooling.MEAN: pb.POOLING_MEAN}
_POOLING_FROM = {number: pooling for pooling, number in _POOLING_TO.items()}


def encode_record(record: RequestRecord) -> bytes:
    """Return a record's bytes for the store."""
    return record_to(record).SerializeToString()


def decode_record(payload: bytes) -> RequestRecord:
    """Return the record; raises `ValueError` where the bytes are no record."""
    try:
        return record_from(pb.RequestRecord.FromString(payload))
    except DecodeError as error:
        raise ValueError(f"not a request record: {error}") from error


def record_to(record: RequestRecord) -> pb.RequestRecord:
    """Return a record's protobuf message."""
    sampling, stop = record.sampling, record.stop
    return pb.RequestRecord(
        choice_id=record.choice_id,
        epoch=record.epoch,
        gateway_id=record.gateway_id,
        attempt_id=record.attempt_id,
        model=record.model,
        prompt_token_ids=record.prompt_token_ids,
        output_token_ids=record.output_token_ids,
        sampling=pb.SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=sampling.seed,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            logit_bias_token_ids=[token_id for token_id, _ in sampling.logit_bias],
            logit_bias_values=[bias for _, bias in sampling.logit_bias],
            allowed_token_ids=sampling.allowed_token_ids,
            bad_words=[pb.TokenIds(token_ids=word) for word in sampling.bad_words],
            grammar=sampling.grammar,
            logprobs=sampling.logprobs,
            prompt_logprobs=sampling.prompt_logprobs,
            pooling=_POOLING_TO[sampling.pooling],
        ),
        stop=pb.StopCriteria(
            max_new_tokens=stop.max_new_tokens,
            stop_token_ids=stop.stop_token_ids,
            min_new_tokens=stop.min_new_tokens,
        ),
        arrival_unix_s=record.arrival_unix_s,
        priority=record.priority,
        tenant=record.tenant,
        model_digest=record.model_digest,
        prefix_salt=record.prefix_salt,
        deadline_unix_s=record.deadline_unix_s,
        adapter=None
        if record.adapter is None
        else pb.AdapterRef(name=record.adapter.name, digest=record.adapter.digest),
    )


def record_from(proto: pb.RequestRecord) -> RequestRecord:
    """Return the record that `record_to` turned into `proto`."""
    sampling, stop = proto.sampling, proto.stop
    return RequestRecord(
        choice_id=proto.choice_id,
        epoch=proto.epoch,
        gateway_id=proto.gateway_id,
        attempt_id=proto.attempt_id,
        model=proto.model,
        prompt_token_ids=tuple(proto.prompt_token_ids),
        output_token_ids=tuple(proto.output_token_ids),
        sampling=SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k if sampling.HasField("top_k") else None,
            min_p=sampling.min_p,
            seed=sampling.seed,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            logit_bias=tuple(zip(sampling.logit_bias_token_ids, sampling.logit_bias_values, strict=True)),
            allowed_token_ids=tuple(sampling.allowed_token_ids),
            bad_words=tuple(tuple(word.token_ids) for word in sampling.bad_words),
            grammar=sampling.grammar,
            logprobs=sampling.logprobs if sampling.HasField("logprobs") else None,
            prompt_logprobs=sampling.prompt_logprobs if sampling.HasField("prompt_logprobs") else None,
            pooling=_POOLING_FROM.get(sampling.pooling),
        ),
        stop=StopCriteria(stop.max_new_tokens, tuple(stop.stop_token_ids), stop.min_new_tokens),
        arrival_unix_s=proto.arrival_unix_s,
        priority=proto.priority,
        tenant=proto.tenant,
        model_digest=proto.model_digest if proto.HasField("model_digest") else None,
        prefix_salt=proto.prefix_salt,
        deadline_unix_s=proto.deadline_unix_s if proto.HasField("deadline_unix_s") else None,
        adapter=AdapterRef(proto.adapter.name, proto.adapter.digest) if proto.HasField("adapter") else None,
    )


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
