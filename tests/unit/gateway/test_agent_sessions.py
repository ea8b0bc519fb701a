"""Coding agents over HTTP: whole sessions of theirs, in which the model calls a tool, reads what it returned, and answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotwise.text.chat_text import ChatText
from tests.unit.gateway.agent_transcripts import (
    CLAUDE_HEADERS,
    CLAUDE_WARNING,
    CODEX_REASONING,
    CODEX_TOOLS,
    CODEX_WARNING,
    EPHEMERAL,
    chat_request,
    claude_request,
    codex_request,
)
from tests.unit.gateway.apps import Encode, Http, Json, app_over, connect, data_of, with_template
from tests.unit.gateway.fake_mesh import CHAT, CHATS, RESPONSE, FakeMesh

END = 2


@pytest.fixture(scope="module")
def text(roomy_text: ChatText) -> ChatText:
    return roomy_text


def written(name: str, arguments: Json) -> str:
    """A call as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def events_of(client: Http, path: str, body: Json, **options: Any) -> Any:
    """The response, and its events' data."""
    response = await client.post(path, json=body, **options)
    assert response.status_code == 200, response.text
    return response, data_of(response.text)


def prompt_of(mesh: FakeMesh, text: ChatText) -> str:
    """The prompt of the only request since the last time."""
    prompt = text.decode(mesh.spec.prompt_token_ids, skip_special_tokens=False)
    mesh.specs.clear()
    return prompt


PATCH = {"input": '*** Begin Patch\n"é"\n*** End Patch'}
LISTING: Json = {"command": ["ls", "-l"], "timeout_ms": 10}


@pytest.mark.parametrize(
    ("name", "arguments", "item"),
    [
        ("exec", {"cmd": "ls"}, {"type": "function_call", "name": "exec"}),
        ("spawn", {"cmd": "ls"}, {"type": "function_call", "name": "spawn", "namespace": "agents_v1"}),
        ("apply_patch", PATCH, {"type": "custom_tool_call", "name": "apply_patch", **PATCH}),
        ("local_shell", LISTING, {"type": "local_shell_call", "action": {"type": "exec", "env": {}, **LISTING}}),
    ],
    ids=["function", "namespace", "custom", "local_shell"],
)
async def test_a_session_of_codex(
    client: Http, mesh: FakeMesh, text: ChatText, encode: Encode, name: str, arguments: Json, item: Json
) -> None:
    """Each kind of tool is called as the client expects it; its item goes back, with reasoning of another server's."""
    mesh.reply = [*encode(written(name, arguments)), END]
    response, events = await events_of(client, "/v1/responses", codex_request())
    assert response.headers["x-spotwise-warning"] == CODEX_WARNING
    prompt = prompt_of(mesh, text)
    assert all(told in prompt for told in ('"exec"', '"spawn"', '"apply_patch"', "Begin Patch", '"local_shell"'))
    assert "web_search" not in prompt
    (call,) = events[-1]["response"]["output"]
    assert events[-1]["type"] == "response.completed"
    assert call.items() >= item.items(), call
    (done,) = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == call

    mesh.reply = [*encode("Two files."), END]
    kind = "custom_tool_call_output" if name == "apply_patch" else "function_call_output"
    result = {"type": kind, "call_id": call["call_id"], "output": "a.py b.py"}
    response, events = await events_of(client, "/v1/responses", codex_request(CODEX_REASONING, call, result))
    prompt = prompt_of(mesh, text)
    assert f'"name": "{name}"' in prompt and "a.py b.py" in prompt and "gAAAA" not in prompt
    (message,) = events[-1]["response"]["output"]
    assert message["content"][0]["text"] == "Two files."
    again = codex_request(CODEX_REASONING, call, result, message, {"role": "user", "content": "Thanks"})
    await events_of(client, "/v1/responses", again)


async def test_the_text_of_a_custom_call_comes_as_events(client: Http, mesh: FakeMesh, encode: Encode) -> None:
    """What a client puts together of them is the item's input; so it is of a call that was cut."""
    mesh.reply = [*encode(written("apply_patch", {"input": "a\nb"})), END]
    _, events = await events_of(client, "/v1/responses", codex_request())
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    (done,) = [event for event in events if event["type"] == "response.custom_tool_call_input.done"]
    assert ("".join(deltas), done["input"]) == ("a\nb", "a\nb")
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    whole = (await client.post("/v1/responses", json=codex_request(stream=False))).json()
    assert [{**item, "id": "", "call_id": ""} for item in whole["output"]] == [
        {**item, "id": "", "call_id": ""} for item in events[-1]["response"]["output"]
    ]


