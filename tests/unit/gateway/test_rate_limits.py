"""Tests of keys' limits at the API: what clients see of them, what is counted, and what a store that is away changes."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from spotwise.core.access.quotas import Ask, KeyAdmission, KeyLimit, KeyLimits, KeyReport
from spotwise.gateway.access.quotas import _duration
from spotwise.mesh.ports.ports import MeshError
from spotwise.text.chat_text import ChatText
from tests.contracts.waiting import until
from tests.fakes.memory import FakeClock
from tests.fakes.memory_keys import MemoryKeys
from tests.unit.gateway.apps import Http, Json, app_over, connect, openai_of
from tests.unit.gateway.fake_mesh import CHAT, CHATS, COMPLETION, COMPLETIONS, EMBEDDING, EMBEDDINGS, FakeMesh
from tests.unit.gateway.limits import BEGIN_S, bearer, limited, secret


class UnsteadyKeys(MemoryKeys):
    """May be away."""

    is_away = False

    async def use(self, name: str, limits: KeyLimits, report: KeyReport, ask: Ask | None = None) -> KeyAdmission:
        if self.is_away:
            raise MeshError("Redis: gone")
        return await super().use(name, limits, report, ask)


class LimitedApi:
    """An app whose one key has limits."""

    def __init__(self, text: ChatText, mesh: FakeMesh) -> None:
        self.mesh = mesh
        self.clock = FakeClock(BEGIN_S)
        self.store = UnsteadyKeys(self.clock)
        self.refusals: list[KeyLimit] = []
        self._text = text

    async def start(self, limits: KeyLimits, gateway_id: str = "g") -> Http:
        """Return a client of a gateway whose key has these limits."""
        self.books = await limited(self.store, self.clock, limits, gateway_id, self.refusals.append)
        self.quotas, self.used = self.books.quotas, self.books.used
        self.app = app_over(self.mesh, self._text, access=self.books.access, embeddings=EMBEDDINGS)
        return connect(self.app, **bearer(1))


@pytest.fixture
def api(text: ChatText, mesh: FakeMesh) -> LimitedApi:
    return LimitedApi(text, mesh)


async def test_requests_a_minute(api: LimitedApi) -> None:
    """Each answer has the headers that OpenAI's clients read; the refusal says when to come back, and then lets in."""
    async with await api.start(KeyLimits(requests_per_minute=2)) as client:
        first = await client.post(CHATS, json=CHAT)
        assert first.status_code == 200
        assert {name: first.headers[f"x-ratelimit-{name}-requests"] for name in ("limit", "remaining", "reset")} == {
            "limit": "2",
            "remaining": "1",
            "reset": "30s",
        }
        assert "x-ratelimit-limit-tokens" not in first.headers
        streamed = await client.post(COMPLETIONS, json=COMPLETION | {"stream": True})
        assert (streamed.status_code, streamed.headers["x-ratelimit-remaining-requests"]) == (200, "0")
        for body in (CHAT, {"not": "read"}):
            refused = await client.post(CHATS, json=body)
            error = refused.json()["error"]
            assert (refused.status_code, error["code"], error["type"]) == (
                429,
                "rate_limit_exceeded",
                "rate_limit_error",
            )
            assert (refused.headers["retry-after"], refused.headers["x-ratelimit-remaining-requests"]) == ("30", "0")
        assert (await client.get("/v1/models")).status_code == 200
        api.clock.advance(30.0)
        assert (await client.post(CHATS, json=CHAT)).status_code == 200
    assert api.refusals == [KeyLimit.REQUESTS] * 2


WRONG: list[tuple[str, Any]] = [
    (COMPLETIONS, COMPLETION | {"max_tokens": 10**6, "structured_outputs": {"regex": "[ab]{9}"}}),
    (CHATS, CHAT | {"structured_outputs": {"regex": "[ab"}}),
    ("/v1/embeddings", EMBEDDING | {"input": 5}),
    ("/v1/messages", {"not": "a message"}),
]


@pytest.mark.parametrize(("path", "body"), WRONG, ids=[path for path, _ in WRONG])
async def test_a_refused_body_counts_as_a_request(api: LimitedApi, path: str, body: Any) -> None:
    """Reading it, and compiling its grammar, took time; it takes no tokens and no place."""
    limits = KeyLimits(requests_per_minute=3, tokens_per_minute=1000, max_streams=1)
    async with await api.start(limits) as client:
        for _ in range(3):
            assert (await client.post(path, json=body)).status_code == 400
        found = await api.used()
        assert (found.used_requests, found.used_tokens) == (3.0, 0.0)
        assert (await client.post(path, json=body)).status_code == 400
        refused = await client.post(path, json=body)
        assert refused.status_code == 429 and refused.headers["retry-after"] == "20"


