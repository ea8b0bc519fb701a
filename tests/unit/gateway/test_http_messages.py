"""Anthropic's messages over HTTP: what becomes of a conversation, what is refused, and streams that go on."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from spotwise.gateway.access.auth import ApiKey
from spotwise.gateway.apis.messages import prepare_message
from spotwise.gateway.apis.messages_writer import MessagesWriter, input_of
from spotwise.gateway.generate.answer_work import Usage
from spotwise.gateway.generate.api_options import ApiOptions
from spotwise.gateway.generate.choice import ChoiceText
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.generate.prepared_request import RequestTerms
from spotwise.gateway.routes.app import create_app
from spotwise.gateway.schema.messages import MessagesRequest
from spotwise.gateway.schema.parameters import IGNORED, REFUSED, Endpoint
from spotwise.text.chat_text import ChatText
from spotwise.text.message_reader import MessagePart
from tests.unit.gateway.access import open_to
from tests.unit.gateway.fake_mesh import MODEL, FakeMesh
from tests.unit.gateway.keeping_mesh import Client, KeepingMesh, keeping_app, parsed
from tests.unit.gateway.test_http_tools import THINKING_TEMPLATE
from tests.unit.gateway.test_messages_client import MESSAGE, TOOL, WITH_TOOL, WRITTEN

MESSAGES = "/v1/messages"
Encode = Callable[[str], list[int]]


@pytest.fixture(scope="module")
def text(roomy_text: ChatText) -> ChatText:
    return roomy_text


@pytest.fixture(scope="module")
def thinking(roomy_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> ChatText:
    """A model whose chat template begins the reasoning unless it is told not to."""
    folder = shutil.copytree(roomy_dir, tmp_path_factory.mktemp("thinking") / "model")
    template = THINKING_TEMPLATE.replace("thinks is not false", "enable_thinking is not false")
    (folder / "chat_template.jinja").write_text(template)
    return ChatText.load(folder)


def app_of(mesh: FakeMesh, text: ChatText) -> Starlette:
    return create_app(mesh, text, ApiOptions(MODEL), GatewayMetrics(CollectorRegistry(), MODEL), open_to())


async def post(app: Starlette, body: dict[str, Any], path: str = MESSAGES) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        return await client.post(path, json=body)


def blocks(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": each} for each in texts]


CALL = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Pécs"}}
#: Conversations of Anthropic's, and the same ones as chats.
CONVERSATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "system": (
        {"system": "Be brief.", "messages": [{"role": "user", "content": "Hi"}]},
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]},
    ),
    "turns in a row": (
        {
            "system": blocks("Be", "brief."),
            "messages": [{"role": "user", "content": "Hi"}, {"role": "user", "content": blocks("Ho", "He")}],
        },
        {"messages": [{"role": "system", "content": "Be\nbrief."}, {"role": "user", "content": "Hi\nHo\nHe"}]},
    ),
    "a prefill": (
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well,"}]},
        {
            "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well,"}],
            "continue_final_message": True,
        },
    ),
    "an empty prefill": (
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": []}]},
        {"messages": [{"role": "user", "content": "Hi"}]},
    ),
    "results": (
        {
            "tools": [TOOL],
            "messages": [
                {"role": "user", "content": "Hi"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                        {"type": "redacted_thinking", "data": "x"},
                        *blocks("Let me see."),
                        CALL,
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "c1", "content": blocks("18", "degrees")},
                        {"type": "tool_result", "tool_use_id": "c2", "content": "away", "is_error": True},
                        *blocks("And now?"),
                    ],
                },
            ],
        },
        {
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "weather",
                        "description": TOOL["description"],
                        "parameters": TOOL["input_schema"],
                    },
                }
            ],
            "messages": [
                {"role": "user", "content": "Hi"},
                {
                    "role": "assistant",
                    "content": "Let me see.",
                    "reasoning_content": "Hm.",
                    "tool_calls": [
                        {
                            "id": "c1",
                            "type": "function",
                            "function": {"name": "weather", "arguments": '{"city": "Pécs"}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "18\ndegrees"},
                {"role": "tool", "tool_call_id": "c2", "content": "Error:\naway"},
                {"role": "user", "content": "And now?"},
            ],
        },
    ),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_a_conversation_has_the_prompt_of_a_chat(
    client: httpx.AsyncClient, mesh: FakeMesh, text: ChatText, name: str
) -> None:
    """The chat template renders it as it renders the same chat."""
    conversation, chat = CONVERSATIONS[name]
    response = await client.post(MESSAGES, json={"model": MODEL, "max_tokens": 8} | conversation)
    assert response.status_code == 200, response.text
    expected = (await client.post("/tokenize", json=chat)).json()["tokens"]
    assert list(mesh.spec.prompt_token_ids) == expected, text.decode(mesh.spec.prompt_token_ids)
    counted = await client.post(f"{MESSAGES}/count_tokens", json={"model": MODEL} | conversation)
    assert counted.json() == {"input_tokens": len(expected)}


async def test_parameters_reach_the_mesh(client: httpx.AsyncClient, mesh: FakeMesh) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    asked = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "metadata": {"user_id": "bob"}, "max_tokens": 33}
    asked |= {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    assert (await client.post(MESSAGES, json=MESSAGE | asked)).status_code == 200
    sampling = mesh.spec.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert (mesh.spec.tenant, mesh.spec.stop.max_new_tokens) == ("user:bob", 33)
    assert '"a"' in sampling.grammar or '\\"a\\"' in sampling.grammar


@pytest.mark.parametrize(
    ("thinks", "reply", "expected"),
    [
        (None, "Hm.\n</think>\n\nYes.", [("thinking", "Hm."), ("text", "Yes.")]),
        ({"type": "adaptive"}, "Hm.\n</think>\n\nYes.", [("thinking", "Hm."), ("text", "Yes.")]),
        ({"type": "enabled", "budget_tokens": 1024}, "Hm.\n</think>\n\nYes.", [("thinking", "Hm."), ("text", "Yes.")]),
        ({"type": "disabled"}, "Yes.", [("text", "Yes.")]),
    ],
)
async def test_reasoning_is_a_block(
    thinking: ChatText, mesh: FakeMesh, encode: Encode, thinks: Any, reply: str, expected: list[tuple[str, str]]
) -> None:
    app = app_of(mesh, thinking)
    mesh.reply = [*encode(reply), 2]
    asked = MESSAGE | {"thinking": thinks}
    content = (await post(app, asked)).json()["content"]
    assert [(block["type"], block[block["type"]]) for block in content] == expected
    assert all(block["signature"] == "" for block in content if block["type"] == "thinking")
    deltas = [
        json.loads(line[6:])
        for line in (await post(app, asked | {"stream": True})).text.splitlines()
        if line[:5] == "data:"
    ]
    assert built(deltas)["content"] == content


async def test_a_model_that_does_not_think_is_not_told_to(client: httpx.AsyncClient, mesh: FakeMesh) -> None:
    """`enabled` is ignored with a warning; `disabled` is what it does anyway."""
    response = await client.post(MESSAGES, json=MESSAGE | {"thinking": {"type": "enabled", "budget_tokens": 1024}})
    assert (response.status_code, response.headers["x-spotwise-warning"]) == (200, "ignored: thinking")
    prompt = mesh.spec.prompt_token_ids
    mesh.specs.clear()
    disabled = await client.post(MESSAGES, json=MESSAGE | {"thinking": {"type": "disabled"}})
    assert (disabled.status_code, "x-spotwise-warning" in disabled.headers) == (200, False)
    assert mesh.spec.prompt_token_ids == prompt


async def test_a_bound_beyond_the_context_is_the_contexts(
    client: httpx.AsyncClient, mesh: FakeMesh, text: ChatText, encode: Encode
) -> None:
    """As with Anthropic's models since Claude 4.5, and the answer says what ended it."""
    mesh.reply = encode("a") * text.context_length
    body = (await client.post(MESSAGES, json=MESSAGE | {"max_tokens": 32_000})).json()
    assert body["stop_reason"] == "model_context_window_exceeded"
    assert body["usage"]["input_tokens"] + body["usage"]["output_tokens"] == text.context_length
    body = (await client.post(MESSAGES, json=MESSAGE | {"max_tokens": 8})).json()
    assert (body["stop_reason"], body["usage"]["output_tokens"]) == ("max_tokens", 8)


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "'image'"),
        ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}, "'document'"),
        ({"messages": [{"role": "user", "content": [{**CALL}]}]}, "'tool_use'"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "1"}]}]},
            "tool_result",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [IMAGE]}]}
                ]
            },
            "'image'",
        ),
        ({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [CALL]}]}, "continued"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "role"),
        (
            {
                "tools": [{"type": "web_search_20250305", "name": "web_search"}, TOOL],
                "tool_choice": {"type": "tool", "name": "web_search"},
            },
            "'web_search_20250305'",
        ),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}], "tool_choice": {"type": "any"}},
            "'web_search_20250305'",
        ),
        ({"tools": [{"name": "f"}]}, "input_schema"),
        ({"tools": [TOOL, TOOL]}, "same name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "'name'"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "'other'"),
        ({"tool_choice": {"type": "any"}}, "tools"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 1.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"thinking": {"type": "between_tools"}}, "thinking"),
        ({"output_config": {"format": {"type": "json_object"}}}, "output_config.format"),
        *(({rule.name: {"a": 1}}, rule.name) for rule in REFUSED if Endpoint.MESSAGES in rule.at),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(
    client: httpx.AsyncClient, mesh: FakeMesh, changes: dict[str, Any], named: str
) -> None:
    response = await client.post(MESSAGES, json=MESSAGE | changes)
    body = response.json()
    assert (response.status_code, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error")
    assert named in body["error"]["message"], body
    assert not mesh.specs


async def test_what_is_ignored_is_accepted(client: httpx.AsyncClient, mesh: FakeMesh) -> None:
    """With any value; also within blocks and tools."""
    names = [rule.name for rule in IGNORED if Endpoint.MESSAGES in rule.at]
    body = MESSAGE | {name: {"a": [1]} for name in (*names, "anything")}
    body |= {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"x": 1}}]}]}
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "x"}
    response = await client.post(MESSAGES, json=body, headers=headers)
    assert response.status_code == 200
    assert response.headers["x-spotwise-warning"] == f"ignored: {', '.join(sorted([*names, 'anything']))}"


