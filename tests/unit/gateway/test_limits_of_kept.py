"""Limits of keys and requests that outlive their connection: what goes on is counted once, what is refused is not kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from spotwise.core.access.quotas import KeyAdmission, KeyLimits
from spotwise.core.access.store_budget import Room, StoreBudget
from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.http.errors import GenerationError
from spotwise.text.chat_text import ChatText
from tests.contracts.waiting import until, until_none
from tests.fakes.memory import FakeClock, MemoryStore
from tests.fakes.memory_keys import MemoryKeys
from tests.unit.gateway.apps import Encode, metric
from tests.unit.gateway.fake_mesh import CHAT, CHATS, MODEL
from tests.unit.gateway.keeping_mesh import Client, KeepingMesh, content, keeping_app, request_id_of
from tests.unit.gateway.limits import BEGIN_S, Limited, bearer, limited

AUTH = bearer(1)
RESUMABLE = AUTH | {"X-Spotwise-Resumable": "true"}
STREAM = CHAT | {"stream": True, "max_tokens": 100}


@dataclass
class LimitedGateway:
    """One gateway's API, whose one key has limits, and the store that counts."""

    app: Starlette
    mesh: KeepingMesh
    metrics: GatewayMetrics
    books: Limited

    @property
    def used(self) -> Callable[[], Awaitable[KeyAdmission]]:
        """What is counted by now."""
        return self.books.used

    async def lacks(self, tokens: int) -> bool | None:
        """Whether another number of tokens is counted by now."""
        return (await self.used()).used_tokens != tokens or None

    def client(self, body: Any, headers: dict[str, str]) -> Client:
        """A connection that posts a chat."""
        return Client(self.app, "POST", CHATS, body, headers)


def resumed(gateway: LimitedGateway, request_id: str) -> Client:
    """A connection that goes on with a stream."""
    return Client(gateway.app, "GET", f"/v1/requests/{request_id}", None, AUTH | {"Accept": "text/event-stream"})


@pytest.fixture
def start(text: ChatText) -> Callable[..., Any]:
    clock = FakeClock(BEGIN_S)

    async def gateway(
        mesh: KeepingMesh, limits: KeyLimits, store: MemoryKeys | None = None, name: str = "g0"
    ) -> LimitedGateway:
        books = await limited(store or MemoryKeys(clock), clock, limits, name)
        metrics = GatewayMetrics(CollectorRegistry(), MODEL)
        return LimitedGateway(keeping_app(mesh, text, name, access=books.access, metrics=metrics), mesh, metrics, books)

    return gateway


@pytest.fixture
def tokens(encode: Encode) -> list[int]:
    """An answer of some length, and its end."""
    return [*encode("Hello, world! " * 8), 2]


async def test_a_request_keeps_its_place_without_its_client(start: Any, tokens: list[int]) -> None:
    """It goes on, and so does what it has reserved; its end counts all of it, whichever client reads it then."""
    gateway = await start(KeepingMesh(tokens, hang_at=1), KeyLimits(tokens_per_minute=10**5, max_streams=1))
    client = gateway.client(STREAM, RESUMABLE)
    request_id = (await client.event()).data["id"]
    await client.leave()
    refused = gateway.client(STREAM, RESUMABLE)
    await refused.answer()
    assert refused.status == 429
    gateway.mesh.go.set()
    used = len(gateway.mesh.spec.prompt_token_ids) + len(tokens)
    await until_none(partial(gateway.lacks, used))
    assert content(await resumed(gateway, request_id).events())[0]
    assert (await gateway.used()).used_tokens == used
    following = gateway.client(STREAM, RESUMABLE)
    assert (await following.event()).data
    await following.leave()


