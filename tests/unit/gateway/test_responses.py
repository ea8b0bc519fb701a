"""`/v1/responses` through OpenAI's own client: what it parses, and what its helpers put together of the events."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import (
    Response,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseReasoningItem,
    ToolChoiceAllowed,
    ToolChoiceAllowedParam,
)
from pydantic import BaseModel

from spotwise.text.chat_text import ChatText
from tests.unit.gateway.apps import Encode, Http, Json, MakeApp, app_over, openai_of
from tests.unit.gateway.fake_mesh import CHAT, MODEL, RESPONSE, FakeMesh
from tests.unit.gateway.test_http_tools import FUNCTION, TOOL, WRITTEN

RESPONSES = "/v1/responses"
HI = RESPONSE
FLAT_TOOL: Any = {"type": "function", "strict": None, **FUNCTION}
THOUGHT = f"I look.</think>So: {WRITTEN}\n{WRITTEN}"


@pytest.fixture(scope="module")
def text(roomy_text: ChatText) -> ChatText:
    return roomy_text


@pytest.fixture
def api(make_app: MakeApp) -> AsyncOpenAI:
    return openai_of(make_app())


@pytest.fixture
def thinking(thinking_text: ChatText, mesh: FakeMesh) -> AsyncOpenAI:
    return openai_of(app_over(mesh, thinking_text))


def valid(response: Response) -> Response:
    """The same, checked against the client's models: the client itself takes what it gets."""
    return Response.model_validate(response.model_dump(exclude={"output": {"__all__": {"parsed_arguments"}}}))


async def test_a_text(api: AsyncOpenAI, mesh: FakeMesh) -> None:
    """The response says what it was asked for, and has one message and exact counts."""
    response = valid(await api.responses.create(**HI, temperature=0.5, metadata={"a": "b"}, user="me", store=False))
    assert (response.id[:5], response.status, response.error) == ("resp_", "completed", None)
    assert response.output_text == "Hello, world!"
    (message,) = response.output
    assert isinstance(message, ResponseOutputMessage)
    assert (message.role, message.status, message.id[:4]) == ("assistant", "completed", "msg_")
    assert (response.temperature, response.top_p, response.metadata) == (0.5, 1.0, {"a": "b"})
    assert (response.user, response.tool_choice, response.truncation) == ("me", "auto", "disabled")
    assert response.model_dump()["store"] is False
    usage, prompt = response.usage, len(mesh.spec.prompt_token_ids)
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (prompt, len(mesh.reply))
    assert usage.total_tokens == prompt + len(mesh.reply)


async def test_it_is_the_chats_prompt(mesh: FakeMesh, make_app: MakeApp) -> None:
    """Instructions, earlier messages, calls and their outputs reach the model as the same chat's messages do."""
    call: Any = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Pécs"}'}
    app = make_app()
    items: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}, {"type": "input_text", "text": "there"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "So:"}]},
        call,
        {**call, "call_id": "call_2"},
        {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "wet"}]},
    ]
    create = openai_of(app).responses.create
    await create(model=MODEL, instructions="Be short.", tools=[FLAT_TOOL], input=items)
    prompt = mesh.spec.prompt_token_ids
    mesh.specs.clear()
    calls = [
        {"id": each, "type": "function", "function": {"name": "weather", "arguments": '{"city": "Pécs"}'}}
        for each in ("call_1", "call_2")
    ]
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hi\nthere"},
        {"role": "assistant", "content": "So:", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "call_2", "content": "wet"},
    ]
    chat: Any = {**CHAT, "messages": messages, "tools": [TOOL]}
    await openai_of(app).chat.completions.create(**chat)
    assert mesh.spec.prompt_token_ids == prompt


async def test_the_models_own_output_goes_back_as_one_turn(
    thinking: AsyncOpenAI, mesh: FakeMesh, encode: Encode
) -> None:
    """Reasoning, text and calls of a response, sent back as they are, are one message of the assistant's."""
    mesh.reply = [*encode(THOUGHT), 2]
    response = await thinking.responses.create(**HI, tools=[FLAT_TOOL])
    kinds = [item.type for item in response.output]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    thought, _, first, second = response.output
    assert isinstance(thought, ResponseReasoningItem) and thought.content is not None
    assert thought.content[0].text.strip() == "I look."
    assert isinstance(first, ResponseFunctionToolCall) and isinstance(second, ResponseFunctionToolCall)
    assert json.loads(first.arguments) == {"city": "Pécs"}
    assert first.call_id != second.call_id
    assert response.output_text == "So:"
    assert response.usage is not None
    assert 0 < response.usage.output_tokens_details.reasoning_tokens < len(mesh.reply)
    mesh.specs.clear()
    outputs = [{"type": "function_call_output", "call_id": each.call_id, "output": "wet"} for each in (first, second)]
    given: Any = [{"role": "user", "content": "Hi"}, *response.output, *outputs]
    again = await thinking.responses.create(model=MODEL, input=given, tools=[FLAT_TOOL])
    assert again.status == "completed"