def test_every_known_parameter_is_in_one_class() -> None:
    """Of the installed client: honoured, refused or ignored."""
    from anthropic.types import message_create_params as params

    rules = [rule.name for rule in (*REFUSED, *IGNORED) if Endpoint.MESSAGES in rule.at]
    classified = [*MessagesRequest.model_fields, *rules]
    assert sorted(set(classified)) == sorted(classified)
    assert set(params.MessageCreateParamsBase.__annotations__) | {"stream"} <= set(classified)


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", MESSAGES, 405, "invalid_request_error"),
        ("POST", f"{MESSAGES}/batches", 404, "not_found_error"),
        ("POST", f"{MESSAGES}/", 400, "invalid_request_error"),
    ],
)
async def test_errors_of_these_paths_have_their_form(
    client: httpx.AsyncClient, method: str, path: str, status: int, kind: str
) -> None:
    """From whichever layer; all other paths have OpenAI's."""
    response = await client.request(method, path, content=b"{}")
    body = response.json()
    assert (response.status_code, body["type"], body["error"]["type"]) == (status, "error", kind)
    assert body["request_id"] == response.headers["x-request-id"]
    assert set((await client.get("/v1/messagesx")).json()) == {"error"}


@pytest.mark.parametrize("path", [MESSAGES, "/v1/chat/completions"])
async def test_keys_are_taken_from_either_header(make_app: Callable[..., Starlette], path: str) -> None:
    """On every path; a bearer key goes first."""
    app = make_app(api_keys=(ApiKey("right"),))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        for headers, status in (
            ({"x-api-key": "right"}, 200),
            ({"Authorization": "Bearer right", "x-api-key": "wrong"}, 200),
            ({"Authorization": "Bearer wrong", "x-api-key": "right"}, 401),
            ({"x-api-key": "wrong"}, 401),
            ({}, 401),
        ):
            response = await client.post(path, json=MESSAGE, headers=headers)
            assert response.status_code == status, headers
            if status == 401 and path == MESSAGES:
                assert response.json()["error"]["type"] == "authentication_error"


