"""Tests of costly bodies: limits are checked first, work leaves the event loop, memory is shared."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from spotwise.gateway.prompt_encoder import PromptEncoder
from spotwise.gateway.stop_strings import StopTables
from spotwise.gateway.text import ChatText
from tests.contracts.waiting import PATIENCE_S, until
from tests.unit.gateway.fake_mesh import CHAT, COMPLETION, CONTEXT_LENGTH, FakeMesh

MakeApp = Callable[..., FastAPI]
CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def nested(levels: int) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = [value]
    return value


def calling(arguments: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": arguments}}],
    }


@pytest.mark.parametrize(
    ("path", "change", "param", "code"),
    [
        (COMPLETIONS, {"prompt": ["a"] * 257}, "prompt", "invalid_value"),
        (COMPLETIONS, {"prompt": ["a"] * 100_000}, "prompt", "invalid_value"),
        (COMPLETIONS, {"prompt": ["a"] * 300_000}, None, "body_too_complex"),
        (COMPLETIONS, {"prompt": [[]] * 90_000}, "prompt", "invalid_value"),
        (COMPLETIONS, {"prompt": [5] * CONTEXT_LENGTH, "echo": True}, "prompt", "context_length_exceeded"),
        (COMPLETIONS, {"prompt": "a" * 1_000_000}, "prompt", "context_length_exceeded"),
        (COMPLETIONS, {"stop": "a" * 1025}, "stop", "invalid_value"),
        (COMPLETIONS, {"stop": ["a"] * 100_000}, "stop", "invalid_value"),
        (COMPLETIONS, {"stop_token_ids": [5] * 1025}, "stop_token_ids", "invalid_value"),
        (COMPLETIONS, {"logit_bias": {str(index): 1 for index in range(1025)}}, "logit_bias", "invalid_value"),
        (CHATS, {"messages": [{"role": "user", "content": "a" * 1_000_000}]}, "messages", "context_length_exceeded"),
        (CHATS, {"messages": [{"role": "user", "content": ""}] * 16_385}, "messages", "invalid_value"),
        (CHATS, {"messages": [{"role": "user", "content": "Hi", "more": nested(400)}]}, None, "body_too_complex"),
        (CHATS, {"messages": [calling("[" * 400 + "]" * 400)]}, "messages", "body_too_complex"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_too_much_is_refused_before_any_work(
    client: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    change: dict[str, Any],
    param: str | None,
    code: str,
) -> None:
    """400 by name, and not one character is tokenized."""

    def tokenize(*_: Any) -> None:
        raise AssertionError("tokenized")

    monkeypatch.setattr(PromptEncoder, "_encode", tokenize)
    response = await client.post(path, json=(CHAT if path == CHATS else COMPLETION) | change, timeout=PATIENCE_S)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, code), error
    assert len(response.content) < 2000


@pytest.mark.parametrize("change", [{"model": "m" * 1_000_000}, {"logit_bias": {"9" * 1_000_000: 1}}])
async def test_errors_repeat_long_names_in_part(client: httpx.AsyncClient, change: dict[str, Any]) -> None:
    """An error is a line, not a copy of the request."""
    response = await client.post(COMPLETIONS, json=COMPLETION | change)
    assert response.status_code in (400, 404)
    assert len(response.content) < 2000


@pytest.mark.parametrize("path", [COMPLETIONS, CHATS])
async def test_the_loop_runs_while_a_body_is_parsed(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Template and tokenizer of a long prompt run in a thread, beside which other requests are answered."""
    begun, go_on = threading.Event(), threading.Event()
    method = "encode_chat" if path == CHATS else "encode"
    original = getattr(ChatText, method)

    def slowly(*arguments: Any, **named: Any) -> Any:
        if len(str(arguments)) > 4096:
            begun.set()
            assert go_on.wait(PATIENCE_S), "the loop did not go on"
        return original(*arguments, **named)

    monkeypatch.setattr(ChatText, method, slowly)
    long = "the quick brown fox " * 300
    change = {"prompt": long} if path == COMPLETIONS else {"messages": [{"role": "user", "content": long}]}
    slow = asyncio.create_task(client.post(path, json=(CHAT if path == CHATS else COMPLETION) | change))
    async with asyncio.timeout(PATIENCE_S):
        await until(begun.is_set)
        quick = await client.post(COMPLETIONS, json=COMPLETION)
        assert quick.status_code == 200
        go_on.set()
        assert (await slow).json()["error"]["code"] == "context_length_exceeded"


async def test_stop_tables_are_built_once(
    client: httpx.AsyncClient, mesh: FakeMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many choices look for the strings."""
    built: list[tuple[str, ...]] = []
    build = StopTables.__init__

    def noted(tables: StopTables, stop_strings: tuple[str, ...] = ()) -> None:
        built.append(stop_strings)
        build(tables, stop_strings)

    monkeypatch.setattr(StopTables, "__init__", noted)
    answer = await client.post(COMPLETIONS, json=COMPLETION | {"stop": ["world"], "n": 16})
    assert [choice["text"] for choice in answer.json()["choices"]] == ["Hello, "] * 16
    assert built == [("world",)]


async def test_bodies_share_a_bound(make_app: MakeApp) -> None:
    """Bodies in transfer share a byte bound; more is a 503 with `Retry-After`, except for small bodies."""
    app = make_app(max_body_bytes=1_000_000, max_held_bytes=2_000_000)
    sent, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def slow_body() -> Any:
        yield b"x" * 990_000
        sent.release()
        await go_on.wait()
        yield b"y"

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        async with asyncio.timeout(PATIENCE_S):
            slow = [asyncio.create_task(client.post(COMPLETIONS, content=slow_body())) for _ in range(2)]
            for _ in slow:
                await sent.acquire()
            body = json.dumps(COMPLETION | {"user": "u" * 500_000}).encode()
            refused = await client.post(COMPLETIONS, content=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
            assert refused.headers["retry-after"] == "1"
            assert (await client.post(COMPLETIONS, json=COMPLETION)).status_code == 200
            go_on.set()
            assert [(await each).json()["error"]["code"] for each in slow] == ["invalid_json"] * 2
            assert (await client.post(COMPLETIONS, content=body)).status_code == 200
