"""Anthropic's messages over HTTP: what becomes of a conversation, what is refused, and streams that go on."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.gateway.access.auth import ApiKey
from spotwise.gateway.apis.messages import prepare_message
from spotwise.gateway.apis.messages_writer import MessagesWriter, input_of
from spotwise.gateway.generate.answer_work import Usage
from spotwise.gateway.generate.api_options import ApiOptions
from spotwise.gateway.generate.choice import ChoiceText
from spotwise.gateway.generate.prepared_request import RequestTerms
from spotwise.gateway.schema.messages import MessagesRequest
from spotwise.gateway.schema.parameters import IGNORED, REFUSED, Endpoint
from spotwise.text.chat_text import ChatText
from spotwise.text.message_reader import MessagePart
from tests.unit.gateway.apps import Encode, Http, Json, MakeApp, app_over, connect, data_of
from tests.unit.gateway.fake_mesh import CHATS, MESSAGE, MODEL, FakeMesh
from tests.unit.gateway.keeping_mesh import Client, KeepingMesh, keeping_app
from tests.unit.gateway.test_messages_client import TOOL, WITH_TOOL, WRITTEN

MESSAGES = "/v1/messages"


@pytest.fixture(scope="module")
def text(roomy_text: ChatText) -> ChatText:
    return roomy_text


def blocks(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": each} for each in texts]


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> Json:
    return {"role": "assistant", "content": content, **more}


def result(call_id: str, content: Any, **more: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


CALL = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Pécs"}}
CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Pécs"}'}}
CHAT_TOOL = {"name": "weather", "description": TOOL["description"], "parameters": TOOL["input_schema"]}
THOUGHTS = [{"type": "thinking", "thinking": "Hm.", "signature": "x"}, {"type": "redacted_thinking", "data": "x"}]
#: Conversations of Anthropic's, and the same ones as chats.
CONVERSATIONS: dict[str, tuple[Json, Json]] = {
    "system": (
        {"system": "Be brief.", "messages": [user("Hi")]},
        {"messages": [{"role": "system", "content": "Be brief."}, user("Hi")]},
    ),
    "turns in a row": (
        {"system": blocks("Be", "brief."), "messages": [user("Hi"), user(blocks("Ho", "He"))]},
        {"messages": [{"role": "system", "content": "Be\nbrief."}, user("Hi\nHo\nHe")]},
    ),
    "a prefill": (
        {"messages": [user("Hi"), assistant("Well,")]},
        {"messages": [user("Hi"), assistant("Well,")], "continue_final_message": True},
    ),
    "an empty prefill": ({"messages": [user("Hi"), assistant([])]}, {"messages": [user("Hi")]}),
    "results": (
        {
            "tools": [TOOL],
            "messages": [
                user("Hi"),
                assistant([*THOUGHTS, *blocks("Let me see."), CALL]),
                user([result("c1", blocks("18", "degrees")), result("c2", "away", is_error=True), *blocks("And now?")]),
            ],
        },
        {
            "tools": [{"type": "function", "function": CHAT_TOOL}],
            "messages": [
                user("Hi"),
                assistant("Let me see.", reasoning_content="Hm.", tool_calls=[CHAT_CALL]),
                {"role": "tool", "tool_call_id": "c1", "content": "18\ndegrees"},
                {"role": "tool", "tool_call_id": "c2", "content": "Error:\naway"},
                user("And now?"),
            ],
        },
    ),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_a_conversation_has_the_prompt_of_a_chat(client: Http, mesh: FakeMesh, text: ChatText, name: str) -> None:
    """The chat template renders it as it renders the same chat."""
    conversation, chat = CONVERSATIONS[name]
    response = await client.post(MESSAGES, json={"model": MODEL, "max_tokens": 8} | conversation)
    assert response.status_code == 200, response.text
    expected = (await client.post("/tokenize", json=chat)).json()["tokens"]
    assert list(mesh.spec.prompt_token_ids) == expected, text.decode(mesh.spec.prompt_token_ids)
    counted = await client.post(f"{MESSAGES}/count_tokens", json={"model": MODEL} | conversation)
    assert counted.json() == {"input_tokens": len(expected)}


async def test_parameters_reach_the_mesh(client: Http, mesh: FakeMesh) -> None:
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
    thinking_text: ChatText, mesh: FakeMesh, encode: Encode, thinks: Any, reply: str, expected: list[tuple[str, str]]
) -> None:
    mesh.reply = [*encode(reply), 2]
    asked = MESSAGE | {"thinking": thinks}
    async with connect(app_over(mesh, thinking_text)) as client:
        content = (await client.post(MESSAGES, json=asked)).json()["content"]
        streamed = await client.post(MESSAGES, json=asked | {"stream": True})
    assert [(block["type"], block[block["type"]]) for block in content] == expected
    assert all(block["signature"] == "" for block in content if block["type"] == "thinking")
    assert built(data_of(streamed.text))["content"] == content


async def test_a_bound_beyond_the_context_is_the_contexts(
    client: Http, mesh: FakeMesh, text: ChatText, encode: Encode
) -> None:
    """As with Anthropic's models since Claude 4.5, and the answer says what ended it."""
    mesh.reply = encode("a") * text.context_length
    body = (await client.post(MESSAGES, json=MESSAGE | {"max_tokens": 32_000})).json()
    assert body["stop_reason"] == "model_context_window_exceeded"
    assert body["usage"]["input_tokens"] + body["usage"]["output_tokens"] == text.context_length
    body = (await client.post(MESSAGES, json=MESSAGE | {"max_tokens": 8})).json()
    assert (body["stop_reason"], body["usage"]["output_tokens"]) == ("max_tokens", 8)


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"messages": [user([IMAGE])]}, "'image'"),
        ({"messages": [user([{"type": "document", "source": {}}])]}, "'document'"),
        ({"messages": [user([CALL])]}, "'tool_use'"),
        ({"messages": [assistant([{"type": "tool_result", "tool_use_id": "1"}])]}, "tool_result"),
        ({"messages": [user([result("1", [IMAGE])])]}, "'image'"),
        ({"messages": [user("Hi"), assistant([CALL])]}, "continued"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "role"),
        ({"tools": [SEARCH, TOOL], "tool_choice": {"type": "tool", "name": "web_search"}}, "'web_search_20250305'"),
        ({"tools": [SEARCH], "tool_choice": {"type": "any"}}, "'web_search_20250305'"),
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
async def test_what_cannot_be_done_is_refused_by_name(client: Http, mesh: FakeMesh, changes: Json, named: str) -> None:
    response = await client.post(MESSAGES, json=MESSAGE | changes)
    body = response.json()
    assert (response.status_code, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error")
    assert named in body["error"]["message"], body
    assert not mesh.specs


async def test_what_is_ignored_is_accepted(client: Http, mesh: FakeMesh) -> None:
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
    client: Http, method: str, path: str, status: int, kind: str
) -> None:
    """From whichever layer; all other paths have OpenAI's."""
    response = await client.request(method, path, content=b"{}")
    body = response.json()
    assert (response.status_code, body["type"], body["error"]["type"]) == (status, "error", kind)
    assert body["request_id"] == response.headers["x-request-id"]
    assert set((await client.get("/v1/messagesx")).json()) == {"error"}


