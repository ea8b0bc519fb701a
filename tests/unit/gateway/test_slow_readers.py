"""What a client does not read is not generated beyond a bound, however many choices it asked for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from spotwise.mesh.ports.ports import MessageBus
from spotwise.text.chat_text import ChatText
from tests.contracts.waiting import until
from tests.fakes.memory import MemoryBroker, MemoryBus, MemoryStore
from tests.unit.gateway.fake_mesh import CHAT
from tests.unit.gateway.gateways import gateways_over

_PATH = "/v1/chat/completions"
_UNREAD = 8


@pytest.mark.parametrize("n", [1, 2, 4])
async def test_a_client_that_does_not_read_is_paused(text: ChatText, model_dir: Path, n: int) -> None:
    """All its choices are parked soon after it stops to read, and go on to their ends when it reads again."""
    broker = MemoryBroker()

    async def new_bus() -> MessageBus:
        return MemoryBus(broker)

    async with gateways_over(new_bus, MemoryStore(), text, model_dir) as mesh:
        app = await mesh.start("g0")
        generation = mesh.generations[0]
        generation._max_unread_tokens = _UNREAD
        reads = asyncio.Event()
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)
            if len(sent) > 4 * n:
                await reads.wait()

        body = json.dumps(CHAT | {"stream": True, "n": n, "max_tokens": 100, "ignore_eos": True}).encode()
        incoming: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if incoming:
                return incoming.pop()
            await asyncio.Event().wait()
            raise AssertionError

        headers = [(b"host", b"g"), (b"content-type", b"application/json")]
        scope: dict[str, Any] = {"type": "http", "method": "POST", "path": _PATH, "raw_path": _PATH.encode()}
        scope |= {"query_string": b"", "headers": headers, "http_version": "1.1"}
        scope["asgi"] = {"version": "3.0", "spec_version": "2.3"}
        serving = asyncio.create_task(app(scope, receive, send))
        try:
            await until(lambda: len(mesh.worker.drawn) == n and len(generation._streams) == n)
            await until(lambda: all(stream.is_parked for stream in generation._streams.values()))
            assert all(len(drawn) < 100 for drawn in mesh.worker.drawn.values())
            reads.set()
            await asyncio.wait_for(serving, 20)
        finally:
            serving.cancel()
        ends = [json.loads(line[6:]) for line in _lines(sent) if line.startswith("data: {")]
        assert sum(choice["finish_reason"] == "length" for end in ends for choice in end["choices"]) == n


def _lines(sent: list[Message]) -> list[str]:
    return b"".join(message.get("body", b"") for message in sent).decode().splitlines()
