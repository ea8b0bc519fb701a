"""One choice of an answer: its tokens as text, and where the text, or its JSON value, ends.

Output tokens are counted up to and including the one that ended the text. The mesh ends it (a stop token, the length), or a
stop string does here. The token that stopped a sequence gives no text unless the client requested it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from spotwise.core.requests.request import FinishReason
from spotwise.core.requests.sampling import TokenLogprobs
from spotwise.gateway.generate.generation import GeneratedTokens
from spotwise.gateway.generate.prepared_request import PreparedSequence, PromptTokens, TextRules
from spotwise.http.errors import GenerationError
from spotwise.text.chat_text import ChatText
from spotwise.text.message_reader import MessagePart, MessageReader
from spotwise.text.stop_strings import StopStringScanner


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """One position with its log-probabilities.

    Attributes:
        token_id: the token there.
        text_offset: characters of the choice's text before it.
        logprobs: `None` for the first token of a prompt, which nothing predicts.
    """

    token_id: int
    text_offset: int
    logprobs: TokenLogprobs | None


@dataclass(slots=True)
class ChoiceText:
    """What one item of the mesh adds to a choice.

    Attributes:
        text: may be empty, while characters or stop strings are incomplete.
        token_ids: output tokens that it counts.
        scored: their log-probabilities, after the prompt's where `echo` requested them; `None` if not requested.
        finish_reason: `stop` or `length` with the last piece.
        stop_reason: the stop string or stop token id of the client that ended it; `None` for the model's own end.
        is_first: the first piece with tokens.
        prompt_logprobs: with that, of each token of the prompt, where they were requested; `None` for its first.
        parts: parts of the message, where the text is more than what the model says; else `None`.
        ends_with_calls: with the last piece, the message is for its calls of tools.
        is_cut_json: with the last piece, the JSON that the model wrote lacks its end.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    scored: list[ScoredToken] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    is_first: bool = False
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    parts: list[MessagePart] | None = None
    ends_with_calls: bool = False
    is_cut_json: bool = False

    @property
    def is_silent(self) -> bool:
        """Whether there is nothing in it that a client without token ids would want to see."""
        says_nothing = not self.text if self.parts is None else not self.parts
        return says_nothing and not self.scored and self.finish_reason is None