async def test_what_is_refused_for_its_tokens_counts_as_a_request(api: LimitedApi) -> None:
    """Its body was understood, and a grammar of it compiled; it takes no tokens. Too many are refused unread."""
    limits = KeyLimits(requests_per_minute=4, tokens_per_minute=10)
    body = COMPLETION | {"structured_outputs": {"regex": "[ab]{9}"}}
    async with await api.start(limits) as client:
        assert (await client.post(COMPLETIONS, json=COMPLETION)).status_code == 200
        used = (await api.used()).used_tokens
        for count in range(2, 6):
            refused = await client.post(COMPLETIONS, json=body)
            assert "tokens a minute" in refused.json()["error"]["message"]
            assert (await api.used()).used_requests == min(4, count)
        refused = await client.post(COMPLETIONS, json={"not": "read"})
        assert "requests a minute" in refused.json()["error"]["message"]
        assert (await api.used()).used_tokens == used
    assert api.refusals == [*[KeyLimit.TOKENS] * 3, KeyLimit.REQUESTS, KeyLimit.TOKENS, KeyLimit.REQUESTS]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, COMPLETION | {"n": 4, "max_tokens": 30}),
        (COMPLETIONS, COMPLETION | {"prompt": ["Hello, world!"] * 4, "max_tokens": 30}),
        ("/v1/embeddings", EMBEDDING | {"input": ["Hello, world! " * 4] * 4}),
    ],
    ids=["choices", "prompts", "inputs"],
)
async def test_what_can_be_divided_takes_no_more_than_a_minute_gives(api: LimitedApi, path: str, body: Json) -> None:
    """No wait helps it, which the client is told; a single sequence is never impossible. It counts as a request."""
    limits = KeyLimits(requests_per_minute=10, tokens_per_minute=50)
    async with await api.start(limits) as client:
        refused = await client.post(path, json=body)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (429, "request_exceeds_limit")
        assert "tokens, and the key 'acme' has a limit of 50 tokens a minute" in error["message"]
        assert refused.headers["x-should-retry"] == "false"
        assert "retry-after" not in refused.headers
        found = await api.used()
        assert (found.used_requests, found.used_tokens) == (1.0, 0.0)
        alone = await client.post(COMPLETIONS, json=COMPLETION | {"max_tokens": 120})
        assert alone.status_code == 200
    assert api.refusals == [KeyLimit.TOKENS]


COUNTING: list[tuple[str, Any]] = [
    ("/tokenize", {"prompt": "Hello"}),
    ("/detokenize", {"tokens": [65, 66]}),
    ("/v1/messages/count_tokens", CHAT),
]


@pytest.mark.parametrize(("path", "body"), COUNTING, ids=[path for path, _ in COUNTING])
async def test_counting_tokens_counts_as_a_request(api: LimitedApi, path: str, body: Any) -> None:
    """Whatever else of the key is full; of too many none is read."""
    limits = KeyLimits(requests_per_minute=4, tokens_per_minute=10, max_streams=1)
    async with await api.start(limits) as client:
        api.mesh.hang_at = 0
        running = asyncio.create_task(client.post(COMPLETIONS, json=COMPLETION | {"max_tokens": 100}))
        await api.mesh.hung.get()
        for _ in range(3):
            answer = await client.post(path, json=body)
            assert answer.status_code == 200, answer.text
        for sent in (body, {"not": "read"}):
            refused = await client.post(path, json=sent)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "15")
        running.cancel()


