"""Bodies that would stop a gateway: each is refused by name, a stream beside them continues, and memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import schemathesis
from schemathesis import GenerationMode

from tests.live.hostile_bodies import CHATS, COMPLETIONS, EMBEDDINGS, HOSTILE, SCORED, dump
from tests.live.hostility import MEMORY_BYTES, limit_memory, memory_high_water_bytes, tell
from tests.live.mesh import ONE_MIXED, LiveMesh
from tests.live.simulated_mesh import SimulatedMesh
from tests.live.steady_stream import Lap, SteadyStream, bearable_s, bearable_turn_s, calm_lap
from tests.openapi_checks import CONFIG, does_what_it_says

pytestmark = pytest.mark.long


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
    assert lap.longest_gap_s < bearable_s(calm.longest_gap_s) + 2 * lap.starved_s
    assert lap.longest_turn_s < bearable_turn_s(calm, lap)


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
