"""Streams and clients: events, their order, failures on the way, clients that leave."""

from __future__ import annotations

import asyncio
import json

import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message

from spotwise.http.errors import GenerationError
from tests.unit.gateway.apps import Encode, Http, Json, MakeApp, metric
from tests.unit.gateway.fake_mesh import CHAT, CHATS, COMPLETION, COMPLETIONS, FakeMesh
from tests.unit.gateway.keeping_mesh import Client


def events_of(body: str) -> list[Json]:
    """Parse a stream; it must end with `[DONE]`."""
    parts = body.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


async def stream(client: Http, path: str, body: Json) -> list[Json]:
    response = await client.post(path, json=body | {"stream": True})
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    events = events_of(response.text)
    assert {event["id"] for event in events} == {response.headers["x-request-id"]}
    return events


async def test_chat_stream(client: Http, mesh: FakeMesh) -> None:
    events = await stream(client, CHATS, CHAT)
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert all("usage" not in event for event in events)
    choices = [event["choices"][0] for event in events]
    assert choices[0] == {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "Hello, world!"
    assert len(choices) == len(mesh.reply) + 1
    assert set(choices[1]) == {"index", "delta", "logprobs", "finish_reason"}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert choices[-1]["delta"] == {}


async def test_completion_stream(client: Http) -> None:
    events = await stream(client, COMPLETIONS, COMPLETION)
    choices = [event["choices"][0] for event in events]
    assert "".join(choice["text"] for choice in choices) == "Hello, world!"
    assert choices[0] == {"index": 0, "text": choices[0]["text"], "logprobs": None, "finish_reason": None}
    assert choices[-1] == {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop", "stop_reason": None}


@pytest.mark.parametrize(("path", "body"), [(CHATS, CHAT), (COMPLETIONS, COMPLETION)])
async def test_usage_ends_the_stream_on_request(client: Http, mesh: FakeMesh, path: str, body: Json) -> None:
    """One last event without choices; in all others usage is null."""
    mesh.cached = {0: 16}
    events = await stream(client, path, body | {"n": 2, "stream_options": {"include_usage": True}})
    prompt_tokens = len(next(iter(mesh.specs.values())).prompt_token_ids)
    output_tokens = 2 * len(mesh.reply)
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "prompt_tokens_details": {"cached_tokens": 16},
    }
    assert all(event["usage"] is None for event in events[:-1])


async def test_choices_are_interleaved(client: Http, mesh: FakeMesh, encode: Encode) -> None:
    """Choices run at the same time; each event carries its choice's index."""
    words = {0: "the quick brown fox", 1: "stop strings span", 2: "emoji 😀 everywhere"}
    mesh.replies = {index: [*encode(text), 2] for index, text in words.items()}
    events = await stream(client, COMPLETIONS, COMPLETION | {"n": 3})
    texts = dict.fromkeys(words, "")
    for event in events:
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == words
    assert {event["choices"][0]["index"] for event in events[:3]} == {0, 1, 2}


async def test_stop_strings_in_streams(client: Http, mesh: FakeMesh, encode: Encode) -> None:
    """No part of the stop string is ever shown; the mesh's work is cancelled; usage counts what was needed."""
    mesh.reply = [*encode("stop strings span token borders, the quick brown fox"), 2]
    body = COMPLETION | {"stop": "span token", "stream_options": {"include_usage": True}, "max_tokens": 60}
    events = await stream(client, COMPLETIONS, body)
    choices = [event["choices"][0] for event in events[:-1]]
    assert "".join(choice["text"] for choice in choices) == "stop strings "
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", "span token")
    assert mesh.cancelled == list(mesh.specs)
    assert events[-1]["usage"]["completion_tokens"] == mesh.tokens_sent[events[0]["id"]]


async def test_logprobs_in_streams(client: Http, mesh: FakeMesh) -> None:
    """Every token's entry comes once, with the event of the token; echo's come first."""
    events = await stream(client, CHATS, CHAT | {"logprobs": True, "top_logprobs": 1})
    entries = [entry for event in events[1:] for entry in event["choices"][0]["logprobs"]["content"]]
    assert "".join(entry["token"] for entry in entries) == "Hello, world!<|im_end|>"
    mesh.specs.clear()
    body = COMPLETION | {"prompt": "you", "logprobs": 0, "echo": True, "return_token_ids": True}
    events = await stream(client, COMPLETIONS, body)
    tokens = [token for event in events for token in event["choices"][0]["logprobs"]["tokens"]]
    assert "".join(tokens) == "<s>youHello, world!<|im_end|>"
    assert events[0]["choices"][0]["prompt_token_ids"] == list(mesh.spec.prompt_token_ids)
    assert [token_id for event in events for token_id in event["choices"][0]["token_ids"]] == list(mesh.reply)


async def test_tokens_that_came_together_are_one_event(client: Http, mesh: FakeMesh) -> None:
    mesh.batch_tokens = 100
    events = await stream(client, COMPLETIONS, COMPLETION)
    assert [event["choices"][0]["text"] for event in events] == ["Hello, world!"]


@pytest.mark.parametrize("error", [GenerationError(503, "worker_lost", "Gone."), RuntimeError("secret")])
async def test_failure_in_mid_stream(
    client: Http, mesh: FakeMesh, registry: CollectorRegistry, error: Exception
) -> None:
    """An error event, then the end; the other choices are cancelled, and no internals are shown."""
    mesh.fail_at, mesh.fail_index, mesh.error = 2, 1, error
    mesh.hang_at = 3
    response = await client.post(CHATS, json=CHAT | {"n": 2, "stream": True})
    events = events_of(response.text)
    assert response.status_code == 200
    assert events[-1]["error"]["code"] == ("worker_lost" if isinstance(error, GenerationError) else "internal_error")
    assert "secret" not in response.text
    assert not mesh.open
    assert len(mesh.cancelled) == 2
    assert metric(registry, "vllm:request_success_total", finished_reason="abort") == 1


async def test_events_are_sent_as_tokens_come(make_app: MakeApp, mesh: FakeMesh) -> None:
    mesh.hang_at = 1
    client = Client(make_app(), "POST", CHATS, CHAT | {"stream": True})
    assert '"role":"assistant"' in str(await client.part())
    assert '"content":"H' in str(await client.part())
    assert mesh.open
    await client.leave()


async def test_a_stream_begins_when_the_mesh_accepts(make_app: MakeApp, mesh: FakeMesh) -> None:
    """An item without tokens opens the stream before the first token is there; errors are then events."""
    mesh.announces, mesh.hang_at = True, 0
    app = make_app()
    client = Client(app, "POST", CHATS, CHAT | {"stream": True})
    assert '"role":"assistant"' in str(await client.part())
    await client.leave()
    mesh.hang_at, mesh.fail_at = None, 0
    client = Client(app, "POST", COMPLETIONS, COMPLETION | {"stream": True})
    error, _done = await client.events()
    assert error.data is not None and error.data["error"]["code"] == "mesh_full"
    await client.leave()


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("hang_at", [0, 2])
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_leaves_cancels_the_work(
    make_app: MakeApp, mesh: FakeMesh, registry: CollectorRegistry, streamed: bool, hang_at: int, n: int
) -> None:
    """Streamed or not, before the first token or later: every generator is closed, nothing stays in the books."""
    mesh.hang_at = hang_at
    client = Client(make_app(), "POST", COMPLETIONS, COMPLETION | {"stream": streamed, "n": n})
    for _ in range(n):
        await asyncio.wait_for(mesh.hung.get(), 10)
    await client.leave()
    assert not mesh.open
    assert sorted(mesh.cancelled) == sorted(mesh.specs)
    for gauge in ("running", "waiting"):
        assert metric(registry, f"vllm:num_requests_{gauge}") == 0
    assert metric(registry, "vllm:request_success_total", finished_reason="abort") == n


async def test_a_client_that_leaves_while_it_sends(make_app: MakeApp, mesh: FakeMesh) -> None:
    """An unfinished body is no error of ours."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": COMPLETIONS, "query_string": b"", "headers": []}
    await make_app()(scope, receive, send)
    assert not sent
    assert not mesh.specs


async def test_server_shutdown_closes_the_generators(make_app: MakeApp, mesh: FakeMesh) -> None:
    mesh.hang_at = 1
    client = Client(make_app(), "POST", COMPLETIONS, COMPLETION | {"stream": True, "n": 2})
    await client.part()
    client.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await client.task
    assert not mesh.open
