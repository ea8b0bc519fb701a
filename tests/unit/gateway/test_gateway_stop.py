"""A gateway that is stopped while it has not answered yet: its clients get the API's own error, and may send again."""

from __future__ import annotations

import asyncio
import json

import pytest
from prometheus_client import CollectorRegistry

from spotwise.http.limits import HttpLimits
from spotwise.text.chat_text import ChatText
from tests.unit.gateway.apps import Json, MakeApp
from tests.unit.gateway.fake_mesh import (
    CHAT,
    CHATS,
    COMPLETION,
    COMPLETIONS,
    EMBEDDING,
    EMBEDDINGS,
    MESSAGE,
    RESPONSE,
    FakeMesh,
)
from tests.unit.gateway.keeping_mesh import KeepingMesh, keeping_app
from tests.unit.gateway.listening import listening, post

#: Requests that the mesh leaves without a token.
WAITING: list[tuple[str, Json]] = [
    (CHATS, CHAT),
    (CHATS, CHAT | {"stream": True}),
    (COMPLETIONS, COMPLETION | {"prompt": ["Hi", "Ho"]}),
    ("/v1/responses", RESPONSE),
    ("/v1/messages", MESSAGE),
    ("/v1/messages", MESSAGE | {"stream": True}),
    ("/v1/embeddings", EMBEDDING),
]
#: Bodies that are still on their way.
UPLOADS = [CHATS, "/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/v1/embeddings"]


async def test_what_is_not_answered_is_told(make_app: MakeApp, mesh: FakeMesh) -> None:
    """In OpenAI's form or Anthropic's, a 503 with `Retry-After`; nothing is left in the mesh."""
    mesh.hang_at = 0
    async with listening(make_app(embeddings=EMBEDDINGS), HttpLimits()) as server:
        clients = []
        for path, body in WAITING:
            clients.append((path, await server.connect()))
            await clients[-1][1].send(post(path, json.dumps(body).encode()))
        for path in UPLOADS:
            clients.append((path, await server.connect()))
            await clients[-1][1].send(post(path, b"{" * 100)[:-50])
        for _ in range(len(WAITING) + 1):
            await asyncio.wait_for(mesh.hung.get(), 30)
        server.server.should_exit = True
        for path, client in clients:
            head, content = await client.answer()
            error = json.loads(content)
            assert head.startswith(b"http/1.1 503"), path
            assert b"\r\nretry-after: 1\r\n" in head
            assert b"\r\nx-request-id: " in head
            assert error["error"]["code"] == "gateway_stopping"
            assert (error.get("type") == "error") == path.startswith("/v1/messages")
            assert await client.rest() == b""
    assert not mesh.open


async def test_a_stream_that_has_begun_is_cut(make_app: MakeApp, mesh: FakeMesh, registry: CollectorRegistry) -> None:
    """Without an end of its body, so that no client takes the half for the whole."""
    mesh.hang_at = 2
    async with listening(make_app(), HttpLimits()) as server:
        client = await server.connect()
        await client.send(post(CHATS, json.dumps(CHAT | {"stream": True}).encode()))
        await asyncio.wait_for(mesh.hung.get(), 30)
        server.server.should_exit = True
        rest = await client.rest()
    assert rest.startswith(b"HTTP/1.1 200")
    assert not rest.endswith(b"0\r\n\r\n")
    assert not mesh.open


@pytest.mark.parametrize("path", [CHATS, "/v1/messages"])
async def test_what_ends_in_time_is_answered(text: ChatText, mesh: FakeMesh, path: str) -> None:
    keeping = KeepingMesh(mesh.reply, hang_at=0)
    async with listening(keeping_app(keeping, text), HttpLimits()) as server:
        client = await server.connect()
        await client.send(post(path, json.dumps(MESSAGE).encode()))
        await asyncio.wait_for(keeping.hung.get(), 30)
        server.server.should_exit = True
        await asyncio.sleep(0.2)
        keeping.go.set()
        head, _ = await client.answer()
    assert head.startswith(b"http/1.1 200")


async def test_a_second_signal_ends_the_grace(make_app: MakeApp, mesh: FakeMesh) -> None:
    """However long answers under way have to end, they are told at once then."""
    mesh.hang_at = 0
    async with listening(make_app(), HttpLimits()) as server:
        server.server.config.timeout_graceful_shutdown = 3600
        client = await server.connect()
        await client.send(post(CHATS, json.dumps(CHAT).encode()))
        await asyncio.wait_for(mesh.hung.get(), 30)
        server.server.should_exit = True
        await asyncio.sleep(0.3)
        assert mesh.open
        server.server.hurry()
        head, content = await client.answer()
    assert head.startswith(b"http/1.1 503")
    assert json.loads(content)["error"]["code"] == "gateway_stopping"
    assert not mesh.open
