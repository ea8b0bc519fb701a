"""JSON that a model's bound of tokens cut off says so, in whole answers and streams; whole JSON, and text, do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from spotwise.gateway.generate.choice import WrittenJson
from spotwise.text.message_reader import MessagePart
from tests.unit.gateway.fake_mesh import CHAT, COMPLETION, FakeMesh

Encode = Callable[[str], list[int]]

CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
JSON = {"response_format": {"type": "json_object"}}
CUT = {"reason": "max_output_tokens"}
#: More digits than Python makes an integer of, and half of a surrogate pair.
ODD = '{"a": ' + 5000 * "7" + ', "b": "\\ud800"}'


async def last_choice(client: httpx.AsyncClient, path: str, body: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    """Return the choice as it ends."""
    response = await client.post(path, json=body | {"stream": stream})
    assert response.status_code == 200, response.text
    if not stream:
        body = response.json()
    else:
        *_, last = (line[6:] for line in response.text.splitlines() if line.startswith("data: {"))
        body = json.loads(last)
    choice: dict[str, Any] = body["choices"][0]
    return choice


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHATS, COMPLETIONS])
@pytest.mark.parametrize(
    ("asked", "written", "is_cut"),
    [
        (JSON, '{"city": "P', True),
        (JSON, '{"city": "Pest", "degrees": 2', True),
        (JSON, "", True),
        (JSON, '{"city": "Pest"}', False),
        ({"structured_outputs": {"json": {"type": "object"}}}, '{"city', True),
        ({"structured_outputs": {"json_object": True}}, '{"city', True),
        ({"structured_outputs": {"regex": ".*"}}, '{"city', False),
        ({"response_format": {"type": "text"}}, '{"city', False),
        ({}, '{"city', False),
    ],
)
async def test_a_cut_answer_says_so(
    client: httpx.AsyncClient,
    mesh: FakeMesh,
    encode: Encode,
    path: str,
    stream: bool,
    asked: dict[str, Any],
    written: str,
    is_cut: bool,
) -> None:
    """At the bound, where the value lacks its end; one that ends there is whole."""
    mesh.reply = encode(written)
    body = CHAT if path == CHATS else COMPLETION
    choice = await last_choice(client, path, body | asked, stream=stream)
    assert choice["finish_reason"] == "length"
    assert choice.get("incomplete_details") == (CUT if is_cut else None)


@pytest.mark.parametrize("path", [CHATS, COMPLETIONS])
async def test_an_echo_is_no_part_of_the_value(
    client: httpx.AsyncClient, mesh: FakeMesh, encode: Encode, path: str
) -> None:
    """What the model wrote is the value, and not the prompt before it."""
    mesh.reply = encode('{"a": 1}')
    body = CHAT if path == CHATS else COMPLETION | {"echo": True}
    choice = await last_choice(client, path, body | JSON, stream=False)
    assert choice["finish_reason"] == "length" and "incomplete_details" not in choice


def test_the_value_may_be_odd() -> None:
    """Numbers of any size, and half of a surrogate pair, are JSON; so is no answer while its calls are what is wanted."""
    written = WrittenJson(is_answer=True)
    assert written.is_open
    written.add([MessagePart("reasoning", "{"), MessagePart("content", ODD[:4000])])
    assert written.is_open
    written.add([MessagePart("content", ODD[4000:])])
    assert not written.is_open
    calls = WrittenJson(is_answer=False)
    calls.add([MessagePart("content", "It is")])
    assert not calls.is_open


def test_a_deeply_nested_value_is_open() -> None:
    """Deeper than Python's parser goes; such an answer ends at its bound, and in no error."""
    written = WrittenJson(is_answer=True)
    written.add([MessagePart("content", 100_000 * "[")])
    assert written.is_open
