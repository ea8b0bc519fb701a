"""A model's text, split into reasoning, content and calls while it is being written.

A call is an object with a `name` and `arguments` (or `parameters`). What it was given depends on the text alone, not on how it
was cut into pieces: arguments are given as they are written, once the name is known.

What is given depends on the text alone, not on how it was cut into pieces, so that a stream which another gateway continues
has the same deltas and the same ids. A part that looked like a call and is none is text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson
from transformers.utils.chat_parsing import ResponseParser
from transformers.utils.chat_parsing.content_parsers import process_field
from transformers.utils.chat_parsing.response_templates import ResponseTemplateField

from spotwise.text.message_forms import CALLS, CONTENT, REASONING, MessageForm

_ARGUMENTS = ("arguments", "parameters")
_BLANKS = " \t\r\n"


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of a call: its `name`, some of its `arguments`, or its `end`."""

    kind: Literal["name", "arguments", "end"]
    text: str = ""


class CallScanner:
    """Scans a text for calls; what is outside of objects is passed over.

    Attributes:
        has_called: a call's name was found.
    """

    def __init__(self) -> None:
        self.has_called = False
        self._depth = 0
        self._in_string = self._is_escaped = False
        self._begin_object()

    def _begin_object(self) -> None:
        self._name: str | None = None
        self._has_arguments = False
        self._waiting = ""  # arguments before their name
        self._begin_member()

    def _begin_member(self) -> None:
        self._key: str | None = None  # of the member whose value is being read
        self._written = ""  # of the key, or of a value that is needed whole
        self._has_begun = False  # the value

    def push(self, text: str) -> list[CallPiece]:
        """Take the next piece of the text; return what it adds to calls."""
        found: list[CallPiece] = []
        for char in text:
            if self._depth == 0:
                if char == "{":
                    self._depth = 1
                    self._begin_object()
            elif self._in_string:
                self._follow_string(char)
                self._take(char, found)
            else:
                self._outside_of_strings(char, found)
        return _joined(found)

    def _follow_string(self, char: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._in_string = False

    def _outside_of_strings(self, char: str, found: list[CallPiece]) -> None:
        if self._depth == 1:
            if char in "},":
                self._end_member(found)
                if char == "}":
                    self._depth = 0
                    self._end_object(found)
                return
            if char == ":" and self._key is None:
                self._key = _as_text(self._written)
                self._written = ""
                return
            if char in _BLANKS:
                return
        if char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
        self._take(char, found)

    def _take(self, char: str, found: list[CallPiece]) -> None:
        """Take a character of a key or a value."""
        is_first, self._has_begun = (
            not self._has_begun and self._key is not None,
            self._has_begun or self._key is not None,
        )
        if self._key not in _ARGUMENTS or (is_first and char == '"') or self._written:
            self._written += char  # needed whole: a key, a name, and arguments that are a text of JSON
        else:
            self._give_arguments(char, found)

    def _give_arguments(self, text: str, found: list[CallPiece]) -> None:
        self._has_arguments = True
        if self._name is None:
            self._waiting += text
        else:
            found.append(CallPiece("arguments", text))

    def _end_member(self, found: list[CallPiece]) -> None:
        if self._key == "name" and self._name is None and (name := _as_text(self._written)):
            self._name = name
            self.has_called = True
            found.append(CallPiece("name", name))
            if self._waiting:
                found.append(CallPiece("arguments", self._waiting))
        elif self._key in _ARGUMENTS and self._written:
            self._give_arguments(_as_text(self._written) or "{}", found)
        self._begin_member()

    def _end_object(self, found: list[CallPiece]) -> None:
        if self._name is not None:
            if not self._has_arguments:
                found.append(CallPiece("arguments", "{}"))
            found.append(CallPiece("end"))


def _as_text(written: str) -> str | None:
    """Return the text of a JSON string; `None` for what is none."""
    try:
        value = json.loads(written, strict=False)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def _joined(pieces: list[CallPiece]) -> list[CallPiece]:
    joined: list[CallPiece] = []
    for piece in pieces:
        if joined and piece.kind == joined[-1].kind == "arguments":
            joined[-1] = CallPiece("arguments", joined[-1].text + piece.text)
        else:
            joined.append(piece)
    return joined


_SHORT_ID = 9


@dataclass(frozen=True, slots=True)
class MessagePart:
    """A piece of a message.

    Attributes:
        kind: what the model says or thinks, the name of a function that it calls, or some of the arguments.
        text: text of that part.
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
        prefix: beginning of the message, in the prompt: the model's text continues it.
        finds_calls: the form's calls are looked for.
        is_called: a grammar makes all of the content calls.
        is_named: the client named the function: a call is what it asked for, and no reason to end.
        is_single: the message ends with its first call.
        schemas: schemas of the functions' arguments, by name.
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
        choice_id: id of the choice; ids of calls are made of it.

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