def built(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client builds of events, which come in Anthropic's order."""
    message: dict[str, Any] = {}
    arguments, open_index = dict[int, str](), None
    for event in copy.deepcopy(events):
        match event["type"]:
            case "message_start":
                assert not message
                message = event["message"]
            case "content_block_start":
                assert open_index is None and event["index"] == len(message["content"])
                open_index = event["index"]
                message["content"].append(event["content_block"])
            case "content_block_delta":
                assert event["index"] == open_index
                block, delta = message["content"][open_index], event["delta"]
                if delta["type"] == "input_json_delta":
                    arguments[open_index] = arguments.get(open_index, "") + delta["partial_json"]
                    continue
                (member,) = set(delta) - {"type"}
                assert delta["type"] == f"{member}_delta"
                block[member] += delta[member]
            case "content_block_stop":
                assert event["index"] == open_index
                block = message["content"][open_index]
                if block["type"] == "tool_use" and open_index in arguments:
                    block["input"] = json.loads(arguments[open_index])
                open_index = None
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
            case kind:
                assert kind == "message_stop" and open_index is None
    return message


PIECES = st.lists(
    st.builds(
        lambda kind, text: (kind, text),
        st.sampled_from(["content", "reasoning", "call"]),
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=12),
    ),
    max_size=6,
)