@pytest.mark.parametrize("batch_tokens", [1, 3, 100])
async def test_events_tell_the_whole_response(
    thinking: AsyncOpenAI, mesh: FakeMesh, encode: Encode, batch_tokens: int
) -> None:
    """Numbered without a gap, each item from its beginning to its end; the last has what the answer has that is no stream."""
    mesh.reply, mesh.batch_tokens = [*encode(THOUGHT), 2], batch_tokens
    async with thinking.responses.stream(**HI, tools=[FLAT_TOOL], include=["message.output_text.logprobs"]) as stream:
        events: list[Any] = [event async for event in stream]
        final = await stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-2:] == ["response.output_item.done", "response.completed"]
    begun = [event.item.id for event in events if event.type == "response.output_item.added"]
    ended = [event.item.id for event in events if event.type == "response.output_item.done"]
    assert begun == ended == [item.id for item in final.output]
    said: dict[str, str] = {}
    for event in events:
        if event.type.endswith(".delta"):
            said[event.item_id] = said.get(event.item_id, "") + event.delta
        elif event.type in ("response.output_text.done", "response.reasoning_text.done"):
            assert said[event.item_id] == event.text
        elif event.type == "response.function_call_arguments.done":
            assert said[event.item_id] == event.arguments
    assert len(said) == 4
    whole = await thinking.responses.create(**HI, tools=[FLAT_TOOL], include=["message.output_text.logprobs"])
    assert _without_ids(whole) == _without_ids(final)