async def test_one_answer_after_the_other_is_never_two_at_once(start: Any, tokens: list[int]) -> None:
    """A place is free before the client has the end, with a stop string as well."""
    gateway = await start(KeepingMesh(tokens), KeyLimits(max_streams=1))
    for number in range(10):
        client = gateway.client(STREAM | ({"stop": ["wor"]} if number % 2 else {}), RESUMABLE)
        assert (await client.events())[-1].data is None
        assert client.status == 200


async def test_a_stream_that_goes_on_is_counted_and_never_refused(start: Any, tokens: list[int]) -> None:
    """At another connection or gateway it takes a place and its rest, though the key has no more of either."""
    limits = KeyLimits(tokens_per_minute=10**5, requests_per_minute=100, max_streams=1)
    first = await start(KeepingMesh(tokens, hang_at=2), limits)
    client = first.client(STREAM, AUTH)
    events = [await client.event() for _ in range(2)]
    await first.mesh.saver.save_all()  # what is not is computed, and counted, again
    mesh = KeepingMesh(tokens, hang_at=4, store=first.mesh.store)
    second = await start(mesh, limits, first.books.store, "g1")
    again = second.client(STREAM, AUTH | {"Last-Event-ID": events[-1].id})
    assert (await again.event()).data
    await first.mesh.saver.save_all()
    await client.events()  # resumed elsewhere
    used = await first.used()
    assert used.used_requests == 2
    refused = second.client(STREAM, AUTH)
    await refused.answer()
    assert refused.status == 429
    mesh.go.set()
    await again.events()
    await first.used()
    used = await second.used()
    prompt_tokens = len(mesh.spec.prompt_token_ids)
    assert used.used_tokens == prompt_tokens + len(tokens)


async def test_an_answer_that_is_over_costs_nothing_to_read(start: Any, tokens: list[int]) -> None:
    """However often."""
    gateway = await start(KeepingMesh(tokens), KeyLimits(requests_per_minute=100, tokens_per_minute=10**5))
    events = await gateway.client(STREAM, RESUMABLE).events()
    before = await gateway.used()
    for _ in range(3):
        await resumed(gateway, request_id_of(events)).events()
    assert await gateway.used() == before


@pytest.mark.parametrize("headers", [RESUMABLE, AUTH | {"Idempotency-Key": "k"}, AUTH])
async def test_what_a_limit_refuses_is_not_kept(start: Any, tokens: list[int], headers: dict[str, str]) -> None:
    """The store holds nothing of it."""
    gateway = await start(KeepingMesh(tokens), KeyLimits(tokens_per_day=5))
    await gateway.client(CHAT | {"max_tokens": 50}, AUTH).answer()
    await gateway.used()
    client = gateway.client(STREAM | {"x": "y" * 10_000}, headers)
    assert (await client.answer())["error"]["code"] == "insufficient_quota"
    assert not gateway.mesh.store._kept


async def test_a_repeated_key_finds_its_request_though_a_limit_is_full(start: Any, tokens: list[int]) -> None:
    """The request runs, and holds the only place."""
    gateway = await start(KeepingMesh(tokens, hang_at=1), KeyLimits(max_streams=1))
    headers = AUTH | {"Idempotency-Key": "k"}
    client = gateway.client(STREAM, headers)
    await client.event()
    again = gateway.client(STREAM, headers)
    assert (await again.event()).data
    assert again.headers["idempotent-replayed"] == "true"
    gateway.mesh.go.set()
    await asyncio.gather(client.events(), again.events())


