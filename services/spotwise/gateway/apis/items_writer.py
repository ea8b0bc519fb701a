"""Writes responses: OpenAI's response object with its items, whole, or as its numbered events.

Items follow one another: what the model thinks, says and calls, in its order; one that is begun ends the one before. What is
written depends on the tokens alone, one at a time, so that a stream has the same items and numbers at another gateway.
"""

from __future__ import annotations

from typing import Any

import orjson

from spotwise.gateway.apis.chat import chat_logprobs
from spotwise.gateway.apis.response_tools import action_of_call, input_of_call
from spotwise.gateway.generate.answer_work import AnswerWriter, Usage
from spotwise.gateway.generate.choice import ChoiceText
from spotwise.gateway.generate.prepared_request import PreparedRequest
from spotwise.gateway.schema.response_tools import CalledTool
from spotwise.http.errors import ApiError
from spotwise.http.request_ids import item_id
from spotwise.http.sse import named_event
from spotwise.text.detokenize import TokenBytes
from spotwise.text.message_reader import MessagePart

_Fields = dict[str, Any]
#: Of items' ids.
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "local_shell_call": "lsh",
}


class ItemsWriter(AnswerWriter):
    """Answers as `response` objects.

    Args:
        prepared: the request that is answered, of one choice.
        token_bytes: bytes and text of tokens.
    """

    BY_TOKEN = True
    END = b""  # OpenAI's clients end with the last event
    REPEATS = True

    def __init__(self, prepared: PreparedRequest, token_bytes: TokenBytes) -> None:
        assert prepared.repeated is not None
        self._request_id = prepared.request_id
        self._token_bytes = token_bytes
        self._head = {
            "id": prepared.request_id,
            "object": "response",
            "created_at": prepared.created_unix_s,
            "model": prepared.model,
            **prepared.repeated.fields,
        }
        self._tools = prepared.repeated.called
        self._called = CalledTool()  # of the last call
        self._items: list[_Fields] = []
        self._pieces: list[str] = []  # of the text of the last item, which is being written
        self._is_open = False
        self._scored: list[
            orjson.Fragment
        ] = []  # log-probabilities that no event has had, written once for all of them
        self._tokens = self._reasoning_tokens = 0
        self._is_cut = False
        self._events: list[bytes] | None = None
        self._number = 0

    def openings(self) -> list[bytes]:
        """Return the response without output."""
        begun = self._response("in_progress", None)
        return [self._event(f"response.{name}", response=begun) for name in ("created", "in_progress")]

    def events(self, index: int, piece: ChoiceText) -> list[bytes]:
        """Return what a piece adds to the items."""
        events: list[bytes] = []
        self._events = events
        self._take(piece)
        self._events = None
        return events

    def endings(self, usage: Usage) -> list[bytes]:
        """Return the whole response."""
        return [self._event(f"response.{self._status}", response=self._response(self._status, usage))]

    def failure(self, error: ApiError) -> list[bytes]:
        """Return the error, and the response so far."""
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        failed = self._response("failed", None) | {"error": {"code": code, "message": error.message}}
        return [
            self._event("error", code=error.code, message=error.message, param=error.param),
            self._event("response.failed", response=failed),
        ]

    def collect(self, index: int, piece: ChoiceText) -> None:
        """Add a piece, and write no events of it."""
        self._take(piece)

    def whole(self, usage: Usage) -> list[bytes]:
        """Return the response."""
        return [orjson.dumps(self._response(self._status, usage))]

    def not_stored(self) -> None:
        """Answer `"store": false`: no request finds the response by its id."""
        self._head = {**self._head, "store": False}

    @property
    def _status(self) -> str:
        return "incomplete" if self._is_cut else "completed"

    def _take(self, piece: ChoiceText) -> None:
        self._tokens += len(piece.token_ids)
        if piece.scored:
            written = map(orjson.dumps, chat_logprobs(piece.scored, self._token_bytes))
            self._scored += map(orjson.Fragment, written)
        parts = piece.parts
        if parts is None:
            parts = [MessagePart("content", piece.text)] if piece.text else []
        for part in parts:
            self._add(part)
        if piece.finish_reason is not None:
            self._is_cut = piece.finish_reason == "length"
            if not self._items:
                self._begin("message")
            self._end("incomplete" if self._is_cut else "completed")

    def _add(self, part: MessagePart) -> None:
        if part.kind == "content":
            self._write("message", part.text)
        elif part.kind == "reasoning":
            self._reasoning_tokens = self._tokens
            self._write("reasoning", part.text)
        elif part.kind == "call":
            self._scored = []
            self._begin_call(part.call_id, part.text)
        else:
            self._scored = []
            self._write(self._called.item, part.text)

    def _write(self, kind: str, text: str) -> None:
        if not self._is_open or self._items[-1]["type"] != kind:
            self._begin(kind)
        self._pieces.append(text)
        if kind == "message":
            self._item_event("response.output_text.delta", delta=text, logprobs=self._taken_logprobs(), content_index=0)
        elif kind == "reasoning":
            self._scored = []
            self._item_event("response.reasoning_text.delta", delta=text, content_index=0)
        elif kind == "function_call":
            self._item_event("response.function_call_arguments.delta", delta=text)

    def _taken_logprobs(self) -> list[orjson.Fragment]:
        """Return the log-probabilities that are new, and add them to the message."""
        taken, self._scored = self._scored, []
        self._items[-1]["content"][0]["logprobs"] += taken
        return taken

    def _begin_call(self, call_id: str, name: str) -> None:
        self._called = tool = self._tools.get(name, CalledTool(name=name))
        if tool.item == "local_shell_call":
            self._begin(tool.item, call_id=call_id, action=action_of_call(""))
            return
        fields = {"call_id": call_id, "name": tool.name}
        if tool.namespace:
            fields["namespace"] = tool.namespace
        self._begin(tool.item, **fields, **{"input" if tool.item == "custom_tool_call" else "arguments": ""})

    def _begin(self, kind: str, **fields: Any) -> None:
        if self._is_open:
            self._end("completed")
        self._is_open, self._pieces = True, []
        prefix = _PREFIXES[kind]
        item = {
            "id": item_id(prefix, self._request_id, len(self._items)),
            "type": kind,
            "status": "in_progress",
            **fields,
        }
        if kind == "message":
            item |= {"role": "assistant", "content": []}
        elif kind == "reasoning":
            item |= {"summary": [], "content": []}
        self._items.append(item)
        self._output_event("response.output_item.added", item=item)
        if kind not in ("message", "reasoning"):
            return
        part: _Fields = {"type": "reasoning_text", "text": ""}
        if kind == "message":
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        item["content"] = [part]
        self._item_event("response.content_part.added", content_index=0, part=part)

    def _end(self, status: str) -> None:
        """End the item that is being written, if there is one."""
        if not self._is_open:
            return
        self._is_open = False
        item, text = self._items[-1], "".join(self._pieces)
        if item["type"] == "function_call":
            item["arguments"] = text
            self._item_event("response.function_call_arguments.done", arguments=text, name=item["name"])
        elif item["type"] == "custom_tool_call":
            item["input"] = given = input_of_call(text)
            self._item_event("response.custom_tool_call_input.delta", delta=given)
            self._item_event("response.custom_tool_call_input.done", input=given)
        elif item["type"] == "local_shell_call":
            item["action"] = action_of_call(text)
        else:
            (part,) = item["content"]
            part["text"] = text
            if item["type"] == "message":
                self._taken_logprobs()
                self._item_event("response.output_text.done", text=text, logprobs=part["logprobs"], content_index=0)
            else:
                self._item_event("response.reasoning_text.done", text=text, content_index=0)
            self._item_event("response.content_part.done", content_index=0, part=part)
        item["status"] = status
        self._output_event("response.output_item.done", item=item)

    def _item_event(self, kind: str, **fields: Any) -> None:
        self._output_event(kind, item_id=self._items[-1]["id"], **fields)

    def _output_event(self, kind: str, **fields: Any) -> None:
        if self._events is None:
            self._number += 1
        else:
            self._events.append(self._event(kind, output_index=len(self._items) - 1, **fields))

    def _event(self, kind: str, **fields: Any) -> bytes:
        written = named_event(kind, {"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return written

    def _response(self, status: str, usage: Usage | None) -> _Fields:
        return {
            **self._head,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": self._items,
            "usage": None if usage is None else self._usage(usage),
        }

    def _usage(self, usage: Usage) -> _Fields:
        cached = usage["prompt_tokens_details"]
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": cached | {"cache_write_tokens": 0} if isinstance(cached, dict) else cached,
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
            "total_tokens": usage["total_tokens"],
        }
