"""Encodes and decodes request records, which the store has and leaders of groups send."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from spotwise.core.requests.names import AdapterRef
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import Pooling, SamplingParams
from spotwise.wire.v1 import request_pb2 as pb

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