class Choice:
    """State of one choice.

    Args:
        text: the model's text.
        rules: how tokens become text.
        sequence: the sequence that generates it.

    Attributes:
        output_tokens: counted so far.
        cached_tokens: prompt tokens whose KV was there already.
        prompt: what it answers.
    """

    __slots__ = (
        "_decoded_characters",
        "_detokenizer",
        "_eos_token_ids",
        "_json",
        "_reader",
        "_rules",
        "_scanner",
        "_started",
        "_text",
        "cached_tokens",
        "output_tokens",
        "prompt",
    )

    def __init__(self, text: ChatText, rules: TextRules, sequence: PreparedSequence) -> None:
        self.output_tokens = self.cached_tokens = 0
        self.prompt: PromptTokens = sequence.prompt
        self._text = text
        self._rules = rules
        reading = rules.reading
        self._reader = None if reading is None else MessageReader(reading, sequence.choice_id)
        self._detokenizer = text.detokenizer(rules.skip_special_tokens, None if reading is None else reading.form)
        self._scanner = StopStringScanner(rules.stop_tables, rules.include_stop)
        self._eos_token_ids = text.eos_token_ids
        self._decoded_characters = 0
        self._started = False
        has_json = rules.is_json or (reading is not None and reading.finds_calls)
        self._json = WrittenJson(is_answer=rules.is_json) if has_json else None

    def pieces(self, batch: GeneratedTokens, *, by_token: bool) -> list[ChoiceText]:
        """Take what the mesh generated, up to what ends the text; return a piece, or one of each token. Raises as `advance`."""
        pieces: list[ChoiceText] = []
        for part in _singly(batch) if by_token else (batch,):
            pieces.append(self.advance(part))
            if pieces[-1].finish_reason is not None:
                break
        return pieces

    def advance(self, batch: GeneratedTokens) -> ChoiceText:
        """Take what the mesh generated; nothing may follow a piece with a finish reason.

        Raises:
            GenerationError: the mesh ended the sequence without success.
        """
        reason = batch.finish_reason
        if reason is FinishReason.ERROR or reason is FinishReason.ABORT:
            raise GenerationError(500, "generation_failed", f"The mesh ended this sequence early ({reason.value}).")
        piece = ChoiceText("", scored=None if self._rules.logprobs is None else [])
        if batch.tokens and not self._started:
            self._begin(piece, batch)
        if self._rules.score_only:
            piece.finish_reason = "length" if reason is not None else None
        else:
            self._add_output(piece, batch)
        return piece

    def _begin(self, piece: ChoiceText, batch: GeneratedTokens) -> None:
        self._started = piece.is_first = True
        self.cached_tokens = batch.cached_tokens
        if self._rules.prompt_logprobs is not None:
            piece.prompt_logprobs = self._prompt_logprobs(batch, self._rules.prompt_logprobs)
        if self.prompt.echo is None:
            return
        piece.text = self.prompt.echo
        if piece.scored is not None and self._rules.logprobs is not None:
            logprobs = self._prompt_logprobs(batch, self._rules.logprobs)
            decoder, offset = self._text.detokenizer(self._rules.skip_special_tokens), 0
            for token_id, at_token in zip(self.prompt.token_ids, logprobs, strict=True):
                piece.scored.append(ScoredToken(token_id, offset, at_token))
                offset += len(decoder.push(token_id))
        self._decoded_characters = len(self.prompt.echo)

    def _prompt_logprobs(self, batch: GeneratedTokens, alternatives: int) -> list[TokenLogprobs | None]:
        logprobs = batch.tokens[0].prompt_logprobs
        if logprobs is None or len(logprobs) != len(self.prompt.token_ids):
            raise GenerationError(500, "prompt_logprobs_missing", "The mesh returned no scores of the prompt.")
        return [at_token and at_token.first(alternatives) for at_token in logprobs]

    def _add_output(self, piece: ChoiceText, batch: GeneratedTokens) -> None:
        rules, scanner, reader = self._rules, self._scanner, self._reader
        message: list[MessagePart] | None = None if reader is None else []
        parts: list[str] = []
        stopped_by_token = batch.finish_reason is FinishReason.STOP
        hidden_position = len(batch.tokens) - 1 if stopped_by_token and not rules.include_stop else -1
        taken = 0
        for position, token in enumerate(batch.tokens):
            taken += 1
            self.output_tokens += 1
            if piece.scored is not None:
                piece.scored.append(ScoredToken(token.token_id, self._decoded_characters, token.logprobs))
            if position == hidden_position:
                break
            text = self._detokenizer.push(token.token_id)
            if not text:
                continue
            self._decoded_characters += len(text)
            parts.append(text if self.output_tokens < rules.min_tokens else scanner.push(text))
            if reader is not None and message is not None:
                message += reader.push(parts[-1])
            if scanner.matched is not None or (reader is not None and reader.is_over):
                break
        is_over = reader is not None and reader.is_over
        if batch.finish_reason is not None and scanner.matched is None and not is_over:
            parts.append(scanner.push(self._detokenizer.flush()) + scanner.flush())
            if reader is not None and message is not None:
                message += reader.push(parts[-1])
        piece.token_ids = tuple(token.token_id for token in batch.tokens[:taken])
        written = "".join(parts)
        piece.text += written
        if scanner.matched is not None:
            piece.finish_reason, piece.stop_reason = "stop", scanner.matched
        elif is_over:
            piece.finish_reason = "stop"
        elif stopped_by_token:
            last_id = piece.token_ids[-1] if piece.token_ids else None
            piece.finish_reason = "stop"
            piece.stop_reason = None if last_id in self._eos_token_ids else last_id
        elif batch.finish_reason is FinishReason.LENGTH:
            piece.finish_reason = "length"
        if reader is not None and message is not None:
            piece.parts = message
            if piece.finish_reason is not None:
                piece.parts += reader.finish()
                piece.ends_with_calls = reader.calls > 0 and piece.finish_reason == "stop" and not reader.is_named
        if self._json is not None:
            self._json.add([MessagePart("content", written)] if piece.parts is None else piece.parts)
            piece.is_cut_json = piece.finish_reason == "length" and self._json.is_open


def _singly(batch: GeneratedTokens) -> Sequence[GeneratedTokens]:
    """Return the same tokens, one an item."""
    last = len(batch.tokens) - 1
    if last < 1:
        return (batch,)
    return [
        replace(batch, tokens=(token,), finish_reason=batch.finish_reason if index == last else None)
        for index, token in enumerate(batch.tokens)
    ]


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
