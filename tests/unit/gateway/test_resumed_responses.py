"""Streams of responses that go on elsewhere: the same events under the same numbers, none twice and none missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from spotwise.text.chat_text import ChatText
from tests.contracts.waiting import until
from tests.unit.gateway.fake_mesh import MODEL
from tests.unit.gateway.keeping_mesh import Client, KeepingMesh, keeping_app
from tests.unit.gateway.test_http_tools import FUNCTION, WRITTEN

Encode = Callable[[str], list[int]]
RESPONSES = "/v1/responses"
STREAM: dict[str, Any] = {"model": MODEL, "input": "Hi", "stream": True, "seed": 1}
RESUMABLE = {"X-Spotwise-Resumable": "true"}
BODIES: dict[str, tuple[dict[str, Any], str]] = {
    "text": (STREAM, "Hello 😀, world! 你好"),
    "stop string that is held back": (STREAM | {"stop": ["dog", "zz"]}, "the lazy 😀 fox jumps over the dog"),
    "calls": (
        STREAM | {"tools": [{"type": "function", **FUNCTION}], "include": ["message.output_text.logprobs"]},
        f"So 😀: {WRITTEN}\n{WRITTEN} done",
    ),
}


@pytest.fixture(scope="module")
def text(roomy_text: ChatText) -> ChatText:
    return roomy_text


@dataclass(frozen=True)
class Sent:
    """An event as it was sent."""

    id: str
    data: dict[str, Any]


async def events_of(client: Client, most: int | None = None) -> list[Sent]:
    """All events of a stream, or the first ones."""
    events: list[Sent] = []
    while most is None or len(events) < most:
        part = await client.part()
        if part is None:
            break
        lines = dict(line.split(": ", 1) for line in part.split("\n"))
        data = json.loads(lines["data"])
        assert lines["event"] == data["type"]
        events.append(Sent(lines.get("id", ""), data))
    return events


def told(events: list[Sent]) -> list[dict[str, Any]]:
    """What events say, but for the response's id and time."""
    ids = {event.data["response"]["id"] for event in events if "response" in event.data}
    (request_id,) = ids
    written = json.dumps([event.data for event in events]).replace(request_id, "resp")
    said: list[dict[str, Any]] = json.loads(written)
    for each in said:
        for name in ("item_id", "id", "call_id"):
            each.pop(name, None)
        for item in (each.get("item"), *each.get("response", {}).get("output", ())):
            for name in ("id", "call_id"):
                (item or {}).pop(name, None)
        each.get("response", {}).pop("created_at", None)
    return said


@pytest.mark.parametrize("name", BODIES)
async def test_any_event_is_a_place_to_go_on_from(name: str, text: ChatText, encode: Encode) -> None:
    """Every event has an id; after the end, from each: exactly the events after it."""
    body, said = BODIES[name]
    app = keeping_app(KeepingMesh([*encode(said), 2]), text)
    events = await events_of(Client(app, "POST", RESPONSES, body, RESUMABLE))
    assert [event.data["sequence_number"] for event in events] == list(range(len(events)))
    assert len({event.id for event in events}) == len(events)
    for number, event in enumerate(events):
        rest = await events_of(Client(app, "POST", RESPONSES, body, {"Last-Event-ID": event.id}))
        assert rest == events[number + 1 :], f"from event {number}"


@pytest.mark.parametrize("had", [1, 2, 3, 5, 6, 9])
@pytest.mark.parametrize("name", BODIES)
async def test_another_gateway_goes_on(name: str, had: int, text: ChatText, encode: Encode) -> None:
    """The gateway dies in the midst; together its client has what one gateway would have sent."""
    body, said = BODIES[name]
    tokens = [*encode(said), 2]
    undisturbed = await events_of(Client(keeping_app(KeepingMesh(tokens), text), "POST", RESPONSES, body))
    first = KeepingMesh(tokens, hang_at=len(tokens) - 1)
    client = Client(keeping_app(first, text), "POST", RESPONSES, body)
    events = await events_of(client, had)
    if had > 4:
        await first.saver.save_all()
    second = KeepingMesh(tokens, store=first.store)
    headers = {"Last-Event-ID": events[-1].id}
    rest = await events_of(Client(keeping_app(second, text, "g1"), "POST", RESPONSES, body, headers))
    assert told([*events, *rest]) == told(undisturbed)
    begun = [event.data["item"]["id"] for event in [*events, *rest] if event.data["type"].endswith("item.added")]
    assert begun == [item["id"] for item in rest[-1].data["response"]["output"]]
    await client.leave()


async def test_a_resumable_response_goes_on_without_its_client(text: ChatText, encode: Encode) -> None:
    """Its state at another gateway holds the whole response, and its events are there from any on."""
    body, said = BODIES["calls"]
    tokens = [*encode(said), 2]
    mesh = KeepingMesh(tokens, hang_at=6)
    client = Client(keeping_app(mesh, text), "POST", RESPONSES, body, RESUMABLE)
    events = await events_of(client, 4)
    await client.leave()
    mesh.go.set()
    await until(lambda: not mesh.open)
    other = keeping_app(KeepingMesh(tokens, store=mesh.store), text, "g1")
    path = f"/v1/requests/{events[0].data['response']['id']}"
    headers = {"Last-Event-ID": events[-1].id, "Accept": "text/event-stream"}
    rest = await events_of(Client(other, "GET", path, None, headers))
    assert [event.data["sequence_number"] for event in rest] == list(range(4, 4 + len(rest)))
    state = await Client(other, "GET", path).answer()
    assert state["state"] == "finished"
    assert state["response"] == rest[-1].data["response"]
