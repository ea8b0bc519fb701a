"""What vLLM's clients may ask of chats and completions: usage in every chunk, and tokens by their ids."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from tests.unit.gateway.fake_mesh import CHAT, COMPLETION, FakeMesh
from tests.unit.gateway.test_http_streams import stream

USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
PATHS = [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)]


@pytest.mark.parametrize(("path", "body"), PATHS)
@pytest.mark.parametrize("more", [{}, {"n": 2}, {"stop": ["wor"]}, {"logprobs": 1}, {"return_token_ids": True}])
async def test_each_chunk_has_the_usage_so_far(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], more: dict[str, Any]
) -> None:
    """Of its own choice, growing; the last one, without a choice, counts all."""
    if path.endswith("chat/completions") and "logprobs" in more:
        more = {"logprobs": True}
    *chunks, last = await stream(client, path, body | USAGE | more)
    counted: dict[int, list[int]] = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        usage = chunk["usage"]
        assert usage["prompt_tokens"] == last["usage"]["prompt_tokens"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        counted.setdefault(choice["index"], []).append(usage["completion_tokens"])
    assert all(counts == sorted(counts) for counts in counted.values())
    assert sum(counts[-1] for counts in counted.values()) == last["usage"]["completion_tokens"]
    assert last["choices"] == []


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_without_the_final_usage_there_is_none(
    client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    """As vLLM has it."""
    chunks = await stream(client, path, body | {"stream_options": {"continuous_usage_stats": True}})
    assert not any("usage" in chunk for chunk in chunks)


async def test_log_probabilities_name_tokens_by_their_ids(client: httpx.AsyncClient, mesh: FakeMesh) -> None:
    """In completions and chats, whole and streamed, the alternatives included; the text stays text."""
    ids = [f"token_id:{token_id}" for token_id in mesh.reply]
    asked = {"return_tokens_as_token_ids": True}
    answer = (await client.post("/v1/completions", json=COMPLETION | asked | {"logprobs": 2})).json()
    (choice,) = answer["choices"]
    assert choice["logprobs"]["tokens"] == ids
    assert all(re.fullmatch(r"token_id:\d+", name) for top in choice["logprobs"]["top_logprobs"] for name in top)
    assert "Hello" in choice["text"]
    body = CHAT | asked | {"logprobs": True, "top_logprobs": 2}
    content = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["logprobs"]["content"]
    chunks = await stream(client, "/v1/chat/completions", body)
    streamed = [
        token
        for chunk in chunks
        for choice in chunk["choices"]
        for token in (choice["logprobs"] or {}).get("content", ())
    ]
    for tokens in (content, streamed):
        assert [token["token"] for token in tokens] == ids
        assert all(each["token"].startswith("token_id:3") for token in tokens for each in token["top_logprobs"])
    spelled = (await client.post("/v1/completions", json=COMPLETION | {"logprobs": 0})).json()["choices"][0]
    assert "token_id" not in str(spelled["logprobs"]["tokens"])
