"""One completion, timed, against an answer made here."""

from __future__ import annotations

from typing import Any

import httpx
import orjson
import pytest

from spotwise.cli.bench.completion import Answer, run_completion, stream_completion
from spotwise.cli.client.gateway_client import GatewayClient
from spotwise.cli.errors import CommandError

TOKEN = {"choices": [{"text": "a"}], "usage": None}


def stream_of(*events: dict[str, Any]) -> GatewayClient:
    """Return a client whose server streams these events, after a comment."""
    body = (
        b": hello\n\n" + b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    )
    answer = httpx.Response(200, content=body, headers={"content-type": "text/event-stream"})
    return GatewayClient("http://server", transport=httpx.MockTransport(lambda _: answer))


def usage(tokens: int) -> dict[str, object]:
    return {"choices": [], "usage": {"completion_tokens": tokens}}


async def test_chunks_are_timed_and_tokens_counted_by_usage() -> None:
    answer = await stream_completion(stream_of(TOKEN, TOKEN, usage(3)), "m", [1], 3)
    assert len(answer.arrivals_s) == 2
    assert answer.sent_s <= answer.arrivals_s[0] <= answer.arrivals_s[1]
    assert answer.output_tokens == 3


async def test_a_usage_may_come_with_the_last_text() -> None:
    """As llama.cpp's; an event may also be without any."""
    last = {"choices": [{"text": ""}], "usage": {"completion_tokens": 2}}
    assert (await stream_completion(stream_of({"choices": [{"text": "a"}]}, last), "m", [1], 2)).output_tokens == 2


async def test_fewer_tokens_than_requested_are_an_error() -> None:
    with pytest.raises(CommandError, match="brought 2 tokens where 3"):
        await stream_completion(stream_of(TOKEN, TOKEN, usage(2)), "m", [1], 3)
    with pytest.raises(CommandError, match="brought 0 tokens where 3"):
        await stream_completion(stream_of(), "m", [1], 3)


async def test_an_answer_in_one_piece_is_known_by_its_id() -> None:
    answer = httpx.Response(200, json={"id": "cmpl-7", "usage": {"completion_tokens": 3}})
    client = GatewayClient("http://server", transport=httpx.MockTransport(lambda _: answer))
    assert await run_completion(client, "m", [1], 3) == "cmpl-7"
    with pytest.raises(CommandError, match="brought 3 tokens where 4"):
        await run_completion(client, "m", [1], 4)


def test_times_of_an_answer() -> None:
    """First chunk, mean of the further tokens, gaps; one token has no gap and no time of its own."""
    answer = Answer(1.0, (1.5, 2.5, 4.5), 4)
    assert (answer.ttft_s, answer.tpot_s, answer.itl_s) == (0.5, 1.0, [1.0, 2.0])
    single = Answer(1.0, (1.5,), 1)
    assert (single.tpot_s, single.itl_s) == (0.0, [])
