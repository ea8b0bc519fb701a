"""A model's text, split into what it thinks, what it says and what it calls, while it is being written.

What is given depends on the text alone, not on how it was cut into pieces, so that a stream which another gateway goes on with
has the same deltas and the same ids. A part that looked like a call and is none is text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson
from transformers.utils.chat_parsing import ResponseParser
from transformers.utils.chat_parsing.content_parsers import process_field
from transformers.utils.chat_parsing.response_templates import ResponseTemplateField

from spotwise.text.call_scanner import CallPiece, CallScanner
from spotwise.text.message_forms import CALLS, CONTENT, REASONING, MessageForm

_SHORT_ID = 9


@dataclass(frozen=True, slots=True)
class MessagePart:
    """A piece of a message.

    Attributes:
        kind: what the model says or thinks, the name of a function that it calls, or some of the arguments.
        text: of that.
        call: index of the call.
        call_id: with its name.
    """

    kind: Literal["content", "reasoning", "call", "arguments"]
    text: str
    call: int = 0
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A call, whole."""

    call_id: str
    name: str
    arguments: str


def calls_of(parts: Sequence[MessagePart]) -> list[Call]:
    """Return the calls of a message, whole."""
    arguments: dict[int, list[str]] = {}
    for part in parts:
        if part.kind == "arguments":
            arguments.setdefault(part.call, []).append(part.text)
    return [
        Call(part.call_id, part.text, "".join(arguments.get(part.call, ()))) for part in parts if part.kind == "call"
    ]


