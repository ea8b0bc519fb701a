"""Tools over HTTP: the model is told of them, calls are found in what it writes, and sent as OpenAI sends them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest
from openai.types.chat import ChatCompletionAllowedToolChoiceParam

from spotwise.text.chat_text import ChatText
from tests.unit.gateway.apps import Encode, Fits, Http, Json, MakeApp, app_over, connect, data_of, openai_of
from tests.unit.gateway.fake_mesh import CHAT, CHATS, FakeMesh
from tests.unit.gateway.keeping_mesh import Client, KeepingMesh, content, keeping_app

FUNCTION: Json = {
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOL = {"type": "function", "function": FUNCTION}
OTHER = {"type": "function", "function": {"name": "now", "strict": False}}
WRITTEN = '<tool_call>{"name": "weather", "arguments": {"city": "Pécs"}}</tool_call>'
WITH_TOOLS: Json = CHAT | {"tools": [TOOL, OTHER], "max_tokens": 512}


@pytest.fixture(scope="module")
def text(roomy_text: ChatText) -> ChatText:
    return roomy_text


@pytest.fixture
async def thinker(mesh: FakeMesh, thinking_text: ChatText) -> AsyncIterator[Http]:
    """A client of a model that thinks."""
    async with connect(app_over(mesh, thinking_text)) as opened:
        yield opened


async def test_a_call_is_answered_as_one(client: Http, mesh: FakeMesh, encode: Encode) -> None:
    """With its id, its arguments as a text of JSON, no content, and the finish reason that clients look for."""
    mesh.reply = [*encode(f"\n{WRITTEN}\n{WRITTEN}"), 2]
    choice = (await client.post(CHATS, json=WITH_TOOLS)).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] is None and "reasoning_content" not in message
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "weather", "arguments": '{"city": "Pécs"}'}
    ] * 2
    assert {call["type"] for call in message["tool_calls"]} == {"function"}
    assert len({call["id"] for call in message["tool_calls"]}) == 2


async def test_a_text_is_answered_as_one(client: Http, mesh: FakeMesh) -> None:
    choice = (await client.post(CHATS, json=WITH_TOOLS)).json()["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "Hello, world!", "refusal": None}
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("batch_tokens", [1, 3, 50])
async def test_the_streams_deltas_are_openais(
    make_app: MakeApp, mesh: FakeMesh, encode: Encode, batch_tokens: int
) -> None:
    """The client library puts the same calls together as it gets whole, and usage and log-probabilities with them."""
    mesh.reply, mesh.batch_tokens = [*encode(f"So: {WRITTEN}\n{WRITTEN}"), 2], batch_tokens
    async with openai_of(make_app()).chat.completions.stream(**WITH_TOOLS, logprobs=True) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_completion()
    kinds = {event.type for event in events}
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done", "content.delta"} <= kinds
    choice = final.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "So:")
    calls = choice.message.tool_calls or []
    assert [(call.function.name, call.function.arguments) for call in calls] == [("weather", '{"city": "Pécs"}')] * 2
    assert all(call.id.startswith("call_") for call in calls)
    assert choice.logprobs is not None and len(choice.logprobs.content or ()) == len(mesh.reply)


async def test_tools_reach_the_prompt(
    client: Http, mesh: FakeMesh, text: ChatText, thinker: Http, thinking_text: ChatText
) -> None:
    """By the template, or as a text of the system's where it knows none; `none` tells the model of none."""
    await client.post(CHATS, json=WITH_TOOLS)
    prompt = text.decode(mesh.spec.prompt_token_ids)
    assert (
        prompt.startswith("system\n")
        and '{"name": "now", "parameters": {"type": "object", "properties": {}}}' in prompt
    )
    mesh.specs.clear()
    await thinker.post(CHATS, json=WITH_TOOLS)
    prompt = thinking_text.decode(mesh.spec.prompt_token_ids)
    assert json.loads(prompt.partition("[")[2].partition("][")[0]) == TOOL
    assert '"strict"' not in prompt
    without: tuple[Json, ...] = ({"tool_choice": "none"}, {"tools": []})
    for changes in without:
        mesh.specs.clear()
        await thinker.post(CHATS, json=WITH_TOOLS | changes)
        assert "weather" not in thinking_text.decode(mesh.spec.prompt_token_ids)


