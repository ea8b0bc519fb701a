"""`POST /v1/chat/completions`: from messages to a plan, and how its answers are worded."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from spotwise.gateway.answer import Usage, WholeChoice
from spotwise.gateway.choice import ChoiceText, ScoredToken
from spotwise.gateway.detokenize import LEAST_LOGPROB, TokenBytes
from spotwise.gateway.errors import bad_request
from spotwise.gateway.plan import ApiOptions, GenerationPlan, PromptTokens, plan_generation, require_model
from spotwise.gateway.prompt_limits import prompt_too_long
from spotwise.gateway.schema import parse_request
from spotwise.gateway.schema_chat import ChatRequest
from spotwise.gateway.sse import event
from spotwise.gateway.text import ChatTemplateError, ChatText, PromptTooLongError


def plan_chat(body: Mapping[str, Any], text: ChatText, options: ApiOptions, key_name: str) -> GenerationPlan:
    """Check a body, which came with the key of that name, and plan it.

    Raises:
        ApiError: 400 or 404, with the parameter at fault.
    """
    request = parse_request(ChatRequest, body)
    require_model(request.model, options)
    logprobs = _logprobs(request, options)
    max_tokens, max_tokens_param = request.max_tokens, "max_tokens"
    if request.max_completion_tokens is not None:
        max_tokens, max_tokens_param = request.max_completion_tokens, "max_completion_tokens"
    if max_tokens == 0:
        raise bad_request(
            f"Invalid value for '{max_tokens_param}': must be at least 1.", max_tokens_param, "invalid_value"
        )
    continue_final_message = request.continue_final_message or False
    add_generation_prompt = request.add_generation_prompt
    if continue_final_message and add_generation_prompt:
        raise bad_request(
            "'continue_final_message' and 'add_generation_prompt' exclude each other.",
            "continue_final_message",
            "invalid_value",
        )
    if add_generation_prompt is None:
        add_generation_prompt = not continue_final_message
    messages = [message.for_template() for message in request.messages]
    try:
        token_ids = text.encode_chat(messages, add_generation_prompt, continue_final_message)
    except ChatTemplateError as error:
        raise bad_request(str(error), error.param, "chat_template_error") from error
    except PromptTooLongError as error:
        raise prompt_too_long("messages", text.context_length, error.at_least_tokens) from error
    if not token_ids:
        raise bad_request("Invalid value for 'messages': they render to nothing.", "messages", "invalid_value")
    return plan_generation(
        request,
        [PromptTokens(token_ids)],
        text,
        options,
        id_prefix="chatcmpl",
        key_name=key_name,
        max_tokens=max_tokens,
        max_tokens_param=max_tokens_param,
        default_max_tokens=options.default_max_tokens,
        logprobs=logprobs,
    )


def _logprobs(request: ChatRequest, options: ApiOptions) -> int | None:
    if not request.logprobs:
        if request.top_logprobs:
            raise bad_request("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs", "invalid_value")
        return None
    wanted = request.top_logprobs or 0
    if wanted > options.max_logprobs:
        raise bad_request(
            f"Invalid value for 'top_logprobs': must be at most {options.max_logprobs}.",
            "top_logprobs",
            "invalid_value",
        )
    return wanted


class ChatFormat:
    """Answers as `chat.completion` and `chat.completion.chunk` objects.

    Args:
        plan: what is answered.
        model_name: as the client knows it.
        token_bytes: bytes and text of tokens.
    """

    def __init__(self, plan: GenerationPlan, model_name: str, token_bytes: TokenBytes) -> None:
        self._plan = plan
        self._token_bytes = token_bytes
        self._common = {"id": plan.request_id, "created": int(time.time()), "model": model_name}
        # A plain text delta, by far the most frequent event, is these bytes round its JSON string.
        shown = orjson.dumps(self._chunk([{"index": 0}]))
        front, tail = shown.split(b'{"index":0}')
        self._fronts = [
            b'data: %b{"index":%d,"delta":{"content":' % (front, index) for index in range(len(plan.sequences))
        ]
        self._tail = b'},"logprobs":null,"finish_reason":null}' + tail + b"\n\n"

    def opening(self) -> bytes:
        """Return a role delta for every choice."""
        events = []
        for index in range(len(self._plan.sequences)):
            delta = {"role": "assistant", "content": ""}
            chunk = self._chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])
            if self._plan.return_token_ids:
                chunk["prompt_token_ids"] = self._plan.sequences[index].prompt.token_ids
            events.append(event(chunk))
        return b"".join(events)

    def delta(self, index: int, piece: ChoiceText) -> bytes:
        """Return a content delta; the last one has the finish reason."""
        if piece.finish_reason is None and piece.scored is None and not self._plan.return_token_ids:
            return self._fronts[index] + orjson.dumps(piece.text) + self._tail
        choice: dict[str, Any] = {
            "index": index,
            "delta": {"content": piece.text} if piece.text else {},
            "logprobs": self._logprobs(piece.scored),
            "finish_reason": piece.finish_reason,
        }
        if piece.finish_reason is not None:
            choice["stop_reason"] = piece.stop_reason
        if self._plan.return_token_ids:
            choice["token_ids"] = piece.token_ids
        return event(self._chunk([choice]))

    def usage(self, usage: Usage) -> bytes:
        """Return the chunk without choices that holds the usage."""
        return event(self._chunk([]) | {"usage": usage})

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> bytes:
        """Return the `chat.completion` object."""
        worded = []
        for index, choice in enumerate(choices):
            word: dict[str, Any] = {
                "index": index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": self._logprobs(choice.scored),
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
            }
            if self._plan.return_token_ids:
                word["token_ids"] = choice.token_ids
            worded.append(word)
        body: dict[str, Any] = {**self._common, "object": "chat.completion", "choices": worded, "usage": usage}
        if self._plan.return_token_ids:
            body["prompt_token_ids"] = self._plan.sequences[0].prompt.token_ids
        return orjson.dumps(body)

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk = {**self._common, "object": "chat.completion.chunk", "choices": choices}
        if self._plan.include_usage:
            chunk["usage"] = None
        return chunk

    def _logprobs(self, scored: Sequence[ScoredToken] | None) -> dict[str, Any] | None:
        if scored is None:
            return None
        content = []
        for token in scored:
            at_token = token.logprobs
            if at_token is None:
                continue
            alternatives = zip(at_token.top_token_ids, at_token.top_logprobs, strict=True)
            entry = self._token(token.token_id, at_token.logprob)
            entry["top_logprobs"] = [self._token(token_id, logprob) for token_id, logprob in alternatives]
            content.append(entry)
        return {"content": content, "refusal": None}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        spelled, raw = self._token_bytes.text_of(token_id), self._token_bytes.bytes_of(token_id)
        return {"token": spelled, "logprob": max(logprob, LEAST_LOGPROB), "bytes": list(raw)}
