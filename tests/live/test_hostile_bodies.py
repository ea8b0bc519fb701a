"""Bodies that would stop a gateway: each is refused by name, a stream beside them continues, and memory stays bounded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import schemathesis
from schemathesis import GenerationMode

from tests.live.hostility import MEMORY_BYTES, limit_memory, memory_high_water_bytes, tell
from tests.live.mesh import MODEL, ONE_MIXED, LiveMesh
from tests.live.simulated_mesh import SimulatedMesh
from tests.live.steady_stream import Lap, SteadyStream, bearable_s, bearable_turn_s, calm_lap
from tests.openapi_checks import CONFIG, does_what_it_says

COMPLETIONS, CHATS, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
WORDS = "the quick brown fox jumps over the lazy dog. "


def nested(levels: int) -> Any:
    """A list in a list in a list."""
    value: Any = "deep"
    for _ in range(levels):
        value = [value]
    return value


def chat(*messages: Any, **others: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": list(messages), **others}


def user(content: str, **others: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **others}


def calling(arguments: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": arguments}}],
    }


def completion(**others: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "Hi", "max_tokens": 4, **others}


def echo(prompts: int, tokens: int, logprobs: int | None = 10, **others: Any) -> dict[str, Any]:
    """Prompts whose log-probabilities are the answer."""
    given = [[300 + (prompt + index) % 500 for index in range(tokens)] for prompt in range(prompts)]
    return completion(prompt=given, max_tokens=0, echo=True, logprobs=logprobs, **others)


#: Each below the 8 MiB that a body may have; built where it is used, as together they are large.
HOSTILE: dict[str, tuple[str, Any]] = {
    "many prompts": (COMPLETIONS, lambda: completion(prompt=["a"] * 1_900_000)),
    "many empty prompts": (COMPLETIONS, lambda: completion(prompt=[[]] * 2_600_000)),
    "a long prompt": (COMPLETIONS, lambda: completion(prompt=WORDS * 166_000)),
    "a long prompt of one letter": (COMPLETIONS, lambda: completion(prompt="a" * 7_500_000)),
    "long stop strings": (COMPLETIONS, lambda: completion(stop=["ab" * 240_000] * 16, n=16)),
    "many stop tokens": (COMPLETIONS, lambda: completion(prompt=["a"] * 16, n=16, stop_token_ids=[7] * 3_500_000)),
    "many biases": (COMPLETIONS, lambda: completion(logit_bias={str(token_id): 1 for token_id in range(600_000)})),
    "many wrong biases": (COMPLETIONS, lambda: completion(logit_bias=dict.fromkeys(map(str, range(600_000)), "x"))),
    "a long message": (CHATS, lambda: chat(user(WORDS * 166_000))),
    "many messages": (CHATS, lambda: chat(*[user("")] * 200_000)),
    "many wrong messages": (CHATS, lambda: chat(*[{"role": "x", "content": 5}] * 16_000)),
    "many wrong calls": (CHATS, lambda: chat({"role": "assistant", "tool_calls": [1] * 1_400_000})),
    "nested levels in a message": (CHATS, lambda: chat(user("Hi", more=nested(400)))),
    "nested levels in arguments": (CHATS, lambda: chat(user("Hi"), calling("[" * 400 + "]" * 400))),
    "many lists in arguments": (CHATS, lambda: chat(user("Hi"), calling("[" + "[]," * 2_500_000 + "[]]"))),
    "a long model name": (CHATS, lambda: chat(user("Hi")) | {"model": "m" * 7_500_000}),
    "many log-probabilities": (COMPLETIONS, lambda: echo(128, 5000)),
    "many alternatives": (CHATS, lambda: chat(user("Hi"), n=16, max_tokens=4000, logprobs=True, top_logprobs=20)),
}
#: As many log-probabilities as one answer may have, or nearly.
SCORED: dict[str, tuple[str, Any]] = {
    "of few long prompts": (COMPLETIONS, lambda: echo(18, 5000)),
    "of many short prompts": (COMPLETIONS, lambda: echo(240, 370)),
    "of prompts alone": (COMPLETIONS, lambda: completion(prompt=[[500] * 4000] * 11, prompt_logprobs=20, max_tokens=1)),
    "of many choices": (CHATS, lambda: chat(user("Hi"), n=16, max_tokens=300, logprobs=True, top_logprobs=20)),
    "of none, with the ids": (COMPLETIONS, lambda: echo(64, 1000, None, n=4, return_token_ids=True)),
}


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    """A mesh without a model, its gateway limited to 1.5 GiB."""
    with SimulatedMesh(
        tmp_path_factory.mktemp("limited"),
        *ONE_MIXED,
    ) as mesh:
        limit_memory(mesh.pid("gateway-0"))
        yield mesh


@pytest.fixture(scope="module")
def stream(limited: LiveMesh) -> Iterator[SteadyStream]:
    """The stream beside it all."""
    with SteadyStream(limited, asks_for_turns=True) as reading:
        yield reading


@pytest.fixture(scope="module")
def calm(stream: SteadyStream) -> Lap:
    """The stream without other requests."""
    return calm_lap(stream)


def require_life(lap: Lap, calm: Lap) -> None:
    """The stream went on, without a gap, and the loop had its turns."""
    assert lap.events > 0
    assert not lap.ended
    assert lap.longest_gap_s < bearable_s(calm.longest_gap_s)
    assert lap.longest_turn_s < bearable_turn_s(calm)


def dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def send(mesh: LiveMesh, path: str, content: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
    headers = {"Content-Type": "application/json", **(headers or {})}
    return httpx.post(f"{mesh.url}{path}", content=content, headers=headers, timeout=120.0)


@pytest.mark.parametrize("what", HOSTILE)
def test_a_stream_goes_on_beside_a_hostile_body(limited: LiveMesh, calm: Lap, stream: SteadyStream, what: str) -> None:
    """The body is refused by name in a short answer, and the stream's gaps stay as they were."""
    path, make = HOSTILE[what]
    content = dump(make())
    assert len(content) < 8 << 20
    stream.lap()
    answer = send(limited, path, content)
    lap = stream.lap()
    tell(limited, lap)
    assert answer.status_code in (400, 404), f"{answer.status_code} {answer.text[:300]}"
    assert answer.json()["error"]["code"] != "invalid_json"
    assert len(answer.content) < 4096
    require_life(lap, calm)


