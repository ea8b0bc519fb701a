"""Writes answers of chats and completions: OpenAI's objects, with vLLM's `stop_reason` and token ids.

Log-probabilities, by far the largest part, are written as they come.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from spotwise.core.requests.sampling import TokenLogprobs
from spotwise.gateway.generate.answer_work import AnswerWriter, Usage
from spotwise.gateway.generate.choice import ChoiceText, ScoredToken
from spotwise.gateway.generate.prepared_request import PreparedRequest
from spotwise.http.errors import ApiError
from spotwise.http.json_text import JsonList, json_parts
from spotwise.http.sse import event, one_line
from spotwise.text.detokenize import LEAST_LOGPROB, TokenBytes
from spotwise.text.message_reader import MessagePart

#: Of a choice whose JSON was cut off: as the object of a response has it.
_CUT = {"incomplete_details": {"reason": "max_output_tokens"}}
#: Tokens whose log-probabilities are written at once.
_WRITTEN_TOKENS = 128
Item = TypeVar("Item")


@dataclass(slots=True)
class WholeChoice:
    """A choice that is answered whole, collected from its pieces."""

    texts: list[str] = field(default_factory=list)
    parts: list[MessagePart] | None = None
    ends_with_calls: bool = False
    token_ids: list[int] = field(default_factory=list)
    logprobs: dict[str, JsonList | None] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    is_cut_json: bool = False
    prompt_logprobs: JsonList | None = None

    def add(self, piece: ChoiceText) -> None:
        """Append the next piece."""
        self.texts.append(piece.text)
        if piece.parts is not None:
            self.parts = self.parts or []
            self.parts += piece.parts
        self.ends_with_calls = piece.ends_with_calls
        self.token_ids.extend(piece.token_ids)
        self.finish_reason, self.stop_reason = piece.finish_reason, piece.stop_reason
        self.is_cut_json = piece.is_cut_json

    def add_logprobs(self, logprobs: Mapping[str, Sequence[Any] | None]) -> None:
        """Append those of the next tokens, list by list."""
        if self.logprobs is None:
            self.logprobs = {name: None if items is None else JsonList() for name, items in logprobs.items()}
        for name, items in logprobs.items():
            if items is not None and (written := self.logprobs[name]) is not None:
                written.extend(items)

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.texts)


class OpenAiWriter(AnswerWriter):
    """Answers that are lists of choices, which a subclass defines.

    Args:
        prepared: the request that is answered.
        token_bytes: bytes and text of tokens.
    """

    WHOLE_OBJECT: ClassVar[str]
    CHUNK_OBJECT: ClassVar[str]
    #: JSON before and after the text of a streamed choice that has nothing but text.
    TEXT_FRONT: ClassVar[bytes]
    TEXT_TAIL: ClassVar[bytes]
    #: Whether each choice holds what belongs to its prompt (the prompts of a completion may differ), or the answer does.
    PROMPT_IN_CHOICES: ClassVar[bool]

    def __init__(self, prepared: PreparedRequest, token_bytes: TokenBytes) -> None:
        self._prepared = prepared
        self._token_bytes = token_bytes
        self._wholes = [WholeChoice() for _ in prepared.sequences]
        self._output_tokens = [0] * len(prepared.sequences)
        self._names = {"id": prepared.request_id, "created": prepared.created_unix_s, "model": prepared.model}
        # A plain text delta, by far the most frequent event, is these bytes round its JSON string.
        front, tail = one_line(self._chunk([{"index": 0}])).split(b'{"index":0}')
        self._fronts = [
            b'data: %b{"index":%d,%b' % (front, index, self.TEXT_FRONT) for index in range(len(prepared.sequences))
        ]
        self._tail = self.TEXT_TAIL + tail + b"\n\n"

    @abc.abstractmethod
    def _delta(self, piece: ChoiceText) -> dict[str, Any]:
        """Return the fields of a streamed choice that hold a piece of its text."""

    @abc.abstractmethod
    def _message(self, choice: WholeChoice) -> dict[str, Any]:
        """Return the fields of a whole choice that hold its text."""

    @abc.abstractmethod
    def _logprobs(self, scored: Sequence[ScoredToken]) -> dict[str, list[Any] | None]:
        """Return the log-probabilities of tokens, in lists with an item for each."""

    def events(self, index: int, piece: ChoiceText) -> list[bytes]:
        """Return a chunk, unless there is nothing to see in it; the last one has the finish reason."""
        self._output_tokens[index] += len(piece.token_ids)
        if piece.is_silent and not (self._prepared.return_token_ids and piece.token_ids):
            return []
        is_text = piece.parts is None and piece.finish_reason is None and piece.scored is None
        if is_text and not self._prepared.return_token_ids and not self._prepared.counts_in_chunks:
            return [self._fronts[index] + one_line(piece.text) + self._tail]
        logprobs = None if piece.scored is None else self._logprobs(piece.scored)
        choice = {"index": index, **self._delta(piece), **_end(piece, logprobs)}
        if piece.finish_reason is None:
            del choice["stop_reason"]
        if self._prepared.return_token_ids:
            choice["token_ids"] = piece.token_ids
            if self.PROMPT_IN_CHOICES and piece.is_first:
                choice["prompt_token_ids"] = self._prompt_ids(index)
        return [event(self._chunk([choice]))]

    def endings(self, usage: Usage) -> list[bytes]:
        """Return the chunk without choices that `include_usage` asks for."""
        return [event(self._chunk([]) | {"usage": usage})] if self._prepared.include_usage else []

    def failure(self, error: ApiError) -> list[bytes]:
        """Return the error."""
        return [event(error.body())]

    def collect(self, index: int, piece: ChoiceText) -> None:
        """Append a piece to its choice."""
        self._output_tokens[index] += len(piece.token_ids)
        choice = self._wholes[index]
        choice.add(piece)
        if piece.scored is not None:
            for scored in _slices(piece.scored):
                choice.add_logprobs(self._logprobs(scored))
        if piece.prompt_logprobs is not None and (self.PROMPT_IN_CHOICES or not index):
            choice.prompt_logprobs = written = JsonList()
            pairs = list(zip(self._prompt_ids(index), piece.prompt_logprobs, strict=True))
            for some in _slices(pairs):
                written.extend([at_token and self._scores(token_id, at_token) for token_id, at_token in some])

    def whole(self, usage: Usage) -> list[bytes]:
        """Return the body with all choices."""
        written = []
        for index, choice in enumerate(self._wholes):
            fields = {"index": index, **self._message(choice), **_end(choice, choice.logprobs)}
            if self._prepared.return_token_ids:
                fields["token_ids"] = choice.token_ids
            if self.PROMPT_IN_CHOICES:
                fields |= self._of_prompt(index, choice)
            written.append(fields)
        body: dict[str, Any] = {**self._names, "object": self.WHOLE_OBJECT, "choices": written, "usage": usage}
        if not self.PROMPT_IN_CHOICES:
            body |= self._of_prompt(0, self._wholes[0])
        return list(json_parts(body))

    def _of_prompt(self, index: int, choice: WholeChoice) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if self._prepared.return_token_ids:
            fields["prompt_token_ids"] = self._prompt_ids(index)
        if choice.prompt_logprobs is not None:
            fields["prompt_logprobs"] = choice.prompt_logprobs
        return fields

    def _scores(self, token_id: int, at_token: TokenLogprobs) -> dict[str, Any]:
        """Return vLLM's scores at one position: of the token itself, then of its alternatives, which have a rank."""
        alternatives = zip(at_token.top_token_ids, at_token.top_logprobs, strict=True)
        ranked: dict[int, tuple[float, int | None]] = {token_id: (at_token.logprob, None)}
        ranked |= {each: (logprob, rank) for rank, (each, logprob) in enumerate(alternatives, 1)}
        return {
            str(each): {
                "logprob": max(logprob, LEAST_LOGPROB),
                "rank": rank,
                "decoded_token": self._token_bytes.text_of(each),
            }
            for each, (logprob, rank) in ranked.items()
        }

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk: dict[str, Any] = {**self._names, "object": self.CHUNK_OBJECT, "choices": choices}
        if self._prepared.include_usage:
            chunk["usage"] = (
                self._usage_of(choices[0]["index"]) if self._prepared.counts_in_chunks and choices else None
            )
        return chunk

    def _usage_of(self, index: int) -> Usage:
        """Count a choice's tokens so far, and those of its prompt."""
        prompt, output = len(self._prompt_ids(index)), self._output_tokens[index]
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}

    def _spelled(self, token_id: int) -> str:
        """Return what log-probabilities call a token."""
        return f"token_id:{token_id}" if self._prepared.spells_ids else self._token_bytes.text_of(token_id)

    def _prompt_ids(self, index: int) -> tuple[int, ...]:
        return self._prepared.sequences[index].prompt.token_ids


def _end(choice: WholeChoice | ChoiceText, logprobs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a choice has beside its text."""
    ending = {
        "logprobs": logprobs,
        "finish_reason": "tool_calls" if choice.ends_with_calls else choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }
    return ending | _CUT if choice.is_cut_json else ending


def _slices(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Return items in parts that are written at once; one part without any where there are none."""
    for first in range(0, max(1, len(items)), _WRITTEN_TOKENS):
        yield items[first : first + _WRITTEN_TOKENS]
