"""Writes answers of `POST /v1/messages`: Anthropic's message of content blocks, whole or as the events of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, ClassVar, Literal

import orjson
from pydantic_core import from_json

from spotwise.gateway.generate.answer_work import AnswerWriter, Usage
from spotwise.gateway.generate.choice import ChoiceText
from spotwise.gateway.generate.prepared_request import PreparedRequest
from spotwise.http.errors import ApiError
from spotwise.http.sse import named_event
from spotwise.text.detokenize import TokenBytes
from spotwise.text.message_reader import MessagePart

_KINDS: dict[str, Literal["text", "thinking", "tool_use"]] = {
    "content": "text",
    "reasoning": "thinking",
    "call": "tool_use",
    "arguments": "tool_use",
}
#: By the kind of block: the type of its deltas, and their member.
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
#: Of Anthropic's protocol, and skipped by its clients.
_PING = named_event("ping", {"type": "ping"})


@dataclass(slots=True)
class _Block:
    """A content block.

    Attributes:
        texts: pieces of it, or of a call's arguments.
        call: index, id and name of a call.
        has_object: a call's arguments begin as an object does; `None`: they have not begun.
    """

    kind: Literal["text", "thinking", "tool_use"]
    call: int = 0
    call_id: str = ""
    name: str = ""
    texts: list[str] = field(default_factory=list)
    has_object: bool | None = None

    def opening(self) -> dict[str, Any]:
        """Return the block as it is before its first piece."""
        return self._written("", {})

    def whole(self) -> dict[str, Any]:
        """Return the block."""
        text = "".join(self.texts)
        return self._written(text, input_of(text) if self.kind == "tool_use" else {})

    def add(self, text: str) -> bool:
        """Take a piece; return whether a stream holds it, as it does unless it is of arguments that are no object."""
        self.texts.append(text)
        if self.kind != "tool_use":
            return True
        if self.has_object is None and text.strip():
            self.has_object = text.lstrip().startswith("{")
        return bool(self.has_object)

    def _written(self, text: str, given: dict[str, Any]) -> dict[str, Any]:
        if self.kind == "text":
            return {"type": "text", "text": text}
        if self.kind == "thinking":
            return {"type": "thinking", "thinking": text, "signature": ""}
        # By the standard library: orjson takes no integer beyond 64 bits.
        return {
            "type": "tool_use",
            "id": self.call_id,
            "name": self.name,
            "input": orjson.Fragment(json.dumps(given, allow_nan=False)),
        }


def input_of(arguments: str) -> dict[str, Any]:
    """Return the object of a call's arguments: of one that is not whole what is there, of what is none an empty one.

    It is what Anthropic's clients make of the same arguments in a stream.
    """
    try:
        value = from_json(arguments, allow_partial=True, allow_inf_nan=False)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


class MessagesWriter(AnswerWriter):
    """Answers as Anthropic's `message` objects and events.

    Args:
        prepared: the request that is answered, with one choice.
        token_bytes: not needed.
    """

    BY_TOKEN: ClassVar[bool] = True
    END: ClassVar[bytes] = b""
    KEEP_ALIVE: ClassVar[bytes] = _PING

    def __init__(self, prepared: PreparedRequest, token_bytes: TokenBytes) -> None:
        self._prepared = prepared
        self._blocks: list[_Block] = []
        self._is_open = False
        self._stop_reason: str | None = None
        self._stop_sequence: str | None = None

    def openings(self) -> list[bytes]:
        """Return the message before its first block; what of its prompt was cached is not known yet."""
        usage: Usage = {"prompt_tokens": self._prepared.prompt_tokens, "completion_tokens": 0}
        return [_event("message_start", message=self._message([], usage))]

    def events(self, index: int, piece: ChoiceText) -> list[bytes]:
        """Return what a piece adds to blocks, the beginnings and ends of blocks included."""
        return list(self._taken(piece))

    def endings(self, usage: Usage) -> list[bytes]:
        """Return why the message ended, and its usage."""
        delta = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        return [_event("message_delta", delta=delta, usage=_usage(usage)), _event("message_stop")]

    def failure(self, error: ApiError) -> list[bytes]:
        """Return the error."""
        return [named_event("error", error.message_body(self._prepared.request_id))]

    def collect(self, index: int, piece: ChoiceText) -> None:
        """Take a piece, as `events` does."""
        for _ in self._taken(piece):
            pass

    def whole(self, usage: Usage) -> list[bytes]:
        """Return the message."""
        return [orjson.dumps(self._message([block.whole() for block in self._blocks], usage))]

    def _message(self, content: Sequence[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        return {
            "id": self._prepared.request_id,
            "type": "message",
            "role": "assistant",
            "model": self._prepared.model,
            "content": content,
            "stop_reason": self._stop_reason,
            "stop_sequence": self._stop_sequence,
            "usage": _usage(usage),
        }

    def _taken(self, piece: ChoiceText) -> Iterator[bytes]:
        parts = piece.parts
        if parts is None:
            parts = [MessagePart("content", piece.text)] if piece.text else []
        for (kind, call), of_block in groupby(parts, key=lambda part: (_KINDS[part.kind], part.call)):
            run = list(of_block)
            block = self._blocks[-1] if self._is_open else None
            if block is None or (block.kind, block.call) != (kind, call):
                yield from self._close()
                first = run[0]
                block = _Block(kind, call, first.call_id, first.text if first.kind == "call" else "")
                self._blocks.append(block)
                self._is_open = True
                yield self._of_block("content_block_start", content_block=block.opening())
            text = "".join(part.text for part in run if part.kind != "call")
            if text and block.add(text):
                delta_type, member = _DELTAS[kind]
                yield self._of_block("content_block_delta", delta={"type": delta_type, member: text})
        if piece.finish_reason is not None:
            yield from self._close()
            self._end(piece)

    def _close(self) -> Iterator[bytes]:
        if self._is_open:
            if self._blocks[-1].kind == "thinking":  # no signature exists here
                yield self._of_block("content_block_delta", delta={"type": "signature_delta", "signature": ""})
            yield self._of_block("content_block_stop")
            self._is_open = False

    def _of_block(self, kind: str, **members: Any) -> bytes:
        return _event(kind, index=len(self._blocks) - 1, **members)

    def _end(self, piece: ChoiceText) -> None:
        if piece.finish_reason == "length":
            filled = self._prepared.sequences[0].spec.unbounded
            self._stop_reason = "model_context_window_exceeded" if filled else "max_tokens"
        elif isinstance(piece.stop_reason, str):
            self._stop_reason, self._stop_sequence = "stop_sequence", piece.stop_reason
        else:
            calls = any(block.kind == "tool_use" for block in self._blocks)
            self._stop_reason = "tool_use" if calls else "end_turn"


def _event(kind: str, **members: Any) -> bytes:
    return named_event(kind, {"type": kind, **members})


def _usage(usage: Usage) -> dict[str, int]:
    """Return OpenAI's counts by Anthropic's names; there, tokens that were cached are none of the input's."""
    details = usage.get("prompt_tokens_details")
    cached = details["cached_tokens"] if isinstance(details, dict) else 0
    prompt, output = usage["prompt_tokens"], usage["completion_tokens"]
    assert isinstance(prompt, int) and isinstance(output, int)
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }
