"""The JSON value that a model is writing, its answer or a call's arguments: whether it came to its end."""

from __future__ import annotations

import json
from collections.abc import Iterable

from spotwise.text.message_reader import MessagePart


class WrittenJson:
    """The last JSON value of a message.

    Args:
        is_answer: what the model says is one; else only the arguments of its calls are.
    """

    __slots__ = ("_is_answer", "_texts")

    def __init__(self, *, is_answer: bool) -> None:
        self._is_answer = is_answer
        self._texts: list[str] | None = [] if is_answer else None

    def add(self, parts: Iterable[MessagePart]) -> None:
        """Take what follows of the message."""
        for part in parts:
            if part.kind == "call":
                self._texts = []
            elif self._texts is not None and (part.kind == "arguments" or (part.kind == "content" and self._is_answer)):
                self._texts.append(part.text)

    @property
    def is_open(self) -> bool:
        """Whether it lacks its end; so does one that is nested deeper than can be read."""
        if self._texts is None:
            return False
        try:
            json.loads("".join(self._texts), parse_int=str, parse_float=str)  # numbers of any size
        except (json.JSONDecodeError, RecursionError):
            return True
        return False
