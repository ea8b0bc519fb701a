"""OpenAI's own Python client against the app: what it parses is what we mean."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable

import httpx2
import openai
import pytest
from openai import AsyncOpenAI
from starlette.applications import Starlette

from spotwise.gateway.access.auth import ApiKey
from tests.unit.gateway.fake_mesh import CHAT, COMPLETION, EMBEDDING, EMBEDDINGS, MODEL, FakeMesh, embedding_of


@pytest.fixture
async def api(make_app: Callable[..., Starlette]) -> AsyncIterator[AsyncOpenAI]:
    app = make_app(api_keys=(ApiKey("key"),))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://gateway") as http:
        yield AsyncOpenAI(api_key="key", base_url="http://gateway/v1", http_client=http, max_retries=0)


async def test_models(api: AsyncOpenAI) -> None:
    assert [model.id async for model in api.models.list()] == [MODEL]
    assert (await api.models.retrieve(MODEL)).owned_by == "spotwise"


async def test_chat(api: AsyncOpenAI, mesh: FakeMesh) -> None:
    answer = await api.chat.completions.create(**CHAT, logprobs=True, top_logprobs=1)
    assert answer.choices[0].message.content == "Hello, world!"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.content is not None
    assert len(answer.choices[0].logprobs.content) == len(mesh.reply)
    assert answer.usage is not None and answer.usage.completion_tokens == len(mesh.reply)


async def test_chat_stream(api: AsyncOpenAI, mesh: FakeMesh) -> None:
    """Deltas join to the text; the usage comes last."""
    text, usage, reasons = "", None, []
    stream = await api.chat.completions.create(**CHAT, n=2, stream=True, stream_options={"include_usage": True})
    async for chunk in stream:
        for choice in chunk.choices:
            if choice.index == 1:
                text += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
        usage = chunk.usage
    assert (text, reasons) == ("Hello, world!", ["stop", "stop"])
    assert usage is not None and usage.completion_tokens == 2 * len(mesh.reply)


async def test_chat_stream_helper(api: AsyncOpenAI) -> None:
    async with api.chat.completions.stream(**CHAT) as stream:
        completion = await stream.get_final_completion()
    assert completion.choices[0].message.content == "Hello, world!"


async def test_completions(api: AsyncOpenAI) -> None:
    answer = await api.completions.create(**COMPLETION, logprobs=1, echo=True)
    assert answer.choices[0].text == "HiHello, world!"
    assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.text_offset is not None
    pieces = [chunk.choices[0].text async for chunk in await api.completions.create(**COMPLETION, stream=True)]
    assert "".join(pieces) == "Hello, world!"


async def test_embeddings(make_app: Callable[..., Starlette]) -> None:
    """OpenAI's client asks for base64 by itself, and gives numbers; of either format it gives the same."""
    app = make_app(embeddings=EMBEDDINGS)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://gateway") as http:
        api = AsyncOpenAI(api_key="key", base_url="http://gateway/v1", http_client=http, max_retries=0)
        answer = await api.embeddings.create(**EMBEDDING | {"input": [[1, 2], [7]]}, extra_body={"normalize": False})
        assert [(each.index, each.embedding) for each in answer.data] == [
            (index, pytest.approx(embedding_of(ids), rel=1e-6)) for index, ids in enumerate(([1, 2], [7]))
        ]
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (3, 3)
        assert (answer.model, answer.object) == (MODEL, "list")
        as_base64 = await api.embeddings.create(**EMBEDDING, dimensions=3)
        as_numbers = await api.embeddings.create(**EMBEDDING, dimensions=3, encoding_format="float")
        assert as_base64.data[0].embedding == pytest.approx(as_numbers.data[0].embedding, rel=1e-6)
        assert math.hypot(*as_numbers.data[0].embedding) == pytest.approx(1, rel=1e-6)


async def test_errors_are_the_clients_own_exceptions(api: AsyncOpenAI, mesh: FakeMesh) -> None:
    with pytest.raises(openai.NotFoundError) as not_found:
        await api.chat.completions.create(**CHAT | {"model": "other"})
    assert (not_found.value.code, not_found.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as bad:
        await api.chat.completions.create(**CHAT, temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.AuthenticationError):
        await api.with_options(api_key="wrong").models.list()
    mesh.fail_at = 2
    with pytest.raises(openai.InternalServerError):
        await api.completions.create(**COMPLETION)
    stream = await api.completions.create(**COMPLETION, stream=True)
    with pytest.raises(openai.APIError, match="All workers are full"):
        async for _ in stream:
            pass