async def test_functions_of_one_name_have_their_namespaces(
    client: Http, mesh: FakeMesh, text: ChatText, encode: Encode
) -> None:
    namespaces: list[Json] = [CODEX_TOOLS[1], {**CODEX_TOOLS[1], "name": "agents_v2"}]
    mesh.reply = [*encode(written("agents_v2.spawn", {"cmd": "x"})), END]
    _, events = await events_of(client, "/v1/responses", codex_request(tools=namespaces))
    (call,) = events[-1]["response"]["output"]
    assert (call["name"], call["namespace"]) == ("spawn", "agents_v2")
    mesh.specs.clear()
    await events_of(client, "/v1/responses", codex_request(call, tools=namespaces))
    assert '"name": "agents_v2.spawn", "arguments"' in prompt_of(mesh, text)


@pytest.mark.parametrize("name", ["exec", "apply_patch"])
async def test_a_call_that_is_asked_for_is_made(client: Http, mesh: FakeMesh, name: str) -> None:
    kind = "custom" if name == "apply_patch" else "function"
    await client.post("/v1/responses", json=codex_request(tool_choice={"type": kind, "name": name}))
    grammar = mesh.spec.sampling.grammar
    assert name in grammar and "local_shell" not in grammar


async def test_a_session_of_claude_code(client: Http, mesh: FakeMesh, text: ChatText, encode: Encode) -> None:
    """Tokens are counted, a tool is called, its result comes as blocks, and reasoning of other models' is left out."""
    headers: Json = {"headers": CLAUDE_HEADERS, "params": {"beta": "true"}}
    mesh.reply = [*encode("So: " + written("Bash", {"command": "ls"})), END]
    asked = claude_request()
    counted = {name: value for name, value in asked.items() if name not in ("max_tokens", "stream")}
    count = (await client.post("/v1/messages/count_tokens", json=counted, **headers)).json()["input_tokens"]
    response, events = await events_of(client, "/v1/messages", asked, **headers)
    assert response.headers["x-spotwise-warning"] == CLAUDE_WARNING
    assert events[0]["message"]["usage"]["input_tokens"] == count == len(mesh.spec.prompt_token_ids)
    prompt = prompt_of(mesh, text)
    assert '"Bash"' in prompt and "web_search" not in prompt
    (start,) = [e["content_block"] for e in events if e["type"] == "content_block_start" and e["index"] == 1]
    assert (start["type"], start["name"], events[-2]["delta"]["stop_reason"]) == ("tool_use", "Bash", "tool_use")

    mesh.reply = [*encode("Two files."), END]
    call = {"type": "tool_use", "id": start["id"], "name": "Bash", "input": {"command": "ls"}}
    thoughts = [
        {"type": "thinking", "thinking": "I look.", "signature": "EuYB"},
        {"type": "redacted_thinking", "data": "EmwK"},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
    ]
    found = {"type": "search_result", "source": "b.md", "title": "B", "content": [{"type": "text", "text": "More."}]}
    result = [{"type": "text", "text": "a.py b.py"}, {"type": "tool_reference", "tool_name": "Later"}, found]
    returned = {"tool_use_id": start["id"], "type": "tool_result", "content": result, **EPHEMERAL}
    reminder = {"type": "text", "text": "<system-reminder>Go on.</system-reminder>"}
    again = claude_request(
        {"role": "assistant", "content": [*thoughts, {"type": "text", "text": "So:"}, call]},
        {"role": "user", "content": [returned, reminder]},
        thinking={"type": "adaptive", "display": "omitted"},
    )
    response, events = await events_of(client, "/v1/messages", again, **headers)
    for block in ("messages.redacted_thinking", "messages.server_tool_use", "messages.web_search_tool_result"):
        assert block in response.headers["x-spotwise-warning"]
    prompt = prompt_of(mesh, text)
    assert all(part in prompt for part in ('"command": "ls"', "a.py b.py", "Later can be called", "B (b.md)\nMore."))
    assert events[-2]["delta"]["stop_reason"] == "end_turn"


async def test_a_session_of_a_chat_client(client: Http, mesh: FakeMesh, text: ChatText, encode: Encode) -> None:
    mesh.reply = [*encode(written("run", {"cmd": "ls"})), END]
    response, events = await events_of(client, CHATS, chat_request())
    assert response.headers["x-spotwise-warning"] == "ignored: reasoning_effort, verbosity"
    calls = [call for event in events for choice in event["choices"] for call in choice["delta"].get("tool_calls", ())]
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert (calls[0]["function"]["name"], json.loads(arguments)) == ("run", {"cmd": "ls"})
    mesh.specs.clear()
    mesh.reply = [*encode("Two files."), END]
    function = {"name": "run", "arguments": arguments}
    called = {"role": "assistant", "tool_calls": [{"id": calls[0]["id"], "type": "function", "function": function}]}
    result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "a.py b.py"}
    _, events = await events_of(client, CHATS, chat_request(called, result))
    assert "a.py b.py" in prompt_of(mesh, text)
    said = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    assert said == "Two files."


