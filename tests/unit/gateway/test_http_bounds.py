"""Tests of costly bodies: limits are checked first, work leaves the loop, memory is shared, and gzip counts as what it says."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer

from spotwise.gateway.access.auth import ApiKey
from spotwise.gateway.schema.completions import CompletionRequest
from spotwise.gateway.schema.messages import MessagesRequest
from spotwise.gateway.schema.responses import ResponsesRequest
from spotwise.gateway.schema.shared import StrictBody
from spotwise.http.body import PIECE_BYTES, Gunzip
from spotwise.text.chat_text import ChatText
from spotwise.text.control_tokens import ControlTokens
from spotwise.text.message_texts import render_with_calls
from spotwise.text.prompt_encoder import PromptEncoder
from spotwise.text.stop_strings import StopTables
from tests.contracts.waiting import PATIENCE_S, until
from tests.unit.gateway.apps import Http, Json, MakeApp, connect
from tests.unit.gateway.fake_mesh import (
    BOTH,
    CHAT,
    CHATS,
    COMPLETION,
    COMPLETIONS,
    CONTEXT_LENGTH,
    EMBEDDINGS,
    MODEL,
    PATHS,
    FakeMesh,
)


def nested(levels: int) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = [value]
    return value


def calling(arguments: str) -> Json:
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
    client: Http, monkeypatch: pytest.MonkeyPatch, path: str, change: Json, param: str | None, code: str
) -> None:
    """400 by name, and not one character is tokenized."""

    def tokenize(*_: Any) -> None:
        raise AssertionError("tokenized")

    monkeypatch.setattr(PromptEncoder, "_encode", tokenize)
    response = await client.post(path, json=BOTH[path] | change, timeout=PATIENCE_S)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, code), error
    assert len(response.content) < 2000


@pytest.mark.parametrize("change", [{"model": "m" * 1_000_000}, {"logit_bias": {"9" * 1_000_000: 1}}])
async def test_errors_repeat_long_names_in_part(client: Http, change: Json) -> None:
    """An error is a line, not a copy of the request."""
    response = await client.post(COMPLETIONS, json=COMPLETION | change)
    assert response.status_code in (400, 404)
    assert len(response.content) < 2000


@pytest.mark.parametrize("path", [COMPLETIONS, CHATS])
async def test_the_loop_runs_while_a_body_is_parsed(client: Http, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
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
    slow = asyncio.create_task(client.post(path, json=BOTH[path] | change))
    async with asyncio.timeout(PATIENCE_S):
        await until(begun.is_set)
        quick = await client.post(COMPLETIONS, json=COMPLETION)
        assert quick.status_code == 200
        go_on.set()
        assert (await slow).json()["error"]["code"] == "context_length_exceeded"


async def test_of_unknown_members_some_are_noted(client: Http) -> None:
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
def test_a_list_is_wrong_by_its_first_wrong_item(kind: type[StrictBody], body: Json) -> None:
    """However many follow: an error of each would hold the interpreter for seconds."""
    with pytest.raises(ValidationError) as wrong:
        kind.model_validate({"model": MODEL} | body)
    assert wrong.value.error_count() <= 4


async def test_what_reads_control_tokens_is_made_in_a_thread(
    client: Http, text: ChatText, monkeypatch: pytest.MonkeyPatch
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


async def test_stop_tables_are_built_once(client: Http, mesh: FakeMesh, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(("has_keys", "max_held_bytes"), [(False, 2_000_000), (True, 4_000_000)])
async def test_bodies_share_a_bound(make_app: MakeApp, has_keys: bool, max_held_bytes: int) -> None:
    """Those in transfer share all of the room, or those of a key half of it, so that another key's are read. What finds none is
    a 503 with `Retry-After`; small bodies find some.
    """
    keys = [ApiKey(name, name) for name in ("crowd", "other") if has_keys]
    app = make_app(api_keys=keys, max_body_bytes=1_000_000, max_held_bytes=max_held_bytes)
    sent, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def short_body() -> Any:
        yield b"x" * 990_000
        sent.release()
        await go_on.wait()
        yield b"y"

    async with connect(app, Authorization="Bearer crowd") as crowd, connect(app, Authorization="Bearer other") as other:
        async with asyncio.timeout(PATIENCE_S):
            short = [asyncio.create_task(crowd.post(COMPLETIONS, content=short_body())) for _ in range(2)]
            for _ in short:
                await sent.acquire()
            body = json.dumps(COMPLETION | {"user": "u" * 900_000}).encode()
            refused = await crowd.post(COMPLETIONS, content=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
            assert refused.headers["retry-after"] == "1"
            assert ((await other.post(COMPLETIONS, content=body)).status_code == 200) is has_keys
            assert (await crowd.post(COMPLETIONS, json=COMPLETION)).status_code == 200
            go_on.set()
            assert [(await each).json()["error"]["code"] for each in short] == ["invalid_json"] * 2
            assert (await crowd.post(COMPLETIONS, content=body)).status_code == 200


GZIP = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
LIMIT = 1 << 20


@pytest.fixture
async def bounded(make_app: MakeApp) -> AsyncIterator[Http]:
    """A client of an API that takes small bodies only."""
    async with connect(make_app(max_body_bytes=LIMIT, max_held_bytes=LIMIT, embeddings=EMBEDDINGS)) as opened:
        yield opened


@pytest.mark.parametrize(("path", "body"), [*PATHS.items(), ("/tokenize", {"prompt": "Hi"})])
async def test_every_path_reads_gzip(bounded: Http, path: str, body: dict[str, object]) -> None:
    for name in ("gzip", "X-GZip"):
        content = gzip.compress(json.dumps(body).encode())
        response = await bounded.post(path, content=content, headers=GZIP | {"Content-Encoding": name})
        assert response.status_code == 200, response.text


async def test_a_bomb_is_too_large(bounded: Http) -> None:
    """However small it is sent: a body counts as it is without gzip. The limit itself is allowed."""
    room = LIMIT - len(json.dumps(COMPLETION | {"user": ""}))
    allowed = json.dumps(COMPLETION | {"user": "x" * room}).encode()
    assert (await bounded.post(COMPLETIONS, content=gzip.compress(allowed), headers=GZIP)).status_code == 200
    for content in (gzip.compress(allowed + b" "), gzip.compress(b" " * (1 << 28))):
        response = await bounded.post(COMPLETIONS, content=content, headers=GZIP)
        assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")
    # Nothing of what was refused counts as held.
    assert (await bounded.post(COMPLETIONS, content=gzip.compress(allowed), headers=GZIP)).status_code == 200


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "ends in the midst"),
        (json.dumps(COMPLETION).encode(), "is not valid gzip"),
        (zlib.compress(json.dumps(COMPLETION).encode()), "is not valid gzip"),
        (gzip.compress(json.dumps(COMPLETION).encode())[:-9], "ends in the midst"),
        (gzip.compress(json.dumps(COMPLETION).encode()) + b"x", "Something follows"),
        (gzip.compress(b"{}") * 2, "Something follows"),
    ],
    ids=["nothing", "plain", "zlib", "cut", "a byte more", "two members"],  # gzip's own have the time in them
)
async def test_what_is_no_gzip_is_refused(bounded: Http, content: bytes, words: str) -> None:
    """In plain words, and never read as far as it goes."""
    response = await bounded.post(COMPLETIONS, content=content, headers=GZIP)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_content_encoding")
    assert words in response.json()["error"]["message"]


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES])
@pytest.mark.parametrize("step", [1 << 20, 7])
def test_pieces_are_small_and_together_the_whole(size: int, step: int) -> None:
    """Also of what compresses well, and in whatever parts it comes."""
    for whole in (b"a" * size, bytes(index * 37 % 251 for index in range(size))):
        content, gunzip, pieces = gzip.compress(whole), Gunzip(), list[bytes]()
        for start in range(0, len(content), step):
            pieces += gunzip.pieces(content[start : start + step])
        gunzip.finish()
        assert b"".join(pieces) == whole
        assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)