@pytest.mark.parametrize("what", SCORED)
def test_a_stream_goes_on_beside_a_large_answer(limited: LiveMesh, calm: Lap, stream: SteadyStream, what: str) -> None:
    """While it is written, while it is looked at and while it is sent again: the answer is kept for its client."""
    path, make = SCORED[what]
    content, headers = dump(make()), {"Idempotency-Key": what.replace(" ", "-")}
    laps: dict[str, Lap] = {}
    stream.lap()
    answer = send(limited, path, content, headers)
    assert answer.status_code == 200, answer.text[:300]
    request_id = answer.json()["id"]
    for step in ("written", "described", "sent again", "streamed"):
        if step == "described":
            described = httpx.get(f"{limited.url}/v1/requests/{request_id}", timeout=120.0)
            assert len(described.content) > len(answer.content)
        elif step == "sent again":
            assert send(limited, path, content, headers).content == answer.content
        elif step == "streamed":
            accept = {"Accept": "text/event-stream"}
            streamed = httpx.get(f"{limited.url}/v1/requests/{request_id}", headers=accept, timeout=120.0)
            assert streamed.text.endswith("data: [DONE]\n\n")
        laps[step] = stream.lap()
        tell(limited, laps[step])
    for lap in laps.values():
        require_life(lap, calm)


def test_many_hostile_bodies_at_once(limited: LiveMesh, calm: Lap, stream: SteadyStream) -> None:
    """Eight of the worst at once: each is refused, or answered with a retry, and memory stays within its limit throughout."""
    worst = [(path, dump(make())) for path, make in (HOSTILE["a long prompt"], HOSTILE["many prompts"])] * 4
    stream.lap()
    with ThreadPoolExecutor(len(worst)) as clients:
        answers = list(clients.map(lambda each: send(limited, *each), worst))
    lap = stream.lap()
    tell(limited, lap)
    assert {answer.status_code for answer in answers} <= {400, 503}
    require_life(lap, calm)
    assert memory_high_water_bytes(limited.pid("gateway-0")) < MEMORY_BYTES


@pytest.mark.parametrize(
    ("label", "mode"),
    [
        (f"POST {COMPLETIONS}", GenerationMode.NEGATIVE),
        (f"POST {CHATS}", GenerationMode.NEGATIVE),
        (f"POST {EMBEDDINGS}", GenerationMode.NEGATIVE),
        ("GET /v1/models/{model_id}", GenerationMode.POSITIVE),
        ("GET /v1/requests/{request_id}", GenerationMode.POSITIVE),
        ("DELETE /v1/requests/{request_id}", GenerationMode.POSITIVE),
    ],
)
def test_the_server_does_what_its_description_says(limited: LiveMesh, label: str, mode: GenerationMode) -> None:
    """Over a socket as within the process, where tests/unit/gateway/test_api_description.py sends more."""
    described = schemathesis.openapi.from_url(f"{limited.url}/openapi.json", config=CONFIG)
    does_what_it_says(described, label, mode, max_examples=30)
