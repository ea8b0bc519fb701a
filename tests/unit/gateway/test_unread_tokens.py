"""Tokens that wait for their stream come together, and what a client does not read is not generated beyond a bound."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from spotwise.core.requests.request import FinishReason, StopCriteria
from spotwise.core.requests.sampling import SampledToken, SamplingParams
from spotwise.gateway.generate.generation import GeneratedTokens, SequenceSpec
from spotwise.gateway.generate.token_stream import TokenStream
from spotwise.http.errors import GenerationError
from spotwise.text.chat_text import ChatText
from tests.contracts.waiting import until
from tests.unit.gateway.fake_mesh import CHAT, CHATS
from tests.unit.gateway.gateways import gateways_in_memory
from tests.unit.gateway.keeping_mesh import Client


@pytest.fixture
def stream() -> TokenStream:
    return TokenStream("r", SequenceSpec((1,), SamplingParams(), StopCriteria(8)), 0.0)


def tokens(*ids: int, reason: FinishReason | None = None, cached: int = 0) -> GeneratedTokens:
    return GeneratedTokens(tuple(SampledToken("r", token_id) for token_id in ids), reason, cached)


async def test_tokens_that_are_here_come_together(stream: TokenStream) -> None:
    """Queued tokens are merged in order with their end and cached count; an error is returned by itself after them."""
    for item in (tokens(), tokens(1, cached=16), tokens(2), tokens(3, reason=FinishReason.LENGTH)):
        stream.put(item)
    assert await stream.take() == tokens(1, 2, 3, reason=FinishReason.LENGTH, cached=16)
    error = GenerationError(500, "x", "lost")
    stream.put(tokens(4))
    stream.put(error)
    assert await stream.take() == tokens(4)
    assert await stream.take() is error


async def test_what_the_prefill_took_comes_with_the_first_tokens(stream: TokenStream) -> None:
    """The prefill's duration is kept when token batches are merged, whatever their order."""
    for item in (tokens(), replace(tokens(1), prefill_s=0.5), tokens(2)):
        stream.put(item)
    assert await stream.take() == replace(tokens(1, 2), prefill_s=0.5)


async def test_a_waiting_reader_gets_each_as_it_comes(stream: TokenStream) -> None:
    for number in (1, 2):
        taking = asyncio.create_task(stream.take())
        await asyncio.sleep(0)
        stream.put(tokens(number))
        assert await taking == tokens(number)


@pytest.mark.parametrize("n", [1, 2, 4])
async def test_a_client_that_does_not_read_is_paused(text: ChatText, model_dir: Path, n: int) -> None:
    """All its choices are parked soon after it stops to read, and go on to their ends when it reads again."""
    async with gateways_in_memory(text, model_dir) as (mesh, app, _):
        generation = mesh.generations[0]
        generation._max_unread_tokens = 8
        body = CHAT | {"stream": True, "n": n, "max_tokens": 100, "ignore_eos": True}
        client = Client(app, "POST", CHATS, body, most_unread=4 * n)
        await until(lambda: len(mesh.worker.drawn) == n and len(generation._streams) == n)
        await until(lambda: all(stream.is_parked for stream in generation._streams.values()))
        assert all(len(drawn) < 100 for drawn in mesh.worker.drawn.values())
        choices = [choice for event in await client.events() for choice in (event.data or {}).get("choices", ())]
    assert sum(choice["finish_reason"] == "length" for choice in choices) == n