@given(PIECES, st.lists(st.integers(1, 4), max_size=40), st.sampled_from(["stop", "length"]))
def test_any_cut_gives_the_same_blocks(text: ChatText, pieces: list[Any], cuts: list[int], reason: str) -> None:
    """However parts are cut and grouped, a stream builds what is answered whole."""
    parts: list[MessagePart] = []
    calls, lengths = 0, iter(cuts)
    for kind, said in pieces:
        if kind == "call":
            parts.append(MessagePart("call", said, calls, f"call_{calls}"))
        body = json.dumps({"x": said}) if kind == "call" else said
        while body:
            length = next(lengths, 99)
            parts.append(
                MessagePart("arguments" if kind == "call" else kind, body[:length], calls if kind == "call" else 0)
            )
            body = body[length:]
        calls += kind == "call"
    plan = prepare_message(MESSAGE, text, ApiOptions(MODEL), RequestTerms())
    streamed, whole = (MessagesWriter(plan, text.token_bytes) for _ in range(2))
    usage: Usage = {"prompt_tokens": plan.prompt_tokens, "completion_tokens": 5}
    events = streamed.openings()
    while parts:
        group = next(lengths, 1) if cuts else len(parts)
        piece, parts = ChoiceText("", parts=parts[:group]), parts[group:]
        events += streamed.events(0, piece)
        whole.collect(0, piece)
    last = ChoiceText("", parts=[], finish_reason=reason)
    events += [*streamed.events(0, last), *streamed.endings(usage)]
    whole.collect(0, last)
    lines = [event.decode().split("\n") for event in events]
    told = [json.loads(line[1].removeprefix("data: ")) for line in lines]
    assert [line[0].removeprefix("event: ") for line in lines] == [event["type"] for event in told]
    answer = json.loads(b"".join(whole.whole(usage)))
    assert built(told) == answer
    assert answer["stop_reason"] == ("max_tokens" if reason == "length" else "tool_use" if calls else "end_turn")


