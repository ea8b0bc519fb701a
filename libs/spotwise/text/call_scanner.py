"""Calls of tools in a text of JSON, found while it is being written.

A call is an object with a `name` and `arguments` (or `parameters`). What it was given depends on the text alone, not on how it
was cut into pieces: arguments are given as they are written, once the name is known.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

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
