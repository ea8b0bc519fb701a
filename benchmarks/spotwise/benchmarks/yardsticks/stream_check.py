"""Checks one stream of a server before it is measured: whether vLLM's client can read it."""

from __future__ import annotations

from typing import Any

import httpx
import orjson

from spotwise.cli.bench.servers import ServerEndpoint
from spotwise.cli.errors import CommandError

_PROMPT = "The quick brown fox jumps over the lazy dog. " * 4
_OUTPUT_TOKENS = 8
_TIMEOUT_S = 600.0
_SHOWN_CHARACTERS = 300


def require_readable_stream(endpoint: ServerEndpoint, server: str) -> None:
    """Send one request as vLLM's client does, and read its stream by the client's rules.

    Args:
        server: its name, for the message.

    Raises:
        CommandError: the server refuses the request, or its stream cannot be read; with the status, the beginning of the body
            and the exception.
    """
    body = {
        "model": endpoint.model,
        "prompt": _PROMPT,
        "repetition_penalty": 1.0,
        "max_tokens": _OUTPUT_TOKENS,
        "logprobs": None,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "ignore_eos": True,
    }
    url = f"{endpoint.url}/v1/completions"
    status, text = "no status", ""
    try:
        with httpx.stream("POST", url, json=body, timeout=_TIMEOUT_S, trust_env=False) as answer:
            status = f"status {answer.status_code}, {answer.headers.get('content-type', 'no content type')}"
            for piece in answer.iter_text():
                text += piece
        if not answer.is_success:
            raise ValueError("the request is refused")
        _require_readable(text)
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CommandError(
            f"vLLM's client cannot read a stream of {server} ({url}): {type(error).__name__}: {error}; {status}; "
            f"the body began {text[:_SHOWN_CHARACTERS]!r}"
        ) from error


def _require_readable(text: str) -> None:
    """Raise `ValueError`, or what an event of another form than the API's causes, where the client misses something."""
    messages = [message.strip() for message in text.split("\n\n") if message.strip()]
    tokens, has_text = 0, False
    for message in messages:
        # The client strips what it receives, so that a comment that comes alone joins all events after it.
        if not message.startswith("data: "):
            raise ValueError(f"{message[:_SHOWN_CHARACTERS]!r} is no event of data")
        data = message.removeprefix("data: ")
        if data == "[DONE]":
            continue
        event: dict[str, Any] = orjson.loads(data)
        if event.get("error"):
            raise ValueError(f"the stream has an error: {event['error']}")
        if choices := event.get("choices"):
            has_text = has_text or "text" in choices[0]
        if usage := event.get("usage"):  # llama.cpp's comes with the last choice
            tokens = usage["completion_tokens"]
    if not has_text:
        raise ValueError("no event has text")
    if not messages[-1].endswith("[DONE]"):
        raise ValueError("the stream ended without [DONE]")
    if tokens != _OUTPUT_TOKENS:
        raise ValueError(f"the usage says {tokens} tokens where {_OUTPUT_TOKENS} were requested")
