"""Anthropic's own Python client against the app: what it parses is what we mean."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic import AsyncAnthropic

from spotwise.gateway.access.auth import ApiKey
from spotwise.text.chat_text import ChatText
from tests.unit.gateway.apps import Encode, Json, MakeApp
from tests.unit.gateway.fake_mesh import MESSAGE, MODEL, FakeMesh

TOOL: Json = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
WRITTEN = '<tool_call>{"name": "weather", "arguments": {"city": "Pécs"}}</tool_call>'
WITH_TOOL: Json = MESSAGE | {"tools": [TOOL], "max_tokens": 512}


@pytest.fixture(scope="module")
def text(roomy_text: ChatText) -> ChatText:
    return roomy_text


@pytest.fixture
async def api(make_app: MakeApp) -> AsyncIterator[AsyncAnthropic]:
    app = make_app(api_keys=(ApiKey("key"),))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://gateway") as http:
        yield AsyncAnthropic(api_key="key", base_url="http://gateway", http_client=http, max_retries=0)


async def test_a_message(api: AsyncAnthropic, mesh: FakeMesh) -> None:
    """Its text, why it ended, and what it took; the cached tokens are none of the input's."""
    mesh.cached = {0: 3}
    message = await api.messages.create(**MESSAGE)
    assert message._request_id == message.id
    assert message.id.startswith("msg_") and (message.type, message.role, message.model) == (
        "message",
        "assistant",
        MODEL,
    )
    assert [(block.type, block.text) for block in message.content if block.type == "text"] == [
        ("text", "Hello, world!")
    ]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (
        len(mesh.spec.prompt_token_ids) - 3,
        3,
        0,
    )
    assert usage.output_tokens == len(mesh.reply)


@pytest.mark.parametrize("batch_tokens", [1, 3, 50])
async def test_a_stream_is_the_same_message(
    api: AsyncAnthropic, mesh: FakeMesh, encode: Encode, batch_tokens: int
) -> None:
    """The client's helper builds from its events what it gets whole, and its order of events is theirs."""
    mesh.reply, mesh.batch_tokens = [*encode(f"So: {WRITTEN}\n{WRITTEN}"), 2], batch_tokens
    mesh.cached = {0: 3}
    whole = await api.messages.create(**WITH_TOOL)
    mesh.specs.clear()
    async with api.messages.stream(**WITH_TOOL) as stream:
        kinds = [event.type async for event in stream]
        streamed = await stream.get_final_message()
    ids = [[block.id for block in each.content if block.type == "tool_use"] for each in (whole, streamed)]
    assert len(set(ids[0])) == len(set(ids[1])) == 2
    assert _blocks(streamed) == _blocks(whole) == [("text", "So:"), *[("weather", {"city": "Pécs"})] * 2]
    assert streamed.stop_reason == whole.stop_reason == "tool_use"
    assert streamed.usage.model_dump(exclude_none=True) == whole.usage.model_dump(exclude_none=True)
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
    assert kinds.count("message_delta") == 1


def _blocks(message: Any) -> list[tuple[str, Any]]:
    return [
        (block.name, block.input) if block.type == "tool_use" else (block.type, block.text) for block in message.content
    ]


async def test_a_call_that_is_asked_for(api: AsyncAnthropic, mesh: FakeMesh, encode: Encode) -> None:
    """A named tool is `tool_use` as well; one at a time is one."""
    mesh.reply = [*encode(WRITTEN + WRITTEN), 2]
    choices: Any = ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "weather"})
    for choice in choices:
        message = await api.messages.create(**WITH_TOOL, tool_choice=choice)
        assert _blocks(message) == [("weather", {"city": "Pécs"})]
        assert message.stop_reason == "tool_use"
        assert all(spec.sampling.grammar for spec in mesh.specs.values())
    mesh.specs.clear()
    message = await api.messages.create(**WITH_TOOL, tool_choice={"type": "none"})
    assert _blocks(message) == [("text", WRITTEN + WRITTEN)] and message.stop_reason == "end_turn"


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ('{"city": "Pé', {}),
        ('{"city": "Pécs", "n": [1, 2', {"city": "Pécs", "n": [1, 2]}),
        ('{"n": 100000000000000000000000', {"n": 10**23}),
        ("[1, 2], ", {}),
        ("5", {}),
    ],
)
async def test_a_call_that_is_cut(
    api: AsyncAnthropic, mesh: FakeMesh, encode: Encode, arguments: str, given: Json
) -> None:
    """By the length: its input is what there is of an object, whole as from the stream."""
    mesh.reply = encode('<tool_call>{"name": "weather", "arguments": ' + arguments)
    asked = WITH_TOOL | {"max_tokens": len(mesh.reply)}
    whole = await api.messages.create(**asked)
    async with api.messages.stream(**asked) as stream:
        streamed = await stream.get_final_message()
    assert _blocks(whole) == _blocks(streamed) == [("weather", given)]
    assert whole.stop_reason == streamed.stop_reason == "max_tokens"


async def test_why_a_message_ends(api: AsyncAnthropic, mesh: FakeMesh) -> None:
    """At its length; at a stop sequence, which is named; both in streams, too."""
    for changes, ends in (
        ({"max_tokens": 2}, ("max_tokens", None)),
        ({"stop_sequences": ["zz", "wor"]}, ("stop_sequence", "wor")),
    ):
        message = await api.messages.create(**MESSAGE | changes)
        assert (message.stop_reason, message.stop_sequence) == ends
        async with api.messages.stream(**MESSAGE | changes) as stream:
            streamed = await stream.get_final_message()
        assert (streamed.stop_reason, streamed.stop_sequence) == ends
        assert _blocks(streamed) == _blocks(message)
        mesh.specs.clear()


async def test_errors_are_the_clients_own_exceptions(api: AsyncAnthropic, mesh: FakeMesh) -> None:
    """By status and kind, with the id of the request; also in a stream that has begun."""
    with pytest.raises(anthropic.NotFoundError) as not_found:
        await api.messages.create(**MESSAGE | {"model": "other"})
    assert not_found.value.type == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="temperature") as bad:
        await api.messages.create(**MESSAGE, extra_body={"temperature": 1.5})
    body: Any = bad.value.body
    assert (body["type"], body["error"]["type"], body["error"]["param"]) == (
        "error",
        "invalid_request_error",
        "temperature",
    )
    assert body["request_id"] == bad.value.request_id == bad.value.response.headers["x-request-id"]
    with pytest.raises(anthropic.AuthenticationError):
        await api.with_options(api_key="wrong").messages.create(**MESSAGE)
    mesh.fail_at = 2
    with pytest.raises(anthropic.InternalServerError, match="full") as full:
        await api.messages.create(**MESSAGE)
    assert (full.value.status_code, full.value.type) == (503, "overloaded_error")
    with pytest.raises(anthropic.APIError, match="full"):
        async with api.messages.stream(**MESSAGE) as stream:
            await stream.get_final_message()