def _without_ids(response: Response) -> Any:
    answered = response.model_dump(exclude={"id", "created_at"})
    for item in answered["output"]:
        for name in ("id", "call_id", "parsed_arguments"):
            item.pop(name, None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    return {name: answered[name] for name in ("status", "output", "usage", "tools", "text", "metadata")}


async def test_the_bytes_are_openais(client: Http) -> None:
    """Every event has its line of type, and there is no `[DONE]`."""
    answer = await client.post(RESPONSES, json=HI | {"stream": True})
    parts = answer.text.split("\n\n")
    assert parts.pop() == ""
    for part in parts:
        kind, data = part.split("\n")
        assert kind == f"event: {json.loads(data.removeprefix('data: '))['type']}"
    assert "[DONE]" not in answer.text


async def test_how_tokens_come_changes_no_event(client: Http, mesh: FakeMesh, encode: Encode) -> None:
    """One by one, a few at a time or all at once: the same events, their numbers and log-probabilities included."""
    mesh.reply = [*encode(f"So 😀: {WRITTEN}\n{WRITTEN} done"), 2]
    asked = HI | {"stream": True, "tools": [FLAT_TOOL], "include": ["message.output_text.logprobs"]}
    told = set[str]()
    for batch_tokens in (1, 2, 3, 7, 100):
        mesh.batch_tokens = batch_tokens
        written = (await client.post(RESPONSES, json=asked)).text
        written = re.sub(r"(resp|msg|fc|call)_[0-9a-f]+", "id", written)
        told.add(re.sub(r'"created_at":[0-9]+', "", written))
    assert len(told) == 1


async def test_a_schema_is_parsed(api: AsyncOpenAI, mesh: FakeMesh, encode: Encode) -> None:
    """The client's `parse` sends its schema in the flat form; it reaches the mesh as the chat's grammar."""

    class City(BaseModel):
        name: str

    mesh.reply = [*encode('{"name": "Pécs"}'), 2]
    response = await api.responses.parse(**HI, text_format=City)
    assert response.output_parsed == City(name="Pécs")
    assert "name" in mesh.spec.sampling.grammar
    async with api.responses.stream(**HI, text_format=City) as stream:
        assert (await stream.get_final_response()).output_parsed == City(name="Pécs")


async def test_log_probabilities(api: AsyncOpenAI, mesh: FakeMesh) -> None:
    asked: Json = {**HI, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    response = await api.responses.create(**asked)
    message = response.output[0]
    assert isinstance(message, ResponseOutputMessage) and message.content[0].type == "output_text"
    scored = message.content[0].logprobs
    assert scored is not None and len(scored) == len(mesh.reply)
    assert len(scored[0].top_logprobs) == 2
    events = [event async for event in await api.responses.create(**asked, stream=True)]
    tokens = [each.token for event in events if event.type == "response.output_text.delta" for each in event.logprobs]
    assert tokens == [each.token for each in scored][: len(tokens)]
    assert len(tokens) == len(mesh.reply) - 1  # the end has no text


async def test_what_is_cut_is_incomplete(api: AsyncOpenAI, mesh: FakeMesh) -> None:
    """With the reason, and its last item as incomplete; the stream ends with the event of that name."""
    response = await api.responses.create(**HI, max_output_tokens=2)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None and response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"  # type: ignore[union-attr]
    events = [event async for event in await api.responses.create(**HI, max_output_tokens=2, stream=True)]
    assert events[-1].type == "response.incomplete"


async def test_a_model_that_says_nothing(api: AsyncOpenAI, mesh: FakeMesh) -> None:
    mesh.reply = [2]
    response = await api.responses.create(**HI)
    assert (response.output_text, len(response.output), response.status) == ("", 1, "completed")


async def test_a_stream_that_fails_says_so(api: AsyncOpenAI, mesh: FakeMesh) -> None:
    """By `error` and `response.failed`; before the first token it is an error like any other."""
    mesh.fail_at = 2
    events = [event async for event in await api.responses.create(**HI, stream=True)]
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-2].type == "error" and events[-2].code == "mesh_full"
    assert events[-1].type == "response.failed" and events[-1].response.error is not None
    assert events[-1].response.error.message == "All workers are full."
    mesh.fail_at = 0
    with pytest.raises(openai.InternalServerError):
        await api.responses.create(**HI, stream=True)


IMAGE = {"type": "input_image", "image_url": "x"}


def allowing(tool: Json) -> Json:
    """A request with one tool, which allows another one alone."""
    return {"tools": [FLAT_TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [tool]}}


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0"),
        ({"input": [{"role": "user", "content": [IMAGE]}]}, "input.0.message.content"),
        ({"input": []}, "input"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input.0.function_call.arguments"),
        ({"input": "refuse"}, "input"),
        ({"input": "word " * 5000}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 100_000}, "input"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [FLAT_TOOL, {"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [{"name": "f"}]}, "tools.0"),
        ({"tools": [FLAT_TOOL, FLAT_TOOL]}, "tools"),
        ({"tools": [FLAT_TOOL], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        (allowing({"type": "function", "name": "other"}), "tool_choice"),
        (allowing({"type": "image_generation"}), "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 7}}}}, "text.format.schema"),
        ({"text": {"verbosity": 3}}, "text.verbosity"),
        ({"reasoning": {"effort": []}}, "reasoning.effort"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
        ({"metadata": {"a": "b" * 513}}, "metadata.a"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
async def test_what_is_wrong_is_named(client: Http, mesh: FakeMesh, changes: Json, param: str) -> None:
    answer = await client.post(RESPONSES, json=HI | changes)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    for chats in ("'messages", "max_completion_tokens", "response_format", ".function."):
        assert chats not in error["message"]
    assert not mesh.specs


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_only_allowed_tools_are_called(
    api: AsyncOpenAI, mesh: FakeMesh, encode: Encode, mode: Literal["auto", "required"]
) -> None:
    """As in chats; a tool that a server would run is left out of the choice, too, and the response repeats it."""
    tools: Any = [FLAT_TOOL, {"type": "function", "name": "now", "strict": None, "parameters": None}]
    choice: ToolChoiceAllowedParam = {
        "type": "allowed_tools",
        "mode": mode,
        "tools": [{"type": "function", "name": "weather"}, {"type": "image_generation"}],
    }
    mesh.reply = [*encode(WRITTEN), 2]
    response = valid(await api.responses.create(**HI, tools=tools, tool_choice=choice))
    assert isinstance(response.tool_choice, ToolChoiceAllowed) and response.tool_choice.mode == mode
    assert [item.type for item in response.output] == ["function_call"]
    lark = json.loads(mesh.spec.sampling.grammar)["grammars"][0]["lark_grammar"]
    assert [name for name in ("weather", "now") if f'\\"{name}\\"' in lark] == ["weather"]


@pytest.mark.parametrize("choice", ["any", {}, {"type": 7}, {"type": ""}, {"type": "unheard_of"}])
async def test_a_choice_that_is_not_known_is_told_what_is(client: Http, choice: Any) -> None:
    body = HI | {"tools": [FLAT_TOOL], "tool_choice": choice}
    error = (await client.post(RESPONSES, json=body)).json()["error"]
    assert error["param"] == "tool_choice"
    for known in ("'none'", "'auto'", "'required'", "'function'", "'custom'", "'local_shell'", "'allowed_tools'"):
        assert known in error["message"]


async def test_truncation(client: Http, mesh: FakeMesh, text: ChatText) -> None:
    """With `auto` a prompt that is too long loses its beginning."""
    long = HI | {"input": "word " * 5000, "max_output_tokens": 16}
    assert (await client.post(RESPONSES, json=long | {"truncation": "disabled"})).status_code == 400
    assert (await client.post(RESPONSES, json=long | {"truncation": "auto"})).status_code == 200
    assert len(mesh.spec.prompt_token_ids) == text.context_length - 16


async def test_a_gateway_that_stores_nothing_says_so(api: AsyncOpenAI) -> None:
    """`store` is false in its responses, and there is nothing to go on from."""
    response = await api.responses.create(**HI, store=True)
    assert response.model_dump()["store"] is False
    with pytest.raises(openai.NotFoundError) as refusal:
        await api.responses.create(**HI, previous_response_id=response.id)
    assert (refusal.value.code, refusal.value.param) == ("response_not_found", "previous_response_id")
