"""The bodies of `POST /tokenize` and `/detokenize`, which are vLLM's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from spotwise.gateway.schema.chat import ChatPrompt
from spotwise.gateway.schema.parameters import Endpoint, refuse_unsupported
from spotwise.gateway.schema.shared import StrictBody, parse_body
from spotwise.http.errors import bad_request

#: Parameters of chats that change how they are rendered.
TEMPLATE_PARAMETERS = ("chat_template", "documents")


class TokenizeRequest(StrictBody):
    """What both kinds of text share.

    Attributes:
        add_special_tokens: the tokenizer's own; by default to a prompt, and not to a chat, whose template writes them.
        return_token_strs: the tokens as the vocabulary spells them, too.
    """

    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizePrompt(TokenizeRequest):
    """A text as it is."""

    prompt: str


class TokenizeChat(ChatPrompt, TokenizeRequest):
    """A chat, through the chat template."""


class DetokenizeRequest(StrictBody):
    """Tokens whose text is wanted."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0)]]


def parse_tokenize(body: Mapping[str, Any]) -> TokenizePrompt | TokenizeChat:
    """Check a body with a prompt or a chat.

    Raises:
        ApiError: 400, naming the parameter.
    """
    has_chat = body.get("messages") is not None
    if has_chat and body.get("prompt") is not None:
        raise bad_request("'messages' and 'prompt' exclude each other.", "messages", "invalid_value")
    if not has_chat:
        return parse_body(TokenizePrompt, body)
    refuse_unsupported(Endpoint.CHAT, {name: body[name] for name in TEMPLATE_PARAMETERS if name in body})
    return parse_body(TokenizeChat, body)
