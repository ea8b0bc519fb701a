"""Log-probabilities of one answer have a bound: sequences times tokens times alternatives."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest
from starlette.applications import Starlette

from spotwise.gateway.generate.score_limits import ScoreRoom
from spotwise.http.errors import ApiError
from tests.contracts.waiting import until
from tests.unit.gateway.apps import Http, Json, MakeApp, connect
from tests.unit.gateway.fake_mesh import CHAT, CHATS, COMPLETION, COMPLETIONS, RESPONSE, FakeMesh

LOGPROBS = {"include": ["message.output_text.logprobs"]}
SCORED = {"logprobs": True, "top_logprobs": 4}
#: Of a server that gives 1,000: what has one more, or many more, and what its client may lower.
REFUSED: dict[str, tuple[str, Json, tuple[str, ...]]] = {
    "an echo of many prompts": (
        "completions",
        COMPLETION | {"prompt": [[5] * 10] * 10, "echo": True, "max_tokens": 0, "logprobs": 10},
        ("the number of prompts", "the length of the prompt"),
    ),
    "choices that repeat their prompt": (
        "completions",
        COMPLETION | {"prompt": [5] * 12, "echo": True, "max_tokens": 1, "logprobs": 6, "n": 11},
        ("'n'", "the length of the prompt", "'max_tokens'"),
    ),
    "choices of a chat": ("chat/completions", CHAT | SCORED | {"n": 2, "max_tokens": 101}, ("'n'", "'max_tokens'")),
    "a chat by the newer name": (
        "chat/completions",
        CHAT | SCORED | {"max_completion_tokens": 201},
        ("'max_completion_tokens'",),
    ),
    "a response": (
        "responses",
        RESPONSE | LOGPROBS | {"top_logprobs": 4, "max_output_tokens": 201},
        ("'max_output_tokens'",),
    ),
    "scores of prompts": (
        "completions",
        COMPLETION | {"prompt": [[5] * 40] * 5, "prompt_logprobs": 5, "max_tokens": 1},
        ("the number of prompts", "the length of the prompt"),
    ),
    "a stream": ("chat/completions", CHAT | SCORED | {"max_tokens": 201, "stream": True}, ("'max_tokens'",)),
}


@pytest.fixture
def app(make_app: MakeApp) -> Starlette:
    return make_app(max_answer_logprobs=1000)


@pytest.fixture
async def client(app: Starlette) -> Any:
    async with connect(app) as opened:
        yield opened


@pytest.mark.parametrize("what", REFUSED)
async def test_more_is_refused_before_anything_is_computed(client: Http, mesh: FakeMesh, what: str) -> None:
    """By a 400 that says what is too much, and what to lower."""
    path, body, lower = REFUSED[what]
    answer = await client.post(f"/v1/{path}", json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["code"] == "too_many_logprobs"
    assert error["param"] in ("logprobs", "prompt_logprobs")
    assert "at most 1000" in error["message"]
    assert all(name in error["message"] for name in lower)
    assert not mesh.specs


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", CHAT | SCORED | {"n": 2, "max_tokens": 100}),
        ("chat/completions", CHAT | {"max_tokens": 200}),
        ("completions", COMPLETION | {"prompt": [[5] * 9] * 10, "echo": True, "max_tokens": 0, "logprobs": 10}),
        ("completions", COMPLETION | {"prompt": [[5] * 100] * 16, "n": 16, "echo": True, "max_tokens": 100}),
    ],
)
async def test_as_many_are_given(client: Http, path: str, body: Json) -> None:
    """Up to the bound; an answer without log-probabilities has none of it."""
    answer = await client.post(f"/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("choices", "tokens"), [(1, 200), (2, 100)])
async def test_without_a_bound_of_the_client_the_text_is_as_long_as_they_allow(
    client: Http, mesh: FakeMesh, choices: int, tokens: int
) -> None:
    """A chat that leaves `max_tokens` to the server is no mistake."""
    answer = await client.post(CHATS, json=CHAT | SCORED | {"n": choices})
    assert answer.status_code == 200
    assert {spec.stop.max_new_tokens for spec in mesh.specs.values()} == {tokens}


def test_answers_under_way_share_room() -> None:
    """A caller has half of it; small answers always find some, and what has ended leaves its own."""
    room = ScoreRoom(100_000)
    with ExitStack() as held:
        for _ in range(5):
            held.enter_context(room.taken("a", 100_000))  # of which 80,000 count
        with pytest.raises(ApiError) as refused, room.taken("a", 20_001):
            pass
        assert (refused.value.status, refused.value.code) == (503, "overloaded")
        held.enter_context(room.taken("a", 20_000))
        for scope in ("b", "c", "d", "e", "f"):
            held.enter_context(room.taken(scope, 100_000))
        with pytest.raises(ApiError), room.taken("g", 100_000):
            pass
    with ExitStack() as held:
        for scope in ("a", "b"):
            for _ in range(5):
                held.enter_context(room.taken(scope, 100_000))


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_finds_no_room_is_told(make_app: MakeApp, mesh: FakeMesh, stream: bool) -> None:
    """By a 503 before anything is generated; the next one after those that hold it is answered."""
    body = COMPLETION | {"prompt": [[5] * 200] * 12, "echo": True, "max_tokens": 0, "logprobs": 20, "stream": stream}
    app = make_app(max_answer_logprobs=51_000)
    mesh.hang_at = 0
    async with connect(app) as client:
        held = [asyncio.create_task(client.post(COMPLETIONS, json=body)) for _ in range(6)]
        for _ in range(6 * 12):
            await asyncio.wait_for(mesh.hung.get(), 30)
        answer = await client.post(COMPLETIONS, json=body)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "overloaded"
        assert "retry-after" in answer.headers
        assert len(mesh.open) == 6 * 12
        for each in held:
            each.cancel()
        await asyncio.wait(held)
        await until(lambda: not mesh.open)
        mesh.hang_at = None
        assert (await client.post(COMPLETIONS, json=body)).status_code == 200