@pytest.mark.parametrize("path", [MESSAGES, CHATS])
async def test_keys_are_taken_from_either_header(make_app: MakeApp, path: str) -> None:
    """On every path; a bearer key goes first."""
    app = make_app(api_keys=(ApiKey("right"),))
    async with connect(app) as client:
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


def built(events: list[Json]) -> Json:
    """The message that a client builds of events, which come in Anthropic's order."""
    message: Json = {}
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


async def test_a_stream_goes_on_from_any_event(thinking_text: ChatText, encode: Encode) -> None:
    """At its gateway and another, once it is over: what follows is what was not sent, to the last event."""
    tokens = [*encode(f"Hm.\n</think>\n\nSo: {WRITTEN}\n{WRITTEN} 😀"), 2]
    mesh = KeepingMesh(tokens, cached={0: 2})
    app = keeping_app(mesh, thinking_text)
    other = keeping_app(KeepingMesh(tokens, store=mesh.store), thinking_text, "g1")
    body = WITH_TOOL | {"stream": True}
    events = await Client(app, "POST", MESSAGES, body, {"X-Spotwise-Resumable": "true"}).named_events()
    message = built([event.data for event in events])
    kinds = [block["type"] for block in message["content"]]
    assert kinds == ["thinking", "text", "tool_use", "tool_use", "text"]
    assert len({event.id for event in events}) == len(events)
    for number, event in enumerate(events):
        client = Client((app, other)[number % 2], "POST", MESSAGES, body, {"Last-Event-ID": event.id})
        rest = await client.named_events()
        assert [each.data for each in rest] == [each.data for each in events[number + 1 :]], f"from event {number}"


@pytest.mark.parametrize("had", [1, 2, 3, 7, 9])
async def test_another_gateway_goes_on(thinking_text: ChatText, encode: Encode, had: int) -> None:
    """The gateway dies in the midst of a block; the client has the message as if nothing had been."""
    tokens = [*encode(f"Hm.\n</think>\n\nSo: {WRITTEN}"), 2]
    first = KeepingMesh(tokens, hang_at=len(tokens) - 8)
    body = WITH_TOOL | {"stream": True}
    client = Client(keeping_app(first, thinking_text), "POST", MESSAGES, body)
    events = [await client.event() for _ in range(had)]
    await first.saver.save_all()
    second = keeping_app(KeepingMesh(tokens, store=first.store), thinking_text, "g1")
    rest = await Client(second, "POST", MESSAGES, body, {"Last-Event-ID": events[-1].id}).named_events()
    message = built([event.data for event in [*events, *rest]])
    alone = await Client(keeping_app(KeepingMesh(tokens), thinking_text), "POST", MESSAGES, body).named_events()
    undisturbed = built([event.data for event in alone])
    for each in (message, undisturbed):
        each["content"] = [{**block, "id": ""} for block in each["content"]]
    for name in ("content", "stop_reason", "usage"):
        assert message[name] == undisturbed[name]
    await client.leave()


async def test_a_kept_message_is_told_whole(thinking_text: ChatText, encode: Encode) -> None:
    """`GET /v1/requests/{id}` has Anthropic's object; the stream there is Anthropic's, too."""
    mesh = KeepingMesh([*encode(f"Hm.\n</think>\n\nSo: {WRITTEN}"), 2])
    app = keeping_app(mesh, thinking_text)
    body = WITH_TOOL | {"stream": True}
    events = await Client(app, "POST", MESSAGES, body, {"Idempotency-Key": "a"}).named_events()
    message = built([event.data for event in events])
    path = f"/v1/requests/{message['id']}"
    state = await Client(app, "GET", path).answer()
    assert (state["endpoint"], state["state"], state["response"]) == ("messages", "finished", message)
    again = await Client(app, "GET", path, headers={"Accept": "text/event-stream"}).named_events()
    assert [event.data for event in again] == [event.data for event in events]
