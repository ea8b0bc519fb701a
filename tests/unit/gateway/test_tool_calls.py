"""Conversations with earlier tool calls: each template gets the form it is written for, and none drops a call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from spotwise.text.chat_text import ChatText
from tests.unit.gateway.apps import Json, app_over, connect, with_template
from tests.unit.gateway.fake_mesh import CHAT, CHATS, FakeMesh

CALLS = "{% for call in m.tool_calls %}[{{ call.function.name }} {{ call.function.arguments | tojson }}]{% endfor %}"
#: Templates as models have them, each written for another spelling of no content.
TEMPLATES = {
    "takes what there is": "{% for m in messages %}{{ m.role }}:{{ m.content }}" + CALLS + ";{% endfor %}",
    "adds it to a text": "{% for m in messages %}{{ m.role + ':' + m['content'] }}" + CALLS + ";{% endfor %}",
    "looks for the key": (
        "{% for m in messages %}{{ m.role }}:{% if 'tool_calls' in m %}"
        + "{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
        + CALLS
        + "{% else %}{{ m.content }}{% endif %};{% endfor %}"
    ),
}
FUNCTION = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
CALL = {"id": "call_1", "type": "function", "function": FUNCTION}


def conversation(**assistant: Any) -> list[Json]:
    return [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", **assistant},
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain."},
    ]


#: Posts messages to a model with a chat template; returns the prompt that the model got.
Chat = Callable[[str, list[Json]], Awaitable[str]]


@pytest.fixture
def prompt_of(model_dir: Path, tmp_path: Path, mesh: FakeMesh) -> Chat:
    texts: dict[str, ChatText] = {}

    async def chat(template: str, messages: list[Json]) -> str:
        text = texts.get(template) or texts.setdefault(template, with_template(model_dir, tmp_path / "model", template))
        mesh.specs.clear()
        async with connect(app_over(mesh, text)) as client:
            response = await client.post(CHATS, json=CHAT | {"messages": messages})
        assert response.status_code == 200, response.text
        return text.decode(mesh.spec.prompt_token_ids, skip_special_tokens=False)

    return chat


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
async def test_a_call_without_content_is_rendered(prompt_of: Chat, template: str) -> None:
    """Content that is null, absent or empty to the client is to the template a value that renders the call, never `None`."""
    for absent in ({"content": None}, {}, {"content": ""}):
        rendered = await prompt_of(template, conversation(tool_calls=[CALL], **absent))
        assert rendered.startswith('user:Weather?;assistant:[get_weather {"city": "Paris"}];tool:Rain.;')


async def test_content_beside_calls_is_rendered(prompt_of: Chat) -> None:
    messages = conversation(content="Let me see.", tool_calls=[CALL, CALL])
    call = '[get_weather {"city": "Paris"}]'
    assert f"assistant:Let me see.{call}{call};" in await prompt_of(TEMPLATES["takes what there is"], messages)


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m.role }}:{% if m.content is none %}"
        + CALLS
        + "{% endif %}{{ m.content }};{% endfor %}",
        "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}",
        "{% for m in messages %}{% if m.tool_calls %}{{ raise_exception('no calls') }}{% endif %}"
        "{{ m.role }}:{{ m.content }};{% endfor %}",
    ],
    ids=["wants null", "knows none", "refuses them"],
)
@pytest.mark.parametrize(
    ("assistant", "said"),
    [
        ({"content": None, "tool_calls": [CALL]}, ""),
        ({"content": "Let me see.", "tool_calls": [CALL]}, "Let me see.\n"),
        ({"content": None, "function_call": FUNCTION}, ""),
    ],
)
async def test_calls_that_the_template_would_drop_are_text(
    prompt_of: Chat, template: str, assistant: Json, said: str
) -> None:
    """Each call and what it returned, though the function's name appears elsewhere in the conversation."""
    messages = [{"role": "system", "content": "You have get_weather."}, *conversation(**assistant)[1:]]
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    assert await prompt_of(template, messages) == (
        f"system:You have get_weather.;assistant:{said}{call};user:<tool_response>\nRain.\n</tool_response>;"
    )


async def test_a_template_that_refuses_the_messages_is_an_error_with_its_reason(
    mesh: FakeMesh, model_dir: Path, tmp_path: Path
) -> None:
    template = "{% if messages[1].role == 'assistant' %}{{ raise_exception('one turn at a time') }}{% endif %}"
    async with connect(app_over(mesh, with_template(model_dir, tmp_path / "model", template))) as client:
        response = await client.post(CHATS, json=CHAT | {"messages": conversation(content=None, tool_calls=[CALL])})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "chat_template_error")
    assert "one turn at a time" in error["message"]


async def test_no_calls_are_no_calls(prompt_of: Chat) -> None:
    """An empty list, or null, as clients send back what they got, reaches no template."""
    nothing: tuple[Any, ...] = ([], None)
    for none in nothing:
        messages = conversation(content="Rain.", tool_calls=none, function_call=None)
        assert "assistant:Rain.;" in await prompt_of(TEMPLATES["looks for the key"], messages)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [("", "{}"), ("{not json", '"{not json"'), ({"a": None}, '{"a": null}'), ('{"a": null}', '{"a": null}')],
)
async def test_arguments_are_objects_to_the_template(prompt_of: Chat, arguments: Any, shown: str) -> None:
    """Arguments that are no JSON stay text."""
    messages = conversation(content=None, tool_calls=[{"function": {"name": "f", "arguments": arguments}}])
    assert f"[f {shown}]" in await prompt_of(TEMPLATES["takes what there is"], messages)
