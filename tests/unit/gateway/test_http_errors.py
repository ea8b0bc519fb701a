"""Every refusal: its status, its parameter, its code, and OpenAI's shape."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from spotwise.gateway.access.auth import ApiKey
from tests.unit.gateway.apps import Http, Json, MakeApp, connect, openai_of
from tests.unit.gateway.fake_mesh import BOTH, CHAT, CHATS, COMPLETION, COMPLETIONS, CONTEXT_LENGTH, FakeMesh

USER = {"role": "user", "content": "Hi"}
#: The token of that letter.
H = 42
IMAGE = {"type": "image_url", "image_url": {"url": "x"}}

NO_TEXTS: tuple[Any, ...] = (7, [], {})
NUMBERS = ("max_tokens", "n", "seed", "top_k", "min_tokens", "priority", "temperature", "top_p")

SHARED: list[tuple[Json, str, str]] = [
    ({"model": 3}, "model", "invalid_type"),
    ({"temperature": "hot"}, "temperature", "invalid_type"),
    *(({name: True}, name, "invalid_type") for name in NUMBERS),  # though a Python bool is an int
    ({"temperature": -0.1}, "temperature", "invalid_value"),
    ({"temperature": 2.1}, "temperature", "invalid_value"),
    ({"top_p": 0}, "top_p", "invalid_value"),
    ({"top_p": 1.01}, "top_p", "invalid_value"),
    ({"top_k": -2}, "top_k", "invalid_value"),
    ({"top_k": 1.5}, "top_k", "invalid_type"),
    ({"min_p": 1.5}, "min_p", "invalid_value"),
    ({"presence_penalty": 3}, "presence_penalty", "invalid_value"),
    ({"frequency_penalty": -3}, "frequency_penalty", "invalid_value"),
    *(({"repetition_penalty": each}, "repetition_penalty", "invalid_value") for each in (0, 5e-324, 0.0099, 10.1)),
    ({"seed": 2**63}, "seed", "invalid_value"),
    ({"seed": 2**70}, "seed", "invalid_type"),
    ({"priority": "high"}, "priority", "invalid_type"),
    ({"priority": 0.5}, "priority", "invalid_type"),
    ({"priority": 2**31}, "priority", "invalid_value"),
    ({"priority": -(2**31) - 1}, "priority", "invalid_value"),
    ({"user": 5}, "user", "invalid_type"),
    ({"max_tokens": "5"}, "max_tokens", "invalid_type"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"max_tokens": -1}, "max_tokens", "invalid_value"),
    ({"max_tokens": CONTEXT_LENGTH}, "", "context_length_exceeded"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "invalid_value"),
    ({"min_tokens": -1}, "min_tokens", "invalid_value"),
    ({"n": 0}, "n", "invalid_value"),
    ({"n": 17}, "n", "invalid_value"),
    ({"stop": 5}, "stop", "invalid_value"),
    ({"stop": [""]}, "stop", "invalid_value"),
    ({"stop": ["a", 1]}, "stop", "invalid_value"),
    ({"stop": ["a"] * 17}, "stop", "invalid_value"),
    *(({"cache_salt": each}, "cache_salt", "invalid_value") for each in ("", "x" * 1025)),
    *(({"cache_salt": each}, "cache_salt", "invalid_type") for each in NO_TEXTS),
    *(({"truncate_prompt_tokens": each}, "truncate_prompt_tokens", "invalid_value") for each in (0, -2, 257)),
    ({"truncate_prompt_tokens": 3, "truncation_side": "middle"}, "truncation_side", "invalid_value"),
    *(({"prompt_logprobs": each}, "prompt_logprobs", "invalid_value") for each in (21, -1)),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "invalid_value"),
    *(({"allowed_token_ids": each}, "allowed_token_ids", "invalid_value") for each in ([], [10**6], [*range(1025)])),
    ({"allowed_token_ids": [2], "min_tokens": 1}, "allowed_token_ids", "invalid_value"),
    ({"allowed_token_ids": [H], "bad_words": ["H"]}, "allowed_token_ids", "invalid_value"),
    *(({"bad_words": [each]}, "bad_words.0", "invalid_value") for each in ("", "x" * 257)),
    ({"bad_words": [7]}, "bad_words.0", "invalid_type"),
    ({"bad_words": ["x"] * 129}, "bad_words", "invalid_value"),
    ({"bad_words": [f"{number} qzxj qzxj qzxj qzxj" for number in range(120)]}, "bad_words", "invalid_value"),
    ({"stop_token_ids": [1, "2"]}, "stop_token_ids.1", "invalid_type"),
    ({"stop_token_ids": [512]}, "stop_token_ids", "invalid_value"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5", "invalid_value"),
    ({"logit_bias": {"five": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"512": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": [1]}, "logit_bias", "invalid_type"),
    ({"stream": "yes"}, "stream", "invalid_type"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", "invalid_type"),
    ({"stream": True, "stream_options": 1}, "stream_options", "invalid_type"),
]


def calling(*calls: Any) -> Json:
    """A chat whose model has made these calls."""
    return {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [*calls]}]}


MISSING = "missing_required_parameter"
CHAT_ONLY: list[tuple[Json, str, str]] = [
    (calling({"id": "1", "type": "function"}), "messages.1.tool_calls.0.function", MISSING),
    (calling({"type": "custom", "custom": {"name": "x", "input": ""}}), "messages.1.tool_calls.0.function", MISSING),
    (calling({"function": {"arguments": "{}"}}), "messages.1.tool_calls.0.function.name", MISSING),
    (calling({"function": {"name": 5}}), "messages.1.tool_calls.0.function.name", "invalid_type"),
    (
        calling({"function": {"name": "f", "arguments": 5}}),
        "messages.1.tool_calls.0.function.arguments",
        "invalid_value",
    ),
    (calling("f"), "messages.1.tool_calls.0", "invalid_type"),
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": "Hi"}, "messages", "invalid_type"),
    ({"messages": ["Hi"]}, "messages.0", "invalid_type"),
    ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages.0.role", "invalid_value"),
    ({"messages": [USER, {"content": "Hi"}]}, "messages.1.role", "missing_required_parameter"),
    ({"messages": [{"role": "user"}]}, "messages.0", "invalid_value"),
    ({"messages": [{"role": "user", "content": None}]}, "messages.0", "invalid_value"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "invalid_type"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages.0.content", "invalid_value"),
    ({"messages": [{"role": "user", "content": ["Hi"]}]}, "messages.0.content", "invalid_value"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content", "invalid_value"),
    ({"messages": [{"role": "user", "content": "refuse"}]}, "messages", "chat_template_error"),
    ({"messages": [{"role": "user", "content": "long " * 300}]}, "messages", "context_length_exceeded"),
    ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template", "invalid_value"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", "invalid_value"),
    ({"chat_template_kwargs": [1]}, "chat_template_kwargs", "invalid_type"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_value"),
    ({"max_completion_tokens": CONTEXT_LENGTH}, "messages", "context_length_exceeded"),
    ({"logprobs": 1}, "logprobs", "invalid_type"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message", "invalid_value"),
]
COMPLETION_ONLY: list[tuple[Json, str, str]] = [
    ({"prompt": None}, "prompt", "missing_required_parameter"),
    ({"prompt": ""}, "prompt", "invalid_value"),
    ({"prompt": []}, "prompt", "invalid_value"),
    ({"prompt": [[]]}, "prompt.0", "invalid_value"),
    ({"prompt": ["a", ""]}, "prompt.1", "invalid_value"),
    ({"prompt": 7}, "prompt", "invalid_type"),
    ({"prompt": ["a", 7]}, "prompt.1", "invalid_type"),
    ({"prompt": ["a", [7]]}, "prompt", "invalid_type"),
    ({"prompt": [[1, True]]}, "prompt.0", "invalid_type"),
    ({"prompt": [1, 512]}, "prompt", "invalid_value"),
    ({"prompt": [-1], "echo": True}, "prompt", "invalid_value"),
    ({"prompt": [2**63], "echo": True}, "prompt", "invalid_value"),
    ({"prompt": ["a", "long " * 300]}, "prompt", "context_length_exceeded"),
    ({"prompt": "long " * 300, "truncate_prompt_tokens": CONTEXT_LENGTH}, "prompt", "context_length_exceeded"),
    ({"prompt": ["a"] * 17, "n": 16}, "prompt", "invalid_value"),
    ({"best_of": 2}, "best_of", "unsupported_parameter"),
    ({"logprobs": 21}, "logprobs", "invalid_value"),
    ({"logprobs": True}, "logprobs", "invalid_type"),
]


def cases() -> list[Any]:
    rows = [(CHATS, CHAT, *row) for row in SHARED + CHAT_ONLY]
    rows += [(COMPLETIONS, COMPLETION, *row) for row in SHARED + COMPLETION_ONLY]
    return [pytest.param(*row, id=f"{row[0][4:]}-{str(row[2])[:50]}") for row in rows]


@pytest.mark.parametrize(("path", "valid", "change", "param", "code"), cases())
async def test_wrong_parameters_are_named(
    client: Http, mesh: FakeMesh, path: str, valid: Json, change: Json, param: str, code: str
) -> None:
    """400 before anything reaches the mesh; the error names the parameter by its dotted path."""
    response = await client.post(path, json=valid | change)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (400, code, "invalid_request_error"), error
    assert error["param"] == (param or ("messages" if "chat" in path else "prompt"))
    assert error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert not mesh.specs


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b"[1]",
        b'"text"',
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": 1e999}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xff"}',
        b"[" * 100,
    ],
    ids=lambda body: repr(body[:20]),
)
async def test_malformed_json(client: Http, body: bytes) -> None:
    """Whatever is not one JSON object is a 400, lone surrogates and non-finite numbers included."""
    response = await client.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize(("path", "valid"), BOTH.items())
async def test_model_is_required_and_known(client: Http, path: str, valid: Json) -> None:
    """A missing model is 400; another one is 404 with the served model's name."""
    missing = await client.post(path, json={key: value for key, value in valid.items() if key != "model"})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "model")
    unknown = await client.post(path, json=valid | {"model": "gpt-x"})
    error = unknown.json()["error"]
    assert (unknown.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "acme/tiny-chat" in error["message"]


async def test_other_media_types(client: Http) -> None:
    """A form is 415; JSON with a charset, or without any announcement, is read."""
    form = await client.post(COMPLETIONS, data={"prompt": "Hi"})
    assert (form.status_code, form.json()["error"]["code"]) == (415, "unsupported_media_type")
    body = b'{"model": "acme/tiny-chat", "prompt": "Hi"}'
    named = {"content-type": "application/json; charset=utf-8"}
    assert (await client.post(COMPLETIONS, content=body, headers=named)).status_code == 200
    assert (await client.post(COMPLETIONS, content=body)).status_code == 200


async def _chunks(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"x" * 100


@pytest.mark.parametrize("announced", [True, False])
async def test_oversize_body(make_app: MakeApp, announced: bool) -> None:
    """413, by the announced length or when a chunked body grows past the limit."""
    app = make_app(max_body_bytes=1000)
    async with connect(app) as client:
        content: Any = b"x" * 1001 if announced else _chunks(11)
        response = await client.post(COMPLETIONS, content=content)
        assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    "change",
    [
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "modalities": ["text"]},
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "anything": 1},
        dict.fromkeys(("tools", "stop", "n", "seed", "temperature", "logit_bias", "stream", "max_tokens", "logprobs")),
        {"stream": False, "stream_options": None, "temperature": 2, "stop": []},
    ],
)
async def test_harmless_parameters_are_accepted(client: Http, change: Json) -> None:
    assert (await client.post(CHATS, json=CHAT | change)).status_code == 200
    assert (await client.post(COMPLETIONS, json=COMPLETION | change)).status_code == 200


async def test_openais_client_raises_its_own_exceptions(make_app: MakeApp, mesh: FakeMesh) -> None:
    api = openai_of(make_app(api_keys=(ApiKey("key"),)), "key")
    with pytest.raises(openai.NotFoundError) as not_found:
        await api.chat.completions.create(**CHAT | {"model": "other"})
    assert (not_found.value.code, not_found.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as bad:
        await api.chat.completions.create(**CHAT, temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.AuthenticationError):
        await api.with_options(api_key="wrong").models.list()
    mesh.fail_at = 2
    with pytest.raises(openai.InternalServerError):
        await api.completions.create(**COMPLETION)
    stream = await api.completions.create(**COMPLETION, stream=True)
    with pytest.raises(openai.APIError, match="All workers are full"):
        async for _ in stream:
            pass