async def test_what_is_kept_has_room(start: Any, tokens: list[int]) -> None:
    """While what runs fills its share a caller's next resumable request is refused, and others are served without being kept;
    what has ended makes room.
    """
    mesh = KeepingMesh(tokens, hang_at=1, store=MemoryStore(budget=StoreBudget(90_000)))  # 15,000 of it for this caller
    gateway = await start(mesh, KeyLimits(requests_per_minute=1000))
    body = STREAM | {"x": "y" * 10_000}
    first = gateway.client(body, RESUMABLE)
    await first.event()
    refused = gateway.client(body, RESUMABLE)
    assert (await refused.answer())["error"]["code"] == "too_much_kept"
    assert (refused.status, refused.headers["retry-after"]) == (429, "5")
    unkept = gateway.client(body, AUTH)
    await unkept.event()
    assert unkept.headers["x-spotwise-warning"] == "not kept; ignored: x"
    assert metric(gateway.metrics.registry, "spotwise_not_kept_total", of="requests") == 1
    mesh.go.set()
    assert (await unkept.events())[-1].data is None
    assert (await first.events())[-1].data is None
    await until(lambda: all(kept.ending is not None for kept in mesh.store._kept.values()))
    (before,) = mesh.store._kept
    assert (await gateway.client(body, RESUMABLE).events())[-1].data is None
    assert before not in mesh.store._kept


async def test_an_answer_without_room_for_its_tokens_is_given_whole(start: Any, tokens: list[int]) -> None:
    """Nothing of it is kept, and nothing is tried again."""
    mesh = KeepingMesh(tokens, hang_at=8)
    gateway = await start(mesh, KeyLimits(requests_per_minute=1000))
    client = gateway.client(STREAM, AUTH)
    events = [await client.event() for _ in range(6)]
    mesh.store.requests._room = Room(10_000, 1)
    await mesh.saver.save_all()
    assert mesh.store._kept == {}
    await mesh.saver.save_all()
    mesh.go.set()
    events += await client.events()
    assert content(events)[0]
    assert events[-1].data is None
    assert mesh.store._kept == {}


@pytest.mark.parametrize(("is_charged", "counts_prompt"), [(False, False), (True, True)])
async def test_who_fails_a_request_pays_for_its_prompt(
    start: Any, tokens: list[int], is_charged: bool, counts_prompt: bool
) -> None:
    """Its own deadline, after workers computed for it, costs the prompt; what the mesh fails costs nothing."""
    mesh = KeepingMesh(tokens, fail_at=-1, error=GenerationError(504, "deadline_exceeded", "", is_charged=is_charged))
    gateway = await start(mesh, KeyLimits(tokens_per_minute=10**5))
    for headers in (AUTH, RESUMABLE):
        await gateway.client(CHAT, headers).answer()
    prompt_tokens = len(next(iter(mesh.specs.values())).prompt_token_ids)
    assert (await gateway.used()).used_tokens == (2 * prompt_tokens if counts_prompt else 0)


@pytest.mark.parametrize("headers", [RESUMABLE, AUTH])
async def test_a_request_that_is_cancelled_pays_for_its_prompt(
    start: Any, tokens: list[int], headers: dict[str, str]
) -> None:
    """Before its first token, too; its client is told what happened."""
    gateway = await start(KeepingMesh(tokens, hang_at=0), KeyLimits(tokens_per_minute=10**5))
    client = gateway.client(STREAM, headers)
    await gateway.mesh.hung.get()
    (request_id,) = gateway.mesh.specs
    await Client(gateway.app, "DELETE", f"/v1/requests/{request_id}", None, AUTH).answer()
    assert (await client.answer())["error"]["code"] == "cancelled"
    assert (await gateway.used()).used_tokens == len(gateway.mesh.spec.prompt_token_ids)