async def test_none_leaves_the_text_alone(client: Http, mesh: FakeMesh, encode: Encode) -> None:
    """With `none`, what looks like a call is text."""
    mesh.reply = [*encode(WRITTEN), 2]
    choice = (await client.post(CHATS, json=WITH_TOOLS | {"tool_choice": "none"})).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (WRITTEN, "stop")


@pytest.mark.parametrize(
    ("changes", "functions", "finish_reason"),
    [
        ({"tool_choice": "required"}, ["weather", "now"], "tool_calls"),
        ({"tool_choice": {"type": "function", "function": {"name": "weather"}}}, ["weather"], "stop"),
    ],
)
async def test_a_call_that_is_asked_for_has_a_grammar(
    client: Http, mesh: FakeMesh, encode: Encode, changes: Json, functions: list[str], finish_reason: str
) -> None:
    """Of those functions; a named one is no reason to end, as OpenAI has it."""
    mesh.reply = [*encode(WRITTEN), 2]
    choice = (await client.post(CHATS, json=WITH_TOOLS | changes)).json()["choices"][0]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["weather"]
    assert choice["finish_reason"] == finish_reason
    lark = json.loads(mesh.spec.sampling.grammar)["grammars"][0]["lark_grammar"]
    assert [name for name in ("weather", "now") if f'\\"{name}\\"' in lark] == functions


def _allowed(mode: Literal["auto", "required"], *names: str) -> ChatCompletionAllowedToolChoiceParam:
    tools: list[dict[str, object]] = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_only_allowed_tools_are_called(
    make_app: MakeApp, mesh: FakeMesh, fits: Fits, encode: Encode, mode: Literal["auto", "required"]
) -> None:
    """The prompt is that of all tools, so that its cache stays; the grammar has no other call, and `auto` leaves any text."""
    mesh.reply = [*encode(WRITTEN), 2]
    api = openai_of(make_app())
    await api.chat.completions.create(**WITH_TOOLS)
    prompt = mesh.spec.prompt_token_ids
    mesh.specs.clear()
    answer = await api.chat.completions.create(**WITH_TOOLS, tool_choice=_allowed(mode, "weather"))
    assert answer.choices[0].finish_reason == "tool_calls"
    assert mesh.spec.prompt_token_ids == prompt
    grammar = mesh.spec.sampling.grammar
    lark = json.loads(grammar)["grammars"][0]["lark_grammar"]
    assert [name for name in ("weather", "now") if f'\\"{name}\\"' in lark] == ["weather"]
    laid_out = WRITTEN.replace("<tool_call>", "<tool_call>\n").replace("</tool_call>", "\n</tool_call>")
    assert fits(grammar, laid_out) and not fits(grammar, laid_out.replace("weather", "now"))
    assert fits(grammar, "It is fine.") == (mode == "auto")


async def test_all_tools_allowed_is_no_bound(client: Http, mesh: FakeMesh) -> None:
    """`auto` with all of them is `auto`."""
    tools = [TOOL, {"type": "function", "function": {"name": "then", "parameters": {"type": "object"}}}]
    for choice in ("auto", _allowed("auto", "weather", "then")):
        mesh.specs.clear()
        response = await client.post(CHATS, json=WITH_TOOLS | {"tools": tools, "tool_choice": choice})
        assert response.status_code == 200 and not mesh.spec.sampling.grammar, response.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("written", "is_cut"), [(WRITTEN[:50], True), (WRITTEN, False), ("It is", False)])
async def test_arguments_that_are_cut_off_say_so(
    client: Http, mesh: FakeMesh, encode: Encode, written: str, is_cut: bool, stream: bool
) -> None:
    """Of a call that reached the bound of tokens; one that is whole there, and text before any call, do not."""
    mesh.reply = encode(written)
    response = await client.post(CHATS, json=WITH_TOOLS | {"stream": stream})
    (choice,) = (data_of(response.text)[-1] if stream else response.json())["choices"]
    assert choice["finish_reason"] == "length"
    assert choice.get("incomplete_details") == ({"reason": "max_output_tokens"} if is_cut else None)


async def test_calls_one_at_a_time(client: Http, mesh: FakeMesh, encode: Encode) -> None:
    """With `parallel_tool_calls` false the message ends with its first call, and so does the work for it."""
    mesh.reply = [*encode(WRITTEN + WRITTEN), 2]
    answer = (await client.post(CHATS, json=WITH_TOOLS | {"parallel_tool_calls": False})).json()
    choice = answer["choices"][0]
    assert (len(choice["message"]["tool_calls"]), choice["finish_reason"]) == (1, "tool_calls")
    assert answer["usage"]["completion_tokens"] <= len(encode(WRITTEN))
    assert len(mesh.text_ended) == 1


