"""Encodes and decodes request records, which the store has; imports none of the messages, which take long to make."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from spotwise.core.requests.record import RequestRecord
from spotwise.wire.message_codec import MessageCodec
from spotwise.wire.v1 import request_pb2

_RECORD = MessageCodec(RequestRecord, request_pb2.RequestRecord)


def encode_record(record: RequestRecord) -> bytes:
    """Return a record's bytes for the store."""
    return _RECORD.encode(record)


def decode_record(payload: bytes) -> RequestRecord:
    """Return the record; raises `ValueError` where the bytes are no record."""
    try:
        return _RECORD.decode(payload)
    except DecodeError as error:
        raise ValueError(f"not a request record: {error}") from error
