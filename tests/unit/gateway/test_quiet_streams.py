"""Streams that say nothing for a while: a comment keeps them alive, and readers go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest
from starlette.applications import Starlette
from starlette.types import Message

from spotwise.gateway.generate.stream_position import EventStream, StreamPosition
from spotwise.http.limits import HttpLimits
from spotwise.text.chat_text import ChatText
from tests.clients.naive_readers import Events, as_vllm_bench, by_blank_line, by_chunk, by_line
from tests.contracts.waiting import until
from tests.unit.gateway.fake_mesh import CHAT, COMPLETION, MODEL, RESPONSE, FakeMesh
from tests.unit.gateway.keeping_mesh import KeepingMesh, keeping_app
from tests.unit.gateway.listening import listening

SILENCE_S = 0.05
SAID = "Hello, world!"
APIS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "completions": ("/v1/completions", COMPLETION | {"max_tokens": 200}),
    "responses": ("/v1/responses", RESPONSE),
    "messages": ("/v1/messages", CHAT | {"max_tokens": 200}),
}
NAMED = ("responses", "messages")


class Sent:
    """What a client gets: each chunk as it comes."""

    def __init__(self, app: Starlette, api: str, **more: Any) -> None:
        path, body = APIS[api]
        self.chunks: list[bytes] = []
        self.has_headers = False
        self._content: bytes | None = json.dumps(body | {"stream": True} | more).encode()
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
        asgi = {"asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "headers": headers}
        self.task = asyncio.create_task(app(scope | asgi, self._receive, self._send))

    async def _receive(self) -> Message:
        if self._content is None:
            await asyncio.Event().wait()
        content, self._content = self._content or b"", None
        return {"type": "http.request", "body": content, "more_body": False}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_headers = True
        elif message["body"]:
            self.chunks.append(message["body"])

    async def breaks(self, count: int, keep_alive: bytes) -> None:
        """Wait for so many breaks of a silence."""
        await until(lambda: self.chunks[-count:] == [keep_alive] * count)


@pytest.fixture
def quiet(encode: Callable[[str], list[int]]) -> KeepingMesh:
    """Waits before its third token."""
    return KeepingMesh([*encode(SAID), 2], hang_at=2)


@pytest.fixture
def app(quiet: KeepingMesh, text: ChatText) -> Starlette:
    return keeping_app(quiet, text, stream_keep_alive_s=SILENCE_S)


def keep_alive_of(api: str) -> bytes:
    return b'event: ping\ndata: {"type":"ping"}\n\n' if api == "messages" else b":\n\n"


def text_of(api: str, events: Events) -> str:
    if api == "responses":
        return "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta")
    if api == "messages":
        return "".join(each["delta"]["text"] for each in events if each["type"] == "content_block_delta")
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(choice["text"] if api == "completions" else choice["delta"].get("content", "") for choice in choices)


@pytest.mark.parametrize("api", APIS)
async def test_every_reader_reads_on(app: Starlette, quiet: KeepingMesh, api: str) -> None:
    """Those included that know little of comments, in chunks and where the network cuts each in two."""
    sent = Sent(app, api)
    await sent.breaks(3, keep_alive_of(api))
    quiet.go.set()
    await asyncio.wait_for(sent.task, 30)
    for reader in (by_line, by_blank_line, by_chunk):
        assert text_of(api, reader(sent.chunks, named=api in NAMED)) == SAID, reader
    if api not in NAMED:
        halves = [half for chunk in sent.chunks for half in (chunk[:12], chunk[12:]) if half]
        for pieces in (sent.chunks, halves):
            assert text_of(api, as_vllm_bench(pieces)) == SAID


async def test_positions_are_those_of_the_events(app: Starlette, quiet: KeepingMesh) -> None:
    """A comment has none; the next event has the same as in a stream without a silence."""
    sent = Sent(app, "chat", stream_options={"resumable": True})
    await sent.breaks(1, b":\n\n")
    quiet.go.set()
    await asyncio.wait_for(sent.task, 30)
    events = b"".join(sent.chunks).split(b"\n\n")[:-1]
    assert all(event == b":" or event == b"data: [DONE]" or event.startswith(b"id: ") for event in events)
    last = [event for event in events if event.startswith(b"id: ")][-1].split(b"\n")[0].decode()
    assert StreamPosition.parse(last.removeprefix("id: ")).choices[0].has_end


@pytest.mark.parametrize("at_once", [False, True])
async def test_nothing_comes_before_the_headers(
    make_app: Callable[..., Starlette], mesh: FakeMesh, at_once: bool
) -> None:
    """While a request waits for workers it may still become an error with a status of its own."""
    mesh.hang_at, mesh.announces = 0, at_once
    sent = Sent(make_app(stream_keep_alive_s=SILENCE_S), "chat")
    await asyncio.wait_for(mesh.hung.get(), 30)
    if at_once:
        await sent.breaks(2, b":\n\n")
    else:
        await asyncio.sleep(5 * SILENCE_S)
        assert not sent.has_headers
        assert not sent.chunks
    sent.task.cancel()
    await asyncio.wait([sent.task])


async def test_a_server_may_send_none(make_app: Callable[..., Starlette], mesh: FakeMesh) -> None:
    mesh.hang_at = 2
    sent = Sent(make_app(stream_keep_alive_s=0.0), "chat")
    await asyncio.wait_for(mesh.hung.get(), 30)
    await asyncio.sleep(0.1)
    assert b":\n\n" not in sent.chunks
    sent.task.cancel()
    await asyncio.wait([sent.task])


class FakeLoop:
    """Time that a test lets pass."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers: list[asyncio.TimerHandle] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self.call_at(self.now_s + seconds, call)

    def call_at(self, when_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        self.timers.append(asyncio.TimerHandle(when_s, call, (), asyncio.get_running_loop()))
        return self.timers[-1]

    async def passes(self, seconds: float) -> None:
        self.now_s += seconds
        due = [each for each in self.timers if each.when() <= self.now_s and not each.cancelled()]
        self.timers = [each for each in self.timers if each.when() > self.now_s]
        for each in due:
            each._run()
        for _ in range(5):
            await asyncio.sleep(0)


async def test_only_silence_is_broken() -> None:
    """A stream with an event in every 15 seconds has no comment; one without has one every 15 seconds."""
    chunks: list[bytes] = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            chunks.append(message["body"])

    loop = FakeLoop()
    stream = EventStream(send, None, b":\n\n", 15.0)
    stream._loop = loop  # type: ignore[assignment]
    await stream.start({})
    for _ in range(10):
        await loop.passes(10.0)
        await stream.following([b"data: 1\n\n"])
    assert chunks == [b"data: 1\n\n"] * 10
    chunks.clear()
    for _ in range(61):
        await loop.passes(1.0)
    assert chunks == [b":\n\n"] * 4
    await stream.following([b"data: 2\n\n"])
    await stream.end(b"data: [DONE]\n\n")
    await loop.passes(60.0)
    assert chunks[4:] == [b":\n\ndata: 2\n\n", b"data: [DONE]\n\n"]


async def test_the_vendors_clients_read_on(app: Starlette, quiet: KeepingMesh) -> None:
    async with listening(app, HttpLimits()) as server:
        url = f"http://127.0.0.1:{server.port}"

        async def let_go() -> None:
            await asyncio.wait_for(quiet.hung.get(), 30)
            await asyncio.sleep(4 * SILENCE_S)
            quiet.go.set()

        going = asyncio.create_task(let_go())
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            chunks = await client.chat.completions.create(**CHAT, stream=True)
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in chunks]) == SAID
        await going
        quiet.go.clear()
        going = asyncio.create_task(let_go())
        async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as other:
            messages: Any = CHAT["messages"]
            async with other.messages.stream(model=MODEL, max_tokens=200, messages=messages) as stream:
                assert "".join([piece async for piece in stream.text_stream]) == SAID
        await going
