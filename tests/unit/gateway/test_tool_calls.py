"""Conversations with earlier tool calls: each template gets the form it is written for, and none drops a call."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from spotwise.gateway.generate.api_options import ApiOptions
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.routes.app import create_app
from spotwise.text.chat_text import ChatText
from tests.unit.gateway.access import open_to
from tests.unit.gateway.fake_mesh import CHAT, MODEL, FakeMesh

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


def conversation(**assistant: Any) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", **assistant},
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain."},
    ]


@pytest.fixture
def chat_with(
    model_dir: Path, tmp_path: Path, mesh: FakeMesh, registry: CollectorRegistry
) -> Callable[[str], tuple[Starlette, ChatText]]:
    """Return a maker of apps over a model with the given chat template."""

    def make(template: str) -> tuple[Starlette, ChatText]:
        folder = shutil.copytree(model_dir, tmp_path / "model")
        (folder / "chat_template.jinja").write_text(template)
        text = ChatText.load(folder)
        return create_app(mesh, text, ApiOptions(MODEL), GatewayMetrics(registry, MODEL), open_to()), text

    return make


async def post_chat(app: Starlette, messages: list[dict[str, Any]]) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        return await client.post("/v1/chat/completions", json=CHAT | {"messages": messages})


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
async def test_a_call_without_content_is_rendered(
    chat_with: Callable[[str], tuple[Starlette, ChatText]], mesh: FakeMesh, template: str
) -> None:
    """The content is null, absent or empty to the client.

    To the template it is a value that renders the call, never the word None.
    """
    app, text = chat_with(template)
    for absent in ({"content": None}, {}, {"content": ""}):
        response = await post_chat(app, conversation(tool_calls=[CALL], **absent))
        assert response.status_code == 200, response.text
        rendered = text.decode(mesh.spec.prompt_token_ids)
        assert rendered.startswith('user:Weather?;assistant:[get_weather {"city": "Paris"}];tool:Rain.;')
        mesh.specs.clear()


async def test_content_beside_calls_is_rendered(
    chat_with: Callable[[str], tuple[Starlette, ChatText]], mesh: FakeMesh
) -> None:
    app, text = chat_with(TEMPLATES["takes what there is"])
    assert (await post_chat(app, conversation(content="Let me see.", tool_calls=[CALL, CALL]))).status_code == 200
    call = '[get_weather {"city": "Paris"}]'
    assert f"assistant:Let me see.{call}{call};" in text.decode(mesh.spec.prompt_token_ids)


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
    chat_with: Callable[[str], tuple[Starlette, ChatText]],
    mesh: FakeMesh,
    template: str,
    assistant: dict[str, Any],
    said: str,
) -> None:
    """Each call and what it returned, though the function's name appears elsewhere in the conversation."""
    app, text = chat_with(template)
    messages = [{"role": "system", "content": "You have get_weather."}, *conversation(**assistant)[1:]]
    assert (await post_chat(app, messages)).status_code == 200
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    assert text.decode(mesh.spec.prompt_token_ids, skip_special_tokens=False) == (
        f"system:You have get_weather.;assistant:{said}{call};user:<tool_response>\nRain.\n</tool_response>;"
    )


async def test_a_template_that_refuses_the_messages_is_an_error_with_its_reason(
    chat_with: Callable[[str], tuple[Starlette, ChatText]],
) -> None:
    app, _ = chat_with("{% if messages[1].role == 'assistant' %}{{ raise_exception('one turn at a time') }}{% endif %}")
    response = await post_chat(app, conversation(content=None, tool_calls=[CALL, CALL]))
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "chat_template_error")
    assert "one turn at a time" in error["message"]


async def test_no_calls_are_no_calls(chat_with: Callable[[str], tuple[Starlette, ChatText]], mesh: FakeMesh) -> None:
    """An empty list, or null, as clients send back what they got, reaches no template."""
    app, text = chat_with(TEMPLATES["looks for the key"])
    nothing: tuple[Any, ...] = ([], None)
    for none in nothing:
        assert (
            await post_chat(app, conversation(content="Rain.", tool_calls=none, function_call=None))
        ).status_code == 200
        assert "assistant:Rain.;" in text.decode(mesh.spec.prompt_token_ids)
        mesh.specs.clear()


@pytest.mark.parametrize(
    ("call", "param"),
    [
        ({"id": "1", "type": "function"}, "messages.1.tool_calls.0.function"),
        ({"id": "1", "type": "custom", "custom": {"name": "x", "input": ""}}, "messages.1.tool_calls.0.function"),
        ({"function": {"arguments": "{}"}}, "messages.1.tool_calls.0.function.name"),
        ({"function": {"name": 5}}, "messages.1.tool_calls.0.function.name"),
        ({"function": {"name": "f", "arguments": 5}}, "messages.1.tool_calls.0.function.arguments"),
        ("f", "messages.1.tool_calls.0"),
    ],
)
async def test_malformed_calls_are_named(client: httpx.AsyncClient, call: Any, param: str) -> None:
    messages = conversation(content=None, tool_calls=[call])
    response = await client.post("/v1/chat/completions", json=CHAT | {"messages": messages})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [("", "{}"), ("{not json", '"{not json"'), ({"a": None}, '{"a": null}'), ('{"a": null}', '{"a": null}')],
)
async def test_arguments_are_objects_to_the_template(
    chat_with: Callable[[str], tuple[Starlette, ChatText]], mesh: FakeMesh, arguments: Any, shown: str
) -> None:
    """Arguments that are no JSON stay text."""
    app, text = chat_with(TEMPLATES["takes what there is"])
    call = {"function": {"name": "f", "arguments": arguments}}
    assert (await post_chat(app, conversation(content=None, tool_calls=[call]))).status_code == 200
    assert f"[f {shown}]" in text.decode(mesh.spec.prompt_token_ids)