async def test_reasoning_is_split_off(thinker: Http, mesh: FakeMesh, encode: Encode) -> None:
    """Also without tools, where the prompt has begun it; a grammar of the answer lets the model think first."""
    mesh.reply = [*encode("Hm.\n</think>\n\nYes."), 2]
    message = (await thinker.post(CHATS, json=CHAT)).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Yes.", "refusal": None, "reasoning_content": "Hm."}
    mesh.specs.clear()
    await thinker.post(CHATS, json=CHAT | {"structured_outputs": {"choice": ["Yes.", "No."]}})
    assert "thought" in mesh.spec.sampling.grammar
    mesh.specs.clear()
    mesh.reply = [*encode("Yes."), 2]
    body = CHAT | {"chat_template_kwargs": {"enable_thinking": False}}
    assert (await thinker.post(CHATS, json=body)).json()["choices"][0]["message"]["content"] == "Yes."
    mesh.reply = [*encode("Hm."), 2]
    events = data_of((await thinker.post(CHATS, json=CHAT | {"stream": True})).text)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm."
    assert "".join(delta.get("content", "") for delta in deltas) == ""


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"tools": [{"type": "custom", "function": FUNCTION}]}, "tools.0.type", "invalid_value"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name", "invalid_value"),
        ({"tools": [TOOL, TOOL]}, None, "invalid_value"),
        ({"tools": [TOOL] * 129}, "tools", "invalid_value"),
        ({"tool_choice": {"type": "function", "function": {"name": "then"}}}, "tool_choice", "invalid_value"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tools": [], "tool_choice": _allowed("auto", "now")}, "tool_choice", "invalid_value"),
        ({"tool_choice": _allowed("auto")}, "tool_choice", "invalid_value"),
        ({"tool_choice": _allowed("auto", "weather", "then")}, "tool_choice", "invalid_value"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "nothing"}}}],
                "tool_choice": "required",
            },
            "tools",
            "invalid_grammar",
        ),
    ],
)
async def test_tools_that_cannot_be_used_are_refused(
    client: Http, mesh: FakeMesh, changes: Json, param: str | None, code: str
) -> None:
    response = await client.post(CHATS, json=WITH_TOOLS | changes)
    error = response.json()["error"]
    assert response.status_code == 400, response.text
    assert error["code"] == code
    assert param is None or error["param"].startswith(param), error
    assert not mesh.specs


@pytest.mark.parametrize("choice", ["any", {"type": "custom", "custom": {"name": "x"}}, {}, 7, {"type": []}])
async def test_a_choice_that_is_not_known_is_told_what_is(client: Http, choice: Any) -> None:
    error = (await client.post(CHATS, json=WITH_TOOLS | {"tool_choice": choice})).json()["error"]
    assert (error["param"], error["message"]) == (
        "tool_choice",
        "Invalid value for 'tool_choice': must be 'none', 'auto' or 'required', or an object with the 'type' 'function' "
        "or 'allowed_tools'.",
    )


async def test_a_stream_goes_on_in_the_midst_of_a_call(text: ChatText, encode: Encode) -> None:
    """From each event: the calls and their ids are those of the whole stream, at another gateway, too."""
    tokens = [*encode(f"So: {WRITTEN}\n{WRITTEN}"), 2]
    mesh = KeepingMesh(tokens)
    app, other = keeping_app(mesh, text), keeping_app(KeepingMesh(tokens, store=mesh.store), text, "g1")
    body = WITH_TOOLS | {"stream": True, "stream_options": {"include_usage": True}}
    events = await Client(app, "POST", CHATS, body, {"X-Spotwise-Resumable": "true"}).events()
    whole = content(events)
    assert [call[1:] for call in whole[0][0][1]["calls"].values()] == [["weather", '{"city": "Pécs"}']] * 2
    for number, event in enumerate(events):
        if event.id:
            at = (app, other)[number % 2]
            rest = await Client(at, "POST", CHATS, body, {"Last-Event-ID": event.id}).events()
            assert content([*events[: number + 1], *rest]) == whole, f"from event {number}"
