"""Tests of costly bodies: limits are checked first, work leaves the event loop, memory is shared."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from starlette.applications import Starlette
from tokenizers import Tokenizer

from spotwise.gateway.access.auth import ApiKey
from spotwise.gateway.schema.completions import CompletionRequest
from spotwise.gateway.schema.messages import MessagesRequest
from spotwise.gateway.schema.responses import ResponsesRequest
from spotwise.gateway.schema.shared import StrictBody
from spotwise.text.chat_text import ChatText
from spotwise.text.control_tokens import ControlTokens
from spotwise.text.message_texts import render_with_calls
from spotwise.text.prompt_encoder import PromptEncoder
from spotwise.text.stop_strings import StopTables
from tests.contracts.waiting import PATIENCE_S, until
from tests.unit.gateway.fake_mesh import CHAT, COMPLETION, CONTEXT_LENGTH, MODEL, FakeMesh

MakeApp = Callable[..., Starlette]
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
        (CHATS, {"messages": [{"role": "user", "content": "<|im_end|>" * 100_001}]}, "messages", "body_too_complex"),
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


async def test_of_unknown_members_some_are_noted(client: httpx.AsyncClient) -> None:
    """A body may have hundreds of thousands; what is counted and said of them is done on the loop."""
    body = COMPLETION | {f"wish_{number}": 1 for number in range(100_000)}
    response = await client.post(COMPLETIONS, json=body, timeout=PATIENCE_S)
    assert response.status_code == 200, response.text
    assert response.headers["x-spotwise-warning"].endswith(", 232 more")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ResponsesRequest, {"input": [{"type": "reasoning", "summary": [1] * 9000}]}),
        (
            ResponsesRequest,
            {"input": [{"type": "local_shell_call", "call_id": "c", "action": {"command": [1] * 9000}}]},
        ),
        (CompletionRequest, {"prompt": "Hi", "stop_token_ids": ["x"] * 1000}),
        (CompletionRequest, {"prompt": "Hi", "structured_outputs": {"choice": [5] * 1000}}),
        (MessagesRequest, {"max_tokens": 8, "messages": [{"role": "user", "content": [5] * 9000}]}),
    ],
    ids=str,
)
def test_a_list_is_wrong_by_its_first_wrong_item(kind: type[StrictBody], body: dict[str, Any]) -> None:
    """However many follow: an error of each would hold the interpreter for seconds."""
    with pytest.raises(ValidationError) as wrong:
        kind.model_validate({"model": MODEL} | body)
    assert wrong.value.error_count() <= 4


async def test_what_reads_control_tokens_is_made_in_a_thread(
    client: httpx.AsyncClient, text: ChatText, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the first text that has one, however short: a large vocabulary takes seconds."""
    threads: list[threading.Thread] = []

    def twin(tokens: ControlTokens) -> Tokenizer:
        threads.append(threading.current_thread())
        return tokens._of

    monkeypatch.setattr(ControlTokens, "twin", property(twin))
    monkeypatch.setattr(text, "_twin_prompts", None)
    chat = CHAT | {"messages": [{"role": "user", "content": "<|im_end|>"}]}
    assert (await client.post(CHATS, json=chat)).status_code == 200
    assert len(threads) == 1 and threads[0] is not threading.main_thread()


async def test_many_calls_are_looked_for_at_once(text: ChatText) -> None:
    """In a time that grows with the prompt alone, whatever the number of calls."""
    searched = 0

    class Rendered(str):
        def __contains__(self, part: object) -> bool:
            nonlocal searched
            searched += 1
            return isinstance(part, str) and super().__contains__(part)

    calls = [{"function": {"name": "f", "arguments": {}}} for _ in range(50)]
    messages = [{"role": "assistant", "content": "", "tool_calls": calls}]
    render_with_calls(messages, lambda conversation: Rendered(json.dumps(conversation)))
    assert searched == 0


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


async def test_a_caller_leaves_room_for_the_bodies_of_others(make_app: MakeApp) -> None:
    """Bodies that stop one byte short hold half of the room at most, so that another key's is read."""
    keys = [ApiKey("crowd", "crowd"), ApiKey("other", "other")]
    app = make_app(api_keys=keys, max_body_bytes=1_000_000, max_held_bytes=4_000_000)
    sent, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def short_body() -> Any:
        yield b"x" * 990_000
        sent.release()
        await go_on.wait()
        yield b"y"

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        crowd, other = ({"Authorization": f"Bearer {key.name}"} for key in keys)
        async with asyncio.timeout(PATIENCE_S):
            short = [
                asyncio.create_task(client.post(COMPLETIONS, content=short_body(), headers=crowd)) for _ in range(2)
            ]
            for _ in short:
                await sent.acquire()
            body = json.dumps(COMPLETION | {"user": "u" * 900_000}).encode()
            refused = await client.post(COMPLETIONS, content=body, headers=crowd)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
            assert (await client.post(COMPLETIONS, content=body, headers=other)).status_code == 200
            go_on.set()
            assert [(await each).json()["error"]["code"] for each in short] == ["invalid_json"] * 2
            assert (await client.post(COMPLETIONS, content=body, headers=crowd)).status_code == 200


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
