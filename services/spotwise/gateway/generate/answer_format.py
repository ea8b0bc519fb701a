"""What writes the answer to one request: whole, or as the events of a stream."""

from __future__ import annotations

import abc
from typing import ClassVar

from spotwise.gateway.generate.choice import ChoiceText
from spotwise.http.errors import ApiError
from spotwise.http.sse import COMMENT, DONE

#: Token counts of an answer, as OpenAI's older endpoints name them.
Usage = dict[str, int | dict[str, int]]


class AnswerFormat(abc.ABC):
    """Takes the pieces of an answer's choices in order, and gives bytes.

    Class attributes:
        BY_TOKEN: it takes single tokens, so that its events and their number follow from the tokens alone.
        END: ends every stream, after its events.
        KEEP_ALIVE: breaks the silence of a stream; no event of the answer.
        REPEATS: its last events have the whole answer once more.
    """

    BY_TOKEN: ClassVar[bool] = False
    END: ClassVar[bytes] = DONE
    KEEP_ALIVE: ClassVar[bytes] = COMMENT
    REPEATS: ClassVar[bool] = False

    @abc.abstractmethod
    def openings(self) -> list[bytes]:
        """Return the events that begin a stream, before there is text."""

    @abc.abstractmethod
    def events(self, index: int, piece: ChoiceText) -> list[bytes]:
        """Return the events of a piece of choice `index`; of several choices at most one each."""

    @abc.abstractmethod
    def endings(self, usage: Usage) -> list[bytes]:
        """Return the events that follow the last piece."""

    @abc.abstractmethod
    def failure(self, error: ApiError) -> list[bytes]:
        """Return the events that end a stream which cannot go on."""

    def not_stored(self) -> None:  # noqa: B027
        """Say, where the answer does, that it is not found again."""

    @abc.abstractmethod
    def collect(self, index: int, piece: ChoiceText) -> None:
        """Take a piece of an answer that is sent whole, or that the client has already."""

    @abc.abstractmethod
    def whole(self, usage: Usage) -> list[bytes]:
        """Return the body of an answer of what was collected, in parts."""