@dataclass(frozen=True, slots=True)
class MessageReading:
    """How the text of a request's choices is read.

    Attributes:
        form: how the model writes; `None`: all is content.
        prefix: of the message, in the prompt: the model's text goes on from there.
        finds_calls: the form's calls are looked for.
        is_called: a grammar makes all of the content calls.
        is_named: the client named the function: a call is what it asked for, and no reason to end.
        is_single: the message ends with its first call.
        schemas: of the functions' arguments, by name.
    """

    form: MessageForm | None = None
    prefix: str = ""
    finds_calls: bool = False
    is_called: bool = False
    is_named: bool = False
    is_single: bool = False
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class MessageReader:
    """Reads one message.

    Args:
        reading: how.
        choice_id: of the choice; ids of calls are made of it.

    Attributes:
        calls: found so far.
        is_named: see `MessageReading`.
        is_over: the message ends here, whatever the model would add.
    """

    def __init__(self, reading: MessageReading, choice_id: str) -> None:
        self.calls = 0
        self.is_over = False
        self.is_named = reading.is_named
        self._reading = reading
        self._choice_id = choice_id
        form = reading.form
        self._parser: ResponseParser | None = None
        if form is not None:
            template = form.template if reading.finds_calls else form.without_calls()
            self._parser = ResponseParser(template, reading.prefix)
        self._calls = None if form is None else form.calls
        self._has_short_ids = form is not None and form.has_short_ids
        self._scanner = CallScanner()
        self._region = ""  # text of the part with calls that is being read
        self._blanks = ""  # they count only with what follows
        self._has_content = False
        self._parts: list[MessagePart] = []

    def push(self, text: str) -> list[MessagePart]:
        """Take the next piece of the text; return what it adds to the message."""
        if text and not self.is_over:
            if self._parser is None:
                self._say(text)
            else:
                self._take(self._parser.feed(text), has_ended=False)
        return self._taken()

    def finish(self) -> list[MessagePart]:
        """Return the rest of the message: its text is over."""
        if self._parser is not None and not self.is_over:
            self._take(self._parser.finalize()[1], has_ended=True)
        if self._blanks and not self.calls:
            self._parts.append(MessagePart("content", self._blanks))
        self._blanks = ""
        return self._taken()

    def _taken(self) -> list[MessagePart]:
        parts, self._parts = self._parts, []
        return parts

    def _take(self, events: Sequence[Mapping[str, Any]], *, has_ended: bool) -> None:
        for event in events:
            if self.is_over:
                return
            kind, field_name = event["type"], event["field"]
            if field_name == CALLS:
                self._take_calls(kind, event, has_ended=has_ended)
            elif kind == "region_chunk" and field_name == CONTENT:
                self._say(event["text"])
            elif kind == "region_chunk" and field_name in REASONING:
                self._parts.append(MessagePart("reasoning", event["text"]))

    def _take_calls(self, kind: str, event: Mapping[str, Any], *, has_ended: bool) -> None:
        if kind == "region_open":
            self._scanner, self._region = CallScanner(), ""
        elif kind == "region_chunk":
            self._region += event["text"]
            if self._calls is None:
                self._add(self._scanner.push(event["text"]))
        elif self._calls is None:
            if not self._scanner.has_called:
                self._say_region(event["value"], has_ended=has_ended)
        else:
            self._understand(self._calls, event["value"], has_ended=has_ended)

    def _understand(self, calls: ResponseTemplateField, value: Mapping[str, str], *, has_ended: bool) -> None:
        captures = {name: text for name, text in value.items() if name != "content"}
        try:
            found = _calls_of(process_field(value["content"], calls, captures), self._reading.schemas)
        except (ValueError, KeyError):
            self._say_region(value, has_ended=has_ended)
            return
        for name, arguments in found:
            self._add([CallPiece("name", name), CallPiece("arguments", arguments), CallPiece("end")])
            if self.is_over:
                return

    def _say_region(self, value: Mapping[str, str], *, has_ended: bool) -> None:
        """Give a part that is no call as the text that it is."""
        assert self._reading.form is not None
        trigger = self._reading.form.call_form.trigger
        closings = self._reading.form.template.fields[CALLS].close_literals
        closing = closings[0] if closings and not has_ended else ""
        self._say(value.get("blanks", "") + trigger + self._region + closing)

    def _say(self, text: str) -> None:
        if self._reading.is_called:
            self._add(self._scanner.push(text))
            return
        if not self._has_content or self.calls:
            # Blanks before the first word, and between calls, are the model's layout.
            text, self._blanks = self._blanks + text, ""
            if not text.strip():
                self._blanks = text
                return
        if text:
            self._has_content = True
            self._parts.append(MessagePart("content", text))

    def _add(self, pieces: Sequence[CallPiece]) -> None:
        for piece in pieces:
            if piece.kind == "name":
                self._parts.append(MessagePart("call", piece.text, self.calls, self._id(self.calls)))
                self.calls += 1
                self._blanks = ""
            elif piece.kind == "arguments":
                self._parts.append(MessagePart("arguments", piece.text, self.calls - 1))
            elif self._reading.is_single:
                self.is_over = True
                return

    def _id(self, call: int) -> str:
        digest = hashlib.sha256(f"{self._choice_id}/{call}".encode()).hexdigest()
        return digest[:_SHORT_ID] if self._has_short_ids else f"call_{digest[:24]}"


def _calls_of(value: Any, schemas: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the names and arguments of what a response template has made of a part."""
    calls = []
    for each in value if isinstance(value, list) else [value]:
        function = each.get("function", each) if isinstance(each, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ValueError("a call without a name")
        name, arguments = function["name"], function.get("arguments", {})
        if isinstance(arguments, dict):
            properties = schemas.get(name, {}).get("properties", {})
            arguments = {key: _typed(given, properties.get(key)) for key, given in arguments.items()}
        calls.append((name, arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()))
    return calls


def _typed(given: Any, schema: Any) -> Any:
    """Return an argument that was written without quotes as its schema has it; a text where it does not say."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if not isinstance(given, str) or kind is None or kind == "string":
        return given
    try:
        return orjson.loads({"True": "true", "False": "false", "None": "null"}.get(given.strip(), given))
    except orjson.JSONDecodeError:
        return given