async def test_each_prompt_that_a_client_lets_compute_is_paid_for(start: Any, tokens: list[int]) -> None:
    """A stream that is resumed again and again before its first token has its prompt computed each time."""
    gateway = await start(KeepingMesh(tokens, hang_at=0), KeyLimits(tokens_per_minute=10**6, tokens_per_day=10**6))
    clients = [gateway.client(STREAM, AUTH)]
    await gateway.mesh.hung.get()
    (request_id,) = gateway.mesh.specs
    for _ in range(7):
        clients.append(resumed(gateway, request_id))
        await gateway.mesh.hung.get()
        assert (await clients[-2].answer())["error"]["code"] == "resumed_elsewhere"
    gateway.mesh.go.set()
    await clients[-1].events()
    used = await gateway.used()
    prompt_tokens = len(gateway.mesh.spec.prompt_token_ids)
    assert (used.used_tokens, used.used_day_tokens) == (8 * prompt_tokens + len(tokens),) * 2


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (KeyLimits(requests_per_minute=4), "rate_limit_exceeded"),
        (KeyLimits(tokens_per_minute=500), "rate_limit_exceeded"),
        (KeyLimits(tokens_per_day=500), "insufficient_quota"),
    ],
)
async def test_resuming_again_and_again_obeys_limits(
    start: Any, tokens: list[int], limits: KeyLimits, code: str
) -> None:
    """A stream that runs is gone on with once whatever its key has used, then as a new request would be; what is refused leaves
    the stream where it is.
    """
    gateway = await start(KeepingMesh(tokens, hang_at=0), limits)
    clients = [gateway.client(STREAM, AUTH)]
    await gateway.mesh.hung.get()
    (request_id,) = gateway.mesh.specs
    refused: Any = None
    while refused is None:
        client = resumed(gateway, request_id)
        done = [asyncio.ensure_future(each) for each in (gateway.mesh.hung.get(), client._sent.get())]
        await asyncio.wait(done, return_when=asyncio.FIRST_COMPLETED)
        if done[0].done():
            done[1].cancel()
            clients.append(client)
        else:
            refused = done[1].result()
            done[0].cancel()
        assert len(clients) < 20
    assert refused["status"] == 429
    assert (await client.answer())["error"]["code"] == code
    assert len(clients) >= 2
    gateway.mesh.go.set()
    assert (await clients[-1].events())[-1].data is None


@pytest.mark.parametrize("is_alive", [False, True])
async def test_who_lets_a_gateway_go_on_with_anothers_stream_pays_for_that(
    start: Any, tokens: list[int], is_alive: bool
) -> None:
    """The prompt is computed again: for its client where the other gateway has the stream still, for the mesh where it is dead.
    The place passes over.
    """
    limits = KeyLimits(tokens_per_day=10**6, max_streams=1)
    first = await start(KeepingMesh(tokens, hang_at=2), limits, name="g0/7")
    if is_alive:
        await first.mesh.store.register(Member("g0", MemberKind.GATEWAY, 7, MemberState.READY, "h", 1, "h:1"), 60.0)
    client = first.client(STREAM, AUTH)
    events = [await client.event() for _ in range(2)]
    await first.mesh.saver.save_all()
    request_id = request_id_of(events)
    following = []
    for number in range(1, 3):
        if is_alive and number == 2:  # which has found out, and given its place back
            await first.mesh.saver.save_all()
            await client.events()
            await first.used()
        mesh = KeepingMesh(tokens, hang_at=2, store=first.mesh.store)
        gateway = await start(mesh, limits, first.books.store, f"g{number}/1")
        if is_alive:
            member = Member(f"g{number}", MemberKind.GATEWAY, 1, MemberState.READY, "h", 1, "h:1")
            await first.mesh.store.register(member, 60.0)
        following.append((gateway, resumed(gateway, request_id)))
        await mesh.hung.get()
    (second, taken), (third, last) = following
    third.mesh.go.set()
    await last.events()
    if is_alive:
        await second.mesh.saver.save_all()
        await taken.events()
        await second.used()
        prompt_tokens = len(first.mesh.spec.prompt_token_ids)
        assert (await third.used()).used_day_tokens == 3 * prompt_tokens + len(tokens)
    else:
        reserved = (await third.used()).used_day_tokens - len(first.mesh.spec.prompt_token_ids) - STREAM["max_tokens"]
        # The second one still has its rest reserved, the third one has used what was left.
        assert reserved == (STREAM["max_tokens"] - 2) + (len(tokens) - 2)
    for each in (client, taken):
        await each.leave()