@pytest.mark.parametrize("arguments", ["", "null", "[1]", "{'a': 1}", '{"a": x}', '{"a": NaN}', '"text"', "{" * 300])
def test_what_is_no_object_is_an_empty_one(arguments: str) -> None:
    """Whatever the model writes as arguments, the input of its call is an object."""
    assert input_of(arguments) == {}
    assert input_of('{"a": {"b": 1}, "c": tr') == {"a": {"b": 1}}


async def read(client: Client) -> list[Any]:
    """All events of a stream."""
    while await client._read():
        pass
    return [parsed(part) for part in client._buffer.split("\n\n") if part]


async def test_a_stream_goes_on_from_any_event(thinking: ChatText, encode: Encode) -> None:
    """At its gateway and another, once it is over: what follows is what was not sent, to the last event."""
    tokens = [*encode(f"Hm.\n</think>\n\nSo: {WRITTEN}\n{WRITTEN} 😀"), 2]
    mesh = KeepingMesh(tokens, cached={0: 2})
    app = keeping_app(mesh, thinking)
    other = keeping_app(KeepingMesh(tokens, store=mesh.store), thinking, "g1")
    body = WITH_TOOL | {"stream": True}
    events = await read(Client(app, "POST", MESSAGES, body, {"X-Spotwise-Resumable": "true"}))
    message = built([event.data for event in events])
    kinds = [block["type"] for block in message["content"]]
    assert kinds == ["thinking", "text", "tool_use", "tool_use", "text"]
    assert len({event.id for event in events}) == len(events)
    for number, event in enumerate(events):
        client = Client((app, other)[number % 2], "POST", MESSAGES, body, {"Last-Event-ID": event.id})
        rest = await read(client)
        assert [each.data for each in rest] == [each.data for each in events[number + 1 :]], f"from event {number}"


@pytest.mark.parametrize("had", [1, 2, 3, 7, 9])
async def test_another_gateway_goes_on(thinking: ChatText, encode: Encode, had: int) -> None:
    """The gateway dies in the midst of a block; the client has the message as if nothing had been."""
    tokens = [*encode(f"Hm.\n</think>\n\nSo: {WRITTEN}"), 2]
    first = KeepingMesh(tokens, hang_at=len(tokens) - 8)
    body = WITH_TOOL | {"stream": True}
    client = Client(keeping_app(first, thinking), "POST", MESSAGES, body)
    events = [await client.event() for _ in range(had)]
    await first.saver.save_all()
    second = keeping_app(KeepingMesh(tokens, store=first.store), thinking, "g1")
    rest = await read(Client(second, "POST", MESSAGES, body, {"Last-Event-ID": events[-1].id}))
    message = built([event.data for event in [*events, *rest]])
    undisturbed = built(
        [e.data for e in await read(Client(keeping_app(KeepingMesh(tokens), thinking), "POST", MESSAGES, body))]
    )
    assert [{**block, "id": ""} for block in message["content"]] == [
        {**block, "id": ""} for block in undisturbed["content"]
    ]
    assert (message["stop_reason"], message["usage"]) == (undisturbed["stop_reason"], undisturbed["usage"])
    await client.leave()


async def test_a_kept_message_is_told_whole(thinking: ChatText, encode: Encode) -> None:
    """`GET /v1/requests/{id}` has Anthropic's object; the stream there is Anthropic's, too."""
    mesh = KeepingMesh([*encode(f"Hm.\n</think>\n\nSo: {WRITTEN}"), 2])
    app = keeping_app(mesh, thinking)
    body = WITH_TOOL | {"stream": True}
    events = await read(Client(app, "POST", MESSAGES, body, {"Idempotency-Key": "a"}))
    message = built([event.data for event in events])
    path = f"/v1/requests/{message['id']}"
    state = await Client(app, "GET", path).answer()
    assert (state["endpoint"], state["state"], state["response"]) == ("messages", "finished", message)
    again = await read(Client(app, "GET", path, headers={"Accept": "text/event-stream"}))
    assert [event.data for event in again] == [event.data for event in events]