async def test_tokens_a_minute_are_those_that_were_used(api: LimitedApi) -> None:
    """Reserved with `max_tokens`, settled with the usage; what fails in the mesh costs nothing."""
    limits = KeyLimits(tokens_per_minute=300, tokens_per_day=10**6)
    async with await api.start(limits) as client:
        answer = await client.post(COMPLETIONS, json=COMPLETION | {"max_tokens": 200})
        used = answer.json()["usage"]["total_tokens"]
        prompt = answer.json()["usage"]["prompt_tokens"]
        assert answer.headers["x-ratelimit-remaining-tokens"] == str(300 - prompt - 200)
        found = await api.used()
        assert (found.used_tokens, found.used_day_tokens) == (used, used)
        api.mesh.fail_at = 0
        assert (await client.post(COMPLETIONS, json=COMPLETION)).status_code == 503
        assert (await api.used()).used_tokens == used
        api.mesh.fail_at = 2
        streamed = await client.post(COMPLETIONS, json=COMPLETION | {"stream": True, "max_tokens": 20})
        assert '"error"' in streamed.text
        assert (await api.used()).used_tokens == used + prompt + 2
        api.mesh.fail_at = None
        refused = await client.post(COMPLETIONS, json=COMPLETION | {"max_tokens": (300 - prompt) // 2, "n": 2})
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert "tokens a minute" in refused.json()["error"]["message"]


async def test_embeddings_cost_their_inputs(api: LimitedApi) -> None:
    """Not the token that each is computed with; what fails in the mesh costs nothing."""
    limits = KeyLimits(tokens_per_minute=20, max_streams=1)
    async with await api.start(limits) as client:
        body = EMBEDDING | {"input": [[1, 2, 3], [4]]}
        for used in (4, 8):
            answer = await client.post("/v1/embeddings", json=body)
            assert (answer.status_code, answer.headers["x-ratelimit-limit-tokens"]) == (200, "20")
            assert (await api.used()).used_tokens == used
        api.mesh.fail_at = 0
        assert (await client.post("/v1/embeddings", json=body)).status_code == 503
        assert (await api.used()).used_tokens == 8
        refused = await client.post("/v1/embeddings", json=EMBEDDING | {"input": [[1] * 20]})
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"


async def test_a_client_that_leaves_pays_for_its_prompt_and_what_came(api: LimitedApi) -> None:
    """So that work for nothing is not free; its place is free at once."""
    limits = KeyLimits(tokens_per_minute=1000, max_streams=1)
    async with await api.start(limits) as client:
        api.mesh.hang_at = 1
        reading = asyncio.create_task(client.post(COMPLETIONS, json=COMPLETION | {"max_tokens": 20}))
        await api.mesh.hung.get()
        refused = await client.post(COMPLETIONS, json=COMPLETION)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "at the same time" in refused.json()["error"]["message"]
        await leave(reading)
        await until(lambda: not api.mesh.open)
        api.mesh.hang_at = None
        spec = next(iter(api.mesh.specs.values()))
        assert (await api.used()).used_tokens == len(spec.prompt_token_ids) + 1
        for _ in range(5):
            assert (await client.post(COMPLETIONS, json=COMPLETION)).status_code == 200


async def test_one_request_after_the_other_is_never_two_at_once(api: LimitedApi) -> None:
    """Whole or streamed: a place is free before the client has the end."""
    async with await api.start(KeyLimits(max_streams=1)) as client:
        for number in range(20):
            answer = await client.post(COMPLETIONS, json=COMPLETION | {"stream": number % 2 == 0})
            assert answer.status_code == 200


async def test_places_are_renewed_while_requests_run(api: LimitedApi) -> None:
    limits = KeyLimits(max_streams=1)
    async with await api.start(limits) as client:
        api.mesh.hang_at = 1
        reading = asyncio.create_task(client.post(COMPLETIONS, json=COMPLETION))
        await api.mesh.hung.get()
        for _ in range(5):
            api.clock.advance(10.0)
            await api.quotas.report(renew=True)
            assert (await client.post(COMPLETIONS, json=COMPLETION)).status_code == 429
        api.clock.advance(16.0)  # its gateway renews nothing any more
        async with await api.start(limits, "another") as elsewhere:
            api.mesh.hang_at = None
            assert (await elsewhere.post(COMPLETIONS, json=COMPLETION)).status_code == 200
        await leave(reading)


async def test_places_are_renewed_while_others_come_and_go(api: LimitedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a gateway has something else to report."""
    monkeypatch.setattr("spotwise.gateway.access.quotas._RENEW_EVERY_S", 0.05)
    async with await api.start(KeyLimits(max_streams=2)) as client:
        renewed = 0
        report = api.quotas.report

        async def counted(*, renew: bool) -> None:
            nonlocal renewed
            renewed += renew
            await report(renew=renew)

        monkeypatch.setattr(api.quotas, "report", counted)
        running = asyncio.create_task(api.quotas.run())
        async with asyncio.timeout(5.0):
            while not renewed:
                await client.post(COMPLETIONS, json=COMPLETION)
        await leave(running)


async def test_while_the_store_is_away_a_gateway_counts_alone(api: LimitedApi) -> None:
    """Requests are served, within the limit of each gateway; afterwards the store has what was used."""
    limits = KeyLimits(requests_per_minute=3, tokens_per_minute=10_000, max_streams=1)
    async with await api.start(limits) as client:
        api.store.is_away = True
        answers = [await client.post(COMPLETIONS, json=COMPLETION) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        used = answers[0].json()["usage"]["total_tokens"]
        api.store.is_away = False
        api.clock.advance(2.0)
        assert (await api.used()).used_tokens == 3 * used
        assert not api.quotas._books or (await api.quotas.report(renew=False)) is None


async def test_nothing_is_kept_of_what_is_over(api: LimitedApi) -> None:
    """Whatever came: no lease, no book."""
    limits = KeyLimits(max_streams=4, tokens_per_minute=10**6)
    async with await api.start(limits) as client:
        for number in range(10):
            api.mesh.fail_at = (None, 0, 2)[number % 3]
            await client.post(COMPLETIONS, json=COMPLETION | {"stream": number % 2 == 0})
        for _ in range(2):
            await api.quotas.report(renew=True)
        assert not api.quotas._books
        assert not api.store._usage["acme"].leases


async def test_a_key_without_limits_asks_nothing(api: LimitedApi) -> None:
    """No count, no header; the store may be away."""
    async with await api.start(KeyLimits()) as client:
        api.store.is_away = True
        answer = await client.post(COMPLETIONS, json=COMPLETION)
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("x-ratelimit")]


async def openai_client(api: LimitedApi, limits: KeyLimits, max_retries: int) -> AsyncOpenAI:
    """OpenAI's own client of the app."""
    await (await api.start(limits)).aclose()
    return openai_of(api.app, secret(1).decode(), max_retries)


async def test_openais_client_waits_as_it_is_told(api: LimitedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """With retries a limit is a pause, of as many seconds as `Retry-After` says; without, `RateLimitError`."""
    client = await openai_client(api, KeyLimits(requests_per_minute=2), max_retries=1)
    slept_s: list[float] = []

    async def sleep(seconds: float) -> None:
        slept_s.append(seconds)
        api.clock.advance(seconds)

    monkeypatch.setattr("anyio.sleep", sleep)
    async with client:
        for _ in range(3):
            answer = await client.chat.completions.create(**CHAT)
            assert answer.choices[0].message.content == "Hello, world!"
        assert slept_s == [30.0]
        with pytest.raises(openai.RateLimitError) as refused:
            await client.with_options(max_retries=0).chat.completions.create(**CHAT)
    assert refused.value.code == "rate_limit_exceeded"
    assert refused.value.response.headers["retry-after"] == "30"


async def test_openais_client_does_not_wait_for_another_day(api: LimitedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await openai_client(api, KeyLimits(tokens_per_day=20), max_retries=5)

    async def sleep(seconds: float) -> None:
        raise AssertionError(f"waited {seconds} s")

    monkeypatch.setattr("anyio.sleep", sleep)
    arguments: Json = COMPLETION | {"max_tokens": 15}
    async with client:
        await client.completions.create(**arguments)
        with pytest.raises(openai.RateLimitError) as refused:
            await client.completions.create(**arguments)
    assert refused.value.code == "insufficient_quota"
    assert 0 < int(refused.value.response.headers["retry-after"]) <= 86_400


async def leave(request: asyncio.Task[Any]) -> None:
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0, "0ms"), (0.0111, "12ms"), (1.5, "1.5s"), (59.96, "1m0s"), (360.0, "6m0s"), (61.2, "1m1.2s")],
)
def test_times_are_written_as_openai_writes_them(seconds: float, shown: str) -> None:
    """Never less than they are."""
    assert _duration(seconds) == shown


async def test_a_store_that_hangs_delays_one_request_a_little(api: LimitedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway counts by itself for a while, instead of waiting with each request."""
    monkeypatch.setattr("spotwise.gateway.access.quotas.COUNT_TIMEOUT_S", 0.01)
    calls = 0

    async def hang(*_: Any) -> KeyAdmission:
        nonlocal calls
        calls += 1
        await asyncio.Event().wait()
        raise AssertionError

    async with await api.start(KeyLimits(requests_per_minute=100)) as client:
        monkeypatch.setattr(api.store, "use", hang)
        for _ in range(10):
            assert (await client.post(COMPLETIONS, json=COMPLETION)).status_code == 200
    assert calls == 1
