"""Two gateways' own code over one broker and one store, and a worker that draws tokens by their index."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from spotwise.core.members import Member, MemberKind, MemberState
from spotwise.core.messages import (
    CloseRequest,
    RequestAccepted,
    RequestAssigned,
    SubmitRequest,
    TokenBatch,
    TokenDelta,
)
from spotwise.core.request import FinishReason
from spotwise.core.sampling import TokenLogprobs
from spotwise.gateway.api import create_app
from spotwise.gateway.api_options import ApiOptions
from spotwise.gateway.kept_requests import KeptRequests
from spotwise.gateway.mesh_client import MeshGeneration
from spotwise.gateway.metrics import GatewayMetrics
from spotwise.gateway.settings import GatewaySettings
from spotwise.gateway.text import ChatText
from spotwise.mesh.embedded import LOOPBACK
from spotwise.mesh.grpc_control import ControlServer
from spotwise.mesh.memory import MemoryBroker, MemoryBus, MemoryStore
from spotwise.mesh.ports import BusMessage
from spotwise.mesh.service import ServiceHost
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode
from tests.contracts.waiting import until
from tests.unit.gateway.fake_mesh import CHAT, MODEL
from tests.unit.gateway.keeping_mesh import Client, content

CHATS = "/v1/chat/completions"
BODY = CHAT | {"stream": True, "max_tokens": 40, "n": 2, "logprobs": True, "return_token_ids": True, "ignore_eos": True}
STEP_S = 0.01


class Worker:
    """A scheduler and a worker in one: the tokens of an attempt follow from the seed and their index; a newer attempt ends
    older ones. `drawn`: the indexes of a choice's tokens as they were computed; `epochs`: its attempts.
    """

    def __init__(self, broker: MemoryBroker, store: MemoryStore) -> None:
        self._bus = MemoryBus(broker)
        self._store = store
        self._attempts: dict[str, tuple[int, asyncio.Task[None]]] = {}
        self.drawn: dict[str, list[int]] = {}
        self.epochs: dict[str, list[int]] = {}

    async def start(self) -> None:
        await self._bus.subscribe(subjects.REQUESTS, self._on_request)

    async def close(self) -> None:
        for _, task in self._attempts.values():
            task.cancel()
        await self._bus.close()

    @property
    def running(self) -> list[str]:
        return [choice_id for choice_id, (_, task) in self._attempts.items() if not task.done()]

    async def _on_request(self, raw: BusMessage) -> None:
        order = decode(raw.payload)
        assert isinstance(order, SubmitRequest | CloseRequest)
        epoch, task = self._attempts.get(order.choice_id, (0, None))
        if isinstance(order, CloseRequest):
            if task is not None and epoch <= order.epoch:
                task.cancel()
            return
        assert order.epoch > epoch, "an attempt of an earlier owner"
        if task is not None:
            task.cancel()
        self._attempts[order.choice_id] = order.epoch, asyncio.create_task(self._run(order))
        self.epochs.setdefault(order.choice_id, []).append(order.epoch)
        assert raw.respond is not None
        await raw.respond(encode(RequestAccepted(order.choice_id, order.epoch)))

    async def _run(self, order: SubmitRequest) -> None:
        record = await self._store.get_record(order.choice_id)
        assert record is not None
        assert record.epoch == order.epoch
        inbox = subjects.inbox(order.stream.gateway_id, order.stream.incarnation)
        assigned = RequestAssigned(order.choice_id, order.epoch, "w0", "w0")
        await self._bus.publish(inbox, encode(assigned))
        for index in range(len(record.output_token_ids), record.stop.max_new_tokens):
            await asyncio.sleep(STEP_S)
            token_id = 3 + (record.sampling.seed + 31 * index) % 300
            self.drawn.setdefault(order.choice_id, []).append(index)
            reason = record.stop.finish_reason(token_id, index + 1)
            delta = TokenDelta(
                order.stream.attempt_id, index, token_id, reason, logprobs=TokenLogprobs(-index / 7, (), ())
            )
            await self._bus.publish(inbox, encode(TokenBatch("w0", (delta,))))


class Gateways:
    """Gateways over one broker and one store."""

    def __init__(self, stack: AsyncExitStack, text: ChatText, model_dir: Path) -> None:
        self.broker, self.store = MemoryBroker(), MemoryStore()
        self.worker = Worker(self.broker, self.store)
        self.generations: list[MeshGeneration] = []
        self._stack, self._text, self._model_dir = stack, text, model_dir

    async def start(self, name: str) -> FastAPI:
        """Start one; return its API."""
        settings = GatewaySettings(service_id=name, model_dir=self._model_dir, model_name=MODEL, resume_s=5.0)
        member = Member(name, MemberKind.GATEWAY, 1, MemberState.STARTING, "a-host", 1, "a-host:1")
        service = ServiceHost(settings, MemoryBus(self.broker), self.store, ControlServer(LOOPBACK, 0), member)
        host = await self._stack.enter_async_context(service.joined())
        metrics = GatewayMetrics(CollectorRegistry(), MODEL)
        generation = MeshGeneration(host, settings, metrics)
        await generation.start()
        self.generations.append(generation)
        keep = partial(KeptRequests, generation, host.store, metrics, settings.keeping(member))
        return create_app(generation, self._text, ApiOptions(MODEL), metrics, keep)


@asynccontextmanager
async def gateways(text: ChatText, model_dir: Path) -> AsyncIterator[Gateways]:
    async with AsyncExitStack() as stack:
        opened = Gateways(stack, text, model_dir)
        await opened.worker.start()
        stack.push_async_callback(opened.worker.close)
        yield opened


@pytest.mark.parametrize("saves", [False, True])
async def test_another_gateway_takes_a_stream_over(saves: bool, text: ChatText, model_dir: Path) -> None:
    """From the tokens that were saved, which are not computed again; the former gateway's client is told, and its attempt ends.
    All is as in one stream with the same seed: text, tokens, scores.
    """
    async with gateways(text, model_dir) as mesh:
        first, second = await mesh.start("g0"), await mesh.start("g1")
        whole = content(await Client(first, "POST", CHATS, BODY | {"seed": 5}).events())
        client = Client(first, "POST", CHATS, BODY | {"seed": 5})
        events = [await client.event() for _ in range(30)]
        if saves:
            await mesh.generations[0].save()
        rest = await Client(second, "POST", CHATS, BODY | {"seed": 5}, {"Last-Event-ID": events[-1].id}).events()
        assert content([*events, *rest])[:2] == whole[:2]
        await mesh.generations[0].save()
        told = content(await client.events())[1]
        assert told[0]["code"] == "resumed_elsewhere"
        request_id = str(events[0].data and events[0].data["id"])
        for choice_id in (f"{request_id}#0", f"{request_id}#1"):
            assert mesh.worker.epochs[choice_id] == [1, 2]
            assert (mesh.worker.drawn[choice_id].count(0) == 1) is saves
            assert await mesh.store.get_record(choice_id) is None
        await until(lambda: not mesh.worker.running)


async def test_a_taken_request_stays_taken(text: ChatText, model_dir: Path) -> None:
    """The former gateway's attempt is lost, and its next one is refused by the store: it computes nothing, and says so."""
    async with gateways(text, model_dir) as mesh:
        first, second = await mesh.start("g0"), await mesh.start("g1")
        client = Client(first, "POST", CHATS, BODY)
        events = [await client.event() for _ in range(20)]
        other = Client(second, "POST", CHATS, BODY, {"Last-Event-ID": events[-1].id})
        await other.event()
        request_id = str(events[0].data and events[0].data["id"])
        generation = mesh.generations[0]
        for index in range(2):
            request = generation._role._requests[f"{request_id}#{index}"]
            lost = TokenDelta(request.attempt_id, 0, None, FinishReason.ERROR, error="lost", retryable=True)
            await MemoryBus(mesh.broker).publish(subjects.inbox("g0", 1), encode(TokenBatch("w0", (lost,))))
        assert content(await client.events())[1][0]["code"] == "resumed_elsewhere"
        assert content(await other.events())[1] == ["[DONE]"]
        assert mesh.worker.epochs[f"{request_id}#0"] == [1, 2]


