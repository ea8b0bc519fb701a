"""`POST /v1/completions`: from prompts to a plan, and how its answers are worded."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from spotwise.gateway.answer import Usage, WholeChoice
from spotwise.gateway.choice import ChoiceText, ScoredToken
from spotwise.gateway.detokenize import LEAST_LOGPROB, TokenBytes
from spotwise.gateway.errors import bad_request
from spotwise.gateway.plan import (
    ApiOptions,
    GenerationPlan,
    PromptTokens,
    check_token_ids,
    plan_generation,
    require_model,
)
from spotwise.gateway.prompt_limits import prompt_too_long, require_choices
from spotwise.gateway.schema import parse_request
from spotwise.gateway.schema_completions import CompletionRequest, Prompt
from spotwise.gateway.sse import event
from spotwise.gateway.text import ChatText, PromptTooLongError

#: OpenAI's documented default of this endpoint, and vLLM's.
DEFAULT_MAX_TOKENS = 16


def plan_completion(body: Mapping[str, Any], text: ChatText, options: ApiOptions, key_name: str) -> GenerationPlan:
    """Check a body, which came with the key of that name, and plan it.

    Raises:
        ApiError: 400 or 404, with the parameter at fault.
    """
    request = parse_request(CompletionRequest, body)
    require_model(request.model, options)
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise bad_request("'best_of' is supported only where it equals 'n'.", "best_of", "unsupported_parameter")
    if request.logprobs is not None and request.logprobs > options.max_logprobs:
        raise bad_request(
            f"Invalid value for 'logprobs': must be at most {options.max_logprobs}.", "logprobs", "invalid_value"
        )
    echo = request.echo or False
    if request.max_tokens == 0 and not echo:
        raise bad_request(
            "Invalid value for 'max_tokens': 0 is allowed only with 'echo'.", "max_tokens", "invalid_value"
        )
    require_choices(request.n, request.num_prompts, options.max_n, options.max_sequences)
    given = request.prompts()
    params = ["prompt"] if given == [request.prompt] else [f"prompt.{index}" for index in range(len(given))]
    prompts = [_tokenize(*pair, text, echo) for pair in zip(given, params, strict=True)]
    return plan_generation(
        request,
        prompts,
        text,
        options,
        id_prefix="cmpl",
        key_name=key_name,
        max_tokens=request.max_tokens,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        logprobs=request.logprobs,
    )


def _tokenize(prompt: Prompt, param: str, text: ChatText, echo: bool) -> PromptTokens:
    if isinstance(prompt, str):
        try:
            token_ids = text.encode(prompt)
        except PromptTooLongError as error:
            raise prompt_too_long(param, text.context_length, error.at_least_tokens) from error
        return PromptTokens(token_ids, prompt if echo else None, param)
    check_token_ids(param, prompt, text.vocab_size)
    if len(prompt) >= text.context_length:
        raise prompt_too_long(param, text.context_length, len(prompt))
    return PromptTokens(tuple(prompt), text.decode(prompt) if echo else None, param)


class CompletionFormat:
    """Answers as `text_completion` objects.

    Args:
        plan: what is answered.
        model_name: as the client knows it.
        token_bytes: bytes and text of tokens.
    """

    def __init__(self, plan: GenerationPlan, model_name: str, token_bytes: TokenBytes) -> None:
        self._plan = plan
        self._token_bytes = token_bytes
        self._common = {
            "id": plan.request_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": model_name,
        }
        # A plain text delta, by far the most frequent event, is these bytes round its JSON string.
        front, tail = orjson.dumps(self._chunk([{"index": 0}])).split(b'{"index":0}')
        self._fronts = [b'data: %b{"index":%d,"text":' % (front, index) for index in range(len(plan.sequences))]
        self._tail = b',"logprobs":null,"finish_reason":null}' + tail + b"\n\n"

    def opening(self) -> bytes:
        """Return nothing: a completion's stream begins with text."""
        return b""

    def delta(self, index: int, piece: ChoiceText) -> bytes:
        """Return a chunk with the piece's text; the last one has the finish reason."""
        if piece.finish_reason is None and piece.scored is None and not self._plan.return_token_ids:
            return self._fronts[index] + orjson.dumps(piece.text) + self._tail
        choice: dict[str, Any] = {
            "index": index,
            "text": piece.text,
            "logprobs": self._logprobs(piece.scored),
            "finish_reason": piece.finish_reason,
        }
        if piece.finish_reason is not None:
            choice["stop_reason"] = piece.stop_reason
        if self._plan.return_token_ids:
            choice["token_ids"] = piece.token_ids
            if piece.is_first:
                choice["prompt_token_ids"] = self._plan.sequences[index].prompt.token_ids
        return event(self._chunk([choice]))

    def usage(self, usage: Usage) -> bytes:
        """Return the chunk without choices that holds the usage."""
        return event(self._chunk([]) | {"usage": usage})

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> bytes:
        """Return the `text_completion` object."""
        worded = []
        for index, choice in enumerate(choices):
            word: dict[str, Any] = {
                "index": index,
                "text": choice.text,
                "logprobs": self._logprobs(choice.scored),
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
            }
            if self._plan.return_token_ids:
                word["token_ids"] = choice.token_ids
                word["prompt_token_ids"] = self._plan.sequences[index].prompt.token_ids
            worded.append(word)
        return orjson.dumps({**self._common, "choices": worded, "usage": usage})

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk: dict[str, Any] = {**self._common, "choices": choices}
        if self._plan.include_usage:
            chunk["usage"] = None
        return chunk

    def _logprobs(self, scored: Sequence[ScoredToken] | None) -> dict[str, Any] | None:
        if scored is None:
            return None
        text_of = self._token_bytes.text_of
        return {
            "tokens": [text_of(token.token_id) for token in scored],
            "token_logprobs": [token.logprobs and max(token.logprobs.logprob, LEAST_LOGPROB) for token in scored],
            "top_logprobs": [self._alternatives(token) for token in scored],
            "text_offset": [token.text_offset for token in scored],
        }

    def _alternatives(self, token: ScoredToken) -> dict[str, float] | None:
        """Return the likeliest tokens and the one that stands there, by their text; of equal texts the likelier."""
        at_token = token.logprobs
        if at_token is None:
            return None
        alternatives = dict[str, float]()
        for token_id, logprob in (
            *zip(at_token.top_token_ids, at_token.top_logprobs, strict=True),
            (token.token_id, at_token.logprob),
        ):
            spelled, finite = self._token_bytes.text_of(token_id), max(logprob, LEAST_LOGPROB)
            alternatives[spelled] = max(finite, alternatives.get(spelled, finite))
        return alternatives
