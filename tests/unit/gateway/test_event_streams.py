"""The bytes of event streams, for readers that know little of server-sent events, also where a stream is silent for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import anthropic
import openai
import pytest
from starlette.applications import Starlette
from starlette.types import Message

from spotwise.gateway.generate.stream_position import EventStream, StreamPosition
from spotwise.http.limits import HttpLimits
from spotwise.text.chat_text import ChatText
from tests.clients.naive_readers import Events, Reader, as_vllm_bench, by_blank_line, by_chunk, by_line, post
from tests.contracts.waiting import until
from tests.unit.gateway.apps import Encode, Json, MakeApp
from tests.unit.gateway.fake_mesh import CHAT, CHATS, COMPLETION, COMPLETIONS, MODEL, RESPONSE, FakeMesh
from tests.unit.gateway.keeping_mesh import Client, KeepingMesh, keeping_app
from tests.unit.gateway.listening import listening

#: Ends of lines for Python's `splitlines`, and a character of four bytes.
SAID = "One\nTwo\r\n\nThree\x85Four\u2028Five\u2029Six\x0b\x0c\x1c\x1e data: id: 😀"
USAGE = {"stream_options": {"include_usage": True}}
APIS: dict[str, tuple[str, Json]] = {
    "chat": (CHATS, CHAT | USAGE),
    "chat of two with scores": (CHATS, CHAT | USAGE | {"n": 2, "logprobs": True, "top_logprobs": 2}),
    "completions": (COMPLETIONS, COMPLETION | USAGE | {"max_tokens": 200}),
    "responses": ("/v1/responses", RESPONSE),
    "messages": ("/v1/messages", CHAT | {"max_tokens": 200}),
}
NAMED = ("responses", "messages")


@pytest.fixture
def app(text: ChatText, encode: Encode) -> Starlette:
    return keeping_app(KeepingMesh([*encode(SAID), 2]), text)


async def sent(app: Starlette, api: str, *headers: str, **more: Any) -> tuple[list[bytes], list[bytes]]:
    """The chunks of a stream, and the pieces that the network gave of it."""
    path, body = APIS[api]
    async with listening(app, HttpLimits()) as server:
        reading = asyncio.to_thread(post, "127.0.0.1", server.port, path, body | {"stream": True} | more, headers)
        head, chunks, pieces = await reading
    assert head.startswith("HTTP/1.1 200"), chunks
    assert "content-type: text/event-stream" in head.lower()
    return chunks, pieces


def text_of(api: str, events: Events) -> str:
    if api == "responses":
        return "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta")
    if api == "messages":
        return "".join(each["delta"]["text"] for each in events if each["type"] == "content_block_delta")
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == 0]
    return "".join(choice["text"] if api == "completions" else choice["delta"].get("content", "") for choice in choices)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("reader", [by_line, by_blank_line, by_chunk])
async def test_a_naive_reader_reads_it(app: Starlette, reader: Callable[..., Events], api: str) -> None:
    """Each line begins with `data: `, each event is one chunk, and nothing else comes but the names that two protocols have."""
    chunks, _ = await sent(app, api)
    assert text_of(api, reader(chunks, named=api in NAMED)) == SAID


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("headers", "more"),
    [(("X-Resume: true",), {}), ((), {"stream_options": {"resumable": True}})],
    ids=["by header", "by body"],
)
async def test_positions_come_to_who_asks(app: Starlette, api: str, headers: tuple[str, ...], more: Json) -> None:
    """Every event but `[DONE]` begins with an `id:` line then; the rest is as it is without."""
    with_ids, _ = await sent(app, api, *headers, **more)
    events = b"".join(with_ids).decode().split("\n\n")[:-1]
    ids = [event.partition("\n")[0] for event in events if event != "data: [DONE]"]
    assert ids
    assert all(each.startswith("id: ") for each in ids)
    bare = [part.partition("\n")[2] if part.startswith("id: ") else part for part in events]
    reader: Reader = partial(by_blank_line, named=api in NAMED)
    assert text_of(api, reader(["".join(f"{part}\n\n" for part in bare).encode()])) == SAID


async def test_a_last_event_id_asks_for_further_ones(app: Starlette) -> None:
    """A stream that goes on from an event has the positions of the rest."""
    chunks, _ = await sent(app, "chat", "X-Resume: true")
    had = chunks[1].decode().partition("\n")[0].removeprefix("id: ")
    rest, _ = await sent(app, "chat", f"Last-Event-ID: {had}")
    *events, done = b"".join(rest).decode().split("\n\n")[:-1]
    assert done == "data: [DONE]"
    assert all(event.startswith("id: ") for event in events)
    whole = [event.partition("\n")[2] for event in b"".join(chunks[:2]).decode().split("\n\n")[:-1]]
    whole += [event.partition("\n")[2] for event in events]
    assert text_of("chat", by_blank_line(["".join(f"{event}\n\n" for event in whole).encode()])) == SAID


@pytest.mark.parametrize("header", ["X-Spotwise-Resumable: true", "Idempotency-Key: k", "X-Resume: false"])
async def test_nothing_else_asks_for_positions(app: Starlette, header: str) -> None:
    """What goes on without its client is data alone, unless its client says that it reads positions."""
    chunks, _ = await sent(app, "chat", header)
    assert text_of("chat", by_chunk(chunks)) == SAID


SILENCE_S = 0.05


def posted(app: Starlette, api: str, **more: Any) -> Client:
    """A connection within the process, which asks for no positions."""
    path, body = APIS[api]
    return Client(app, "POST", path, body | {"stream": True} | more, {"x-resume": "false"})


async def is_broken(client: Client, count: int, keep_alive: bytes) -> None:
    """Wait for so many breaks of a silence."""
    await until(lambda: client.chunks[-count:] == [keep_alive] * count)


@pytest.fixture
def quiet(encode: Encode) -> KeepingMesh:
    """Waits before its third token."""
    return KeepingMesh([*encode(SAID), 2], hang_at=2)


@pytest.fixture
def silent(quiet: KeepingMesh, text: ChatText) -> Starlette:
    return keeping_app(quiet, text, stream_keep_alive_s=SILENCE_S)


def keep_alive_of(api: str) -> bytes:
    return b'event: ping\ndata: {"type":"ping"}\n\n' if api == "messages" else b":\n\n"


@pytest.mark.parametrize("api", APIS)
async def test_every_reader_reads_on(silent: Starlette, quiet: KeepingMesh, api: str) -> None:
    """Those included that know little of comments, in chunks and where the network cuts each in two."""
    sent = posted(silent, api)
    await is_broken(sent, 3, keep_alive_of(api))
    quiet.go.set()
    await asyncio.wait_for(sent.task, 30)
    for reader in (by_line, by_blank_line, by_chunk):
        assert text_of(api, reader(sent.chunks, named=api in NAMED)) == SAID, reader
    if api not in NAMED:
        halves = [half for chunk in sent.chunks for half in (chunk[:12], chunk[12:]) if half]
        for pieces in (sent.chunks, halves):
            assert text_of(api, as_vllm_bench(pieces)) == SAID


async def test_positions_are_those_of_the_events(silent: Starlette, quiet: KeepingMesh) -> None:
    """A comment has none; the next event has the same as in a stream without a silence."""
    sent = posted(silent, "chat", stream_options={"resumable": True})
    await is_broken(sent, 1, b":\n\n")
    quiet.go.set()
    await asyncio.wait_for(sent.task, 30)
    events = b"".join(sent.chunks).split(b"\n\n")[:-1]
    assert all(event == b":" or event == b"data: [DONE]" or event.startswith(b"id: ") for event in events)
    last = [event for event in events if event.startswith(b"id: ")][-1].split(b"\n")[0].decode()
    assert StreamPosition.parse(last.removeprefix("id: ")).choices[0].has_end


@pytest.mark.parametrize("at_once", [False, True])
async def test_nothing_comes_before_the_headers(make_app: MakeApp, mesh: FakeMesh, at_once: bool) -> None:
    """While a request waits for workers it may still become an error with a status of its own."""
    mesh.hang_at, mesh.announces = 0, at_once
    sent = posted(make_app(stream_keep_alive_s=SILENCE_S), "chat")
    await asyncio.wait_for(mesh.hung.get(), 30)
    if at_once:
        await is_broken(sent, 2, b":\n\n")
    else:
        await asyncio.sleep(5 * SILENCE_S)
        assert sent._sent.empty()
    sent.task.cancel()
    await asyncio.wait([sent.task])


async def test_a_server_may_send_none(make_app: MakeApp, mesh: FakeMesh) -> None:
    mesh.hang_at = 2
    sent = posted(make_app(stream_keep_alive_s=0.0), "chat")
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


async def test_the_vendors_clients_read_on(silent: Starlette, quiet: KeepingMesh) -> None:
    async with listening(silent, HttpLimits()) as server:
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
