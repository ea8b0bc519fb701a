"""The bytes of event streams, on a real socket: what readers that know little of server-sent events need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from starlette.applications import Starlette

from spotwise.http.limits import HttpLimits
from spotwise.text.chat_text import ChatText
from tests.clients.naive_readers import Events, Reader, as_vllm_bench, by_blank_line, by_chunk, by_line, post
from tests.unit.gateway.fake_mesh import CHAT, COMPLETION, RESPONSE
from tests.unit.gateway.keeping_mesh import KeepingMesh, keeping_app
from tests.unit.gateway.listening import listening

#: Ends of lines for Python's `splitlines`, and a character of four bytes.
SAID = "One\nTwo\r\n\nThree\x85Four\u2028Five\u2029Six\x0b\x0c\x1c\x1e data: id: 😀"
USAGE = {"stream_options": {"include_usage": True}}
MESSAGE: dict[str, Any] = {**CHAT, "max_tokens": 200}
APIS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT | USAGE),
    "chat of two with scores": ("/v1/chat/completions", CHAT | USAGE | {"n": 2, "logprobs": True, "top_logprobs": 2}),
    "completions": ("/v1/completions", COMPLETION | USAGE | {"max_tokens": 200}),
    "responses": ("/v1/responses", RESPONSE),
    "messages": ("/v1/messages", MESSAGE),
}
NAMED = ("responses", "messages")


@pytest.fixture
def app(text: ChatText, encode: Callable[[str], list[int]]) -> Starlette:
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


@pytest.mark.parametrize("api", [api for api in APIS if api not in NAMED])
async def test_vllms_benchmark_reads_it(app: Starlette, api: str) -> None:
    chunks, pieces = await sent(app, api)
    assert text_of(api, as_vllm_bench(pieces)) == SAID
    halves = [half for chunk in chunks for half in (chunk[:9], chunk[9:]) if half]
    assert text_of(api, as_vllm_bench(halves)) == SAID


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("headers", "more"),
    [
        (("X-Resume: true",), {}),
        ((), {"stream_options": {"resumable": True}}),
    ],
    ids=["by header", "by body"],
)
async def test_positions_come_to_who_asks(
    app: Starlette, api: str, headers: tuple[str, ...], more: dict[str, Any]
) -> None:
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