async def test_a_gateway_that_leaves_hands_its_streams_on(text: ChatText, model_dir: Path) -> None:
    """A planned end cancels what is connected; the clients go on elsewhere all the same, with what was saved at the end."""
    async with gateways(text, model_dir) as mesh:
        first, second = await mesh.start("g0"), await mesh.start("g1")
        whole = content(await Client(first, "POST", CHATS, BODY | {"seed": 9}).events())
        client = Client(first, "POST", CHATS, BODY | {"seed": 9})
        events = [await client.event() for _ in range(20)]
        mesh.generations[0].is_leaving = True
        client.task.cancel()
        await asyncio.gather(client.task, return_exceptions=True)
        await mesh.generations[0].save()
        rest = await Client(second, "POST", CHATS, BODY | {"seed": 9}, {"Last-Event-ID": events[-1].id}).events()
        assert content([*events, *rest])[:2] == whole[:2]


async def test_the_same_key_at_two_gateways_is_one_request(text: ChatText, model_dir: Path) -> None:
    """The second gateway has the whole answer, from the start of the first's."""
    async with gateways(text, model_dir) as mesh:
        first, second = await mesh.start("g0"), await mesh.start("g1")
        key = {"Idempotency-Key": "a"}
        client = Client(first, "POST", CHATS, BODY, key)
        events = [await client.event() for _ in range(20)]
        await client.leave()
        rest = content(await Client(second, "POST", CHATS, BODY, key).events())
        assert [len(choice["token_ids"]) for _, choice in rest[0]] == [40, 40]
        so_far = content(events)[0]
        for (_, begun), (_, all_of_it) in zip(so_far, rest[0], strict=True):
            assert all_of_it["token_ids"][: len(begun["token_ids"])] == begun["token_ids"]
        assert content(await Client(first, "POST", CHATS, BODY, key).events()) == rest


async def test_of_two_connections_that_resume_at_once_one_is_told(text: ChatText, model_dir: Path) -> None:
    """At one gateway: one has the rest, the other an error that says where it is; neither hangs."""
    async with gateways(text, model_dir) as mesh:
        first, second = await mesh.start("g0"), await mesh.start("g1")
        whole = content(await Client(first, "POST", CHATS, BODY | {"seed": 7}).events())
        client = Client(first, "POST", CHATS, BODY | {"seed": 7})
        events = [await client.event() for _ in range(20)]
        rivals = [Client(second, "POST", CHATS, BODY | {"seed": 7}, {"Last-Event-ID": events[-1].id}) for _ in range(2)]
        rests = [await rival.events() for rival in rivals]
        told = [rest for rest in rests if content(rest)[1][0] != "[DONE]"]
        won = [rest for rest in rests if content(rest)[1] == ["[DONE]"]]
        assert [content(rest)[1][0]["code"] for rest in told] == ["resumed_elsewhere"]
        assert [content([*events, *rest])[:2] for rest in won] == [whole[:2]]
        await client.leave()