PLAIN = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
SWITCH = PLAIN + "{% generation %}{% if enable_thinking %}THINK{% endif %}{% endgeneration %}"
EFFORT = PLAIN + "{{ reasoning_effort | default('-') }}"
CHECKED = (
    EFFORT
    + "{% if reasoning_effort is defined and reasoning_effort not in ('low', 'high') %}{{ raise_exception('no') }}{% endif %}"
)
SAID = PLAIN + "{{ verbosity | default('-') }}"


@pytest.mark.parametrize(
    ("template", "wish", "end", "ignored"),
    [
        (PLAIN, {"reasoning_effort": "high"}, ";", ["reasoning_effort"]),
        (PLAIN, {"reasoning_effort": "none", "verbosity": "medium"}, ";", []),
        (SWITCH, {"reasoning_effort": "low"}, "THINK", []),
        (SWITCH, {"reasoning_effort": "none"}, ";", []),
        (SWITCH, {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}}, ";", []),
        (SWITCH, {"reasoning_effort": "ultra"}, ";", ["reasoning_effort"]),
        (EFFORT, {"reasoning_effort": "minimal"}, "minimal", []),
        (EFFORT, {}, "-", []),
        (CHECKED, {"reasoning_effort": "xhigh"}, "high", []),
        (CHECKED, {"reasoning_effort": "minimal"}, "low", []),
        (SAID, {"verbosity": "low"}, "low", []),
        (PLAIN, {"verbosity": "low"}, ";", ["verbosity"]),
    ],
)
async def test_wishes_reach_the_template_that_knows_them(
    roomy_dir: Path, tmp_path: Path, mesh: FakeMesh, template: str, wish: Json, end: str, ignored: list[str]
) -> None:
    """By its own names, with the nearest value that it takes; what it does not know is ignored. Tokens are counted alike."""
    text = with_template(roomy_dir, tmp_path / "model", template)
    async with connect(app_over(mesh, text)) as client:
        response = await client.post(CHATS, json=CHAT | wish)
        assert response.status_code == 200, response.text
        assert response.headers.get("x-spotwise-warning") == (f"ignored: {', '.join(ignored)}" if ignored else None)
        assert text.decode(mesh.spec.prompt_token_ids).endswith(end)
        tokenized = (await client.post("/tokenize", json={"messages": CHAT["messages"]} | wish)).json()["tokens"]
        assert tuple(tokenized) == mesh.spec.prompt_token_ids
        mesh.specs.clear()
        own = {"reasoning": {"effort": wish.get("reasoning_effort")}, "text": {"verbosity": wish.get("verbosity")}}
        body = RESPONSE | {"chat_template_kwargs": wish.get("chat_template_kwargs")} | own
        assert (await client.post("/v1/responses", json=body)).status_code == 200
        assert mesh.spec.prompt_token_ids == tuple(tokenized)


@pytest.mark.parametrize(
    ("template", "wish", "end", "ignored"),
    [
        (SWITCH, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "THINK", None),
        (PLAIN, {"thinking": {"type": "disabled"}}, ";", None),
        (SWITCH, {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, ";", None),
        (SWITCH, {"output_config": {"effort": "high"}}, ";", "output_config.effort"),
        (SWITCH, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, "THINK", None),
        (EFFORT, {"output_config": {"effort": "max"}}, "max", None),
        (
            PLAIN,
            {"thinking": {"type": "enabled", "budget_tokens": 9}, "output_config": {"effort": "low"}},
            ";",
            "output_config.effort, thinking",
        ),
        (
            PLAIN + "{{ thinking_budget }}{% if thinking %}!{% endif %}",
            {"thinking": {"type": "enabled", "budget_tokens": 9}},
            "9!",
            None,
        ),
    ],
)
async def test_thinking_of_messages_reaches_the_template(
    roomy_dir: Path, tmp_path: Path, mesh: FakeMesh, template: str, wish: Json, end: str, ignored: str | None
) -> None:
    """`thinking` is the switch, and effort alone starts none."""
    text = with_template(roomy_dir, tmp_path / "model", template)
    async with connect(app_over(mesh, text)) as client:
        response = await client.post("/v1/messages", json=CHAT | {"max_tokens": 8} | wish)
    assert response.status_code == 200, response.text
    assert response.headers.get("x-spotwise-warning") == (ignored and f"ignored: {ignored}")
    assert text.decode(mesh.spec.prompt_token_ids).endswith(end)
