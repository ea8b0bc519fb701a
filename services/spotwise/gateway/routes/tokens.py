"""A text's tokens as the model reads them, tokens' text, and how many a conversation has: vLLM's and Anthropic's paths."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from spotwise.gateway.access.body_work import BodyWork
from spotwise.gateway.apis.chat import chat_token_ids
from spotwise.gateway.apis.messages import count_tokens
from spotwise.gateway.generate.api_options import ApiOptions, require_model
from spotwise.gateway.generate.prompts import prompt_too_long
from spotwise.gateway.generate.sampling import check_token_ids
from spotwise.gateway.schema.shared import parse_body
from spotwise.gateway.schema.tokenize import DetokenizeRequest, TokenizeChat, TokenizePrompt, parse_tokenize
from spotwise.http.body import parse_json_object
from spotwise.http.message_errors import MESSAGES_PATH
from spotwise.text.chat_text import ChatText
from spotwise.text.prompt_encoder import PromptTooLongError


def token_routes(text: ChatText, options: ApiOptions, bodies: BodyWork) -> list[Route]:
    """Return `/tokenize`, `/detokenize` and `/v1/messages/count_tokens`."""

    async def answer(answered: Callable[[ChatText, ApiOptions, bytearray], bytes], request: Request) -> Response:
        body = await bodies.counted(request, partial(answered, text, options))
        return Response(body, media_type="application/json")

    return [
        Route("/tokenize", partial(answer, _tokenized), methods=["POST"]),
        Route("/detokenize", partial(answer, _detokenized), methods=["POST"]),
        Route(f"{MESSAGES_PATH}/count_tokens", partial(answer, _counted), methods=["POST"]),
    ]


def _tokenized(text: ChatText, options: ApiOptions, body: bytearray) -> bytes:
    request = parse_tokenize(parse_json_object(body))
    _require_model(request.model, options)
    token_ids = _token_ids(request, text)
    answer: dict[str, Any] = {"count": len(token_ids), "max_model_len": text.context_length, "tokens": token_ids}
    answer["token_strs"] = text.spelled(token_ids) if request.return_token_strs else None
    return orjson.dumps(answer)


def _token_ids(request: TokenizePrompt | TokenizeChat, text: ChatText) -> tuple[int, ...]:
    if isinstance(request, TokenizeChat):
        return chat_token_ids(
            request, text, add_special_tokens=request.add_special_tokens or False, tools=request.tools or ()
        )
    try:
        return text.encode(request.prompt, add_special_tokens=request.add_special_tokens is not False)
    except PromptTooLongError as error:
        raise prompt_too_long("prompt", text.context_length, error.at_least_tokens) from error


def _detokenized(text: ChatText, options: ApiOptions, body: bytearray) -> bytes:
    request = parse_body(DetokenizeRequest, parse_json_object(body))
    _require_model(request.model, options)
    check_token_ids("tokens", request.tokens, text.vocab_size)
    return orjson.dumps({"prompt": text.decode(request.tokens, skip_special_tokens=False)})


def _counted(text: ChatText, options: ApiOptions, body: bytearray) -> bytes:
    return orjson.dumps({"input_tokens": count_tokens(parse_json_object(body), text, options)})


def _require_model(name: str | None, options: ApiOptions) -> None:
    if name is not None:
        require_model(name, options)
