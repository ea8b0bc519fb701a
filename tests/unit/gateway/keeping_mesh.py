"""A mesh in memory that saves what it generates: gateways over one store, and clients that lose them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.types import Message

from spotwise.core.gateway.keeping import KeepingRole
from spotwise.core.gateway.kept_request import KeptAttempt
from spotwise.core.messages.mesh import TokenDelta
from spotwise.core.requests.request import FinishReason
from spotwise.gateway.access.api_access import ApiAccess
from spotwise.gateway.generate.api_options import ApiOptions
from spotwise.gateway.generate.generation import GeneratedTokens, SequenceSpec
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.generate.token_stream import saved
from spotwise.gateway.resume.kept_requests import KeptRequests
from spotwise.gateway.resume.owned_requests import OwnedRequests
from spotwise.gateway.resume.ports import KeepingLimits
from spotwise.gateway.resume.stored_responses import StoredResponses
from spotwise.gateway.resume.token_saver import TokenSaver
from spotwise.gateway.routes.app import create_app
from spotwise.http.errors import GenerationError
from spotwise.mesh.service.role_loop import RoleLoop
from spotwise.text.chat_text import ChatText
from tests.fakes.memory import FakeClock, MemoryStore
from tests.unit.gateway.apps import Json, open_to
from tests.unit.gateway.fake_mesh import MODEL, FakeMesh, _sampled


@dataclass
class KeepingMesh(FakeMesh):
    """One gateway's mesh: `store` is all that it shares with others'. It waits before token `hang_at` until `go` is set."""

    store: MemoryStore = field(default_factory=MemoryStore)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    is_leaving: bool = False
    closed: list[tuple[str, int]] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.saver = TokenSaver(self.store, lambda _: (None, ()), self.step_down)
        self._taken: dict[str, asyncio.Event] = {}

    async def generate(self, choice_id: str, spec: SequenceSpec) -> AsyncGenerator[GeneratedTokens, None]:
        index = int(choice_id.partition("#")[2] or 0)
        earlier, taken = spec.earlier, asyncio.Event()
        self._taken[choice_id] = taken
        self.specs[choice_id] = spec
        self.open.add(choice_id)
        if spec.owner:
            self.saver.watch(choice_id, spec.owner, earlier)
        finished = False
        try:
            if earlier is not None:
                self.resumed.append(choice_id)
                if (tokens := saved(choice_id, earlier)) is not None:
                    yield tokens
                    if tokens.finish_reason is not None:
                        return
            if self.fail_at == -1:
                raise self.error
            reply = self.replies.get(index, self.reply)
            for position, token_id in enumerate(reply):
                if earlier is not None and position < len(earlier.token_ids):
                    continue
                await asyncio.sleep(0)
                if position == self.hang_at:
                    self.hung.put_nowait(choice_id)
                    waits = [asyncio.create_task(each.wait()) for each in (self.go, taken)]
                    try:
                        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        for wait in waits:
                            wait.cancel()
                if taken.is_set():
                    raise GenerationError(409, "resumed_elsewhere", "Another connection has it.", is_charged=True)
                token = _sampled(choice_id, spec, position, token_id)
                reason = spec.stop.finish_reason(token_id, position + 1)
                reason = FinishReason.LENGTH if reason is None and position + 1 == len(reply) else reason
                delta = TokenDelta(
                    0, position, token_id, reason, logprobs=token.logprobs, prompt_logprobs=token.prompt_logprobs
                )
                self.saver.add(choice_id, [delta])
                finished = reason is not None
                yield GeneratedTokens((token,), reason)
                if finished:
                    return
        finally:
            self.open.discard(choice_id)
            if not finished:
                self.cancelled.append(choice_id)

    def attempts(self, choice_ids: Iterable[str]) -> dict[str, KeptAttempt]:
        return {each: KeptAttempt(1, self.specs[each].stop) for each in choice_ids if each in self.open}

    def step_down(self, choice_id: str) -> None:
        if choice_id in self._taken:
            self._taken[choice_id].set()

    def close(self, choice_id: str, epoch: int) -> None:
        self.closed.append((choice_id, epoch))


def keeper(mesh: KeepingMesh, metrics: GatewayMetrics, limits: KeepingLimits) -> Callable[..., KeptRequests]:
    """What keeps requests at a gateway without a journal."""
    role = KeepingRole(limits.resume_s, limits.answer_kept_s)

    def new_loop(performers: Mapping[type, Callable[[Any], None]]) -> tuple[KeepingRole, RoleLoop]:
        return role, RoleLoop(role, FakeClock(), performers)

    return partial(KeptRequests, OwnedRequests(mesh, mesh.store, metrics, limits, new_loop), metrics)


def keeping_app(
    mesh: KeepingMesh,
    text: ChatText,
    name: str = "g0",
    resume_s: float = 30.0,
    access: ApiAccess | None = None,
    metrics: GatewayMetrics | None = None,
    **options: Any,
) -> Starlette:
    """The API of one gateway; `options`: of its `ApiOptions`."""
    metrics = metrics or GatewayMetrics(CollectorRegistry(), MODEL)
    keep = keeper(mesh, metrics, KeepingLimits(name, resume_s=resume_s))
    stored = storing(mesh.store)
    return create_app(mesh, text, ApiOptions(MODEL, **options), metrics, access or open_to(), keep, stored=stored)


def storing(store: MemoryStore) -> StoredResponses:
    """What stores responses in a store."""
    return StoredResponses(store.responses, 3600.0, timeout_s=5.0)


@dataclass(frozen=True)
class Event:
    """One server-sent event; `data` is `None` for `[DONE]`."""

    id: str
    data: Any


def parsed(part: str) -> Event:
    lines = part.split("\n")
    event_id = "".join(line.removeprefix("id: ") for line in lines if line.startswith("id: "))
    (data,) = (line.removeprefix("data: ") for line in lines if line.startswith("data: "))
    event = Event(event_id, None if data == "[DONE]" else json.loads(data))
    assert all(line == f"event: {event.data['type']}" for line in lines if line.startswith("event: "))
    return event


class Client:
    """One connection: reads event by event, and can break; `chunks`: what came, of which no more than some may be unread."""

    def __init__(
        self,
        app: Starlette,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        query: str = "",
        most_unread: int = 0,
    ) -> None:
        self.chunks: list[bytes] = []
        self._sent: asyncio.Queue[Message] = asyncio.Queue(most_unread)
        self._left = asyncio.Event()
        content = b"" if body is None else json.dumps(body).encode()
        self._incoming: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]
        given = {"host": "gateway", "content-type": "application/json", "x-resume": "true", **(headers or {})}
        scope: Json = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
        }
        self.status = 0
        self.headers: dict[str, str] = {}
        self._buffer = ""
        self._is_over = False
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        if self._incoming:
            return self._incoming.pop()
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message.get("body"):
            self.chunks.append(message["body"])
        await self._sent.put(message)

    async def _read(self) -> bool:
        message = await asyncio.wait_for(self._sent.get(), 10)
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return True
        self._buffer += message["body"].decode()
        return bool(message.get("more_body", False))

    async def event(self) -> Event:
        """Return the next event."""
        part = await self.part()
        assert part is not None
        return parsed(part)

    async def part(self) -> str | None:
        """Return the lines of the next event; `None` after the last."""
        while "\n\n" not in self._buffer:
            if self._is_over:
                return None
            self._is_over = not await self._read()
        part, _, self._buffer = self._buffer.partition("\n\n")
        return part

    async def events(self) -> list[Event]:
        """Return all that follow; the last must be `[DONE]`."""
        events = [await self.event()]
        while events[-1].data is not None:
            events.append(await self.event())
        return events

    async def named_events(self, most: int | None = None) -> list[Event]:
        """Return all events of a stream that has no `[DONE]`, or the next ones."""
        events: list[Event] = []
        while (most is None or len(events) < most) and (part := await self.part()) is not None:
            assert part.split("\n")[-2].startswith("event: ")
            events.append(parsed(part))
        return events

    async def answer(self) -> Any:
        """Return the whole answer, as JSON."""
        while await self._read():
            pass
        return json.loads(self._buffer)

    async def leave(self) -> None:
        self._left.set()
        await asyncio.wait_for(self.task, 10)


def request_id_of(events: list[Event]) -> str:
    """The id that the first event of a chat or completion has."""
    return str(events[0].data["id"])


def content(events: list[Event]) -> list[Any]:
    """What the events say, choice by choice, in whatever pieces: text, token ids, log-probabilities, endings, usage."""
    said: dict[int, Json] = {}
    others: list[Any] = []
    for event in events:
        if event.data is None:
            others.append("[DONE]")
            continue
        if not event.data.get("choices"):
            others.append(event.data.get("usage") or event.data.get("error"))
        for choice in event.data.get("choices", []):
            of_choice = said.setdefault(
                choice["index"], {"text": "", "token_ids": [], "logprobs": [], "ends": [], "calls": {}}
            )
            of_choice["text"] += choice.get("text", "") + choice.get("delta", {}).get("content", "")
            for call in choice.get("delta", {}).get("tool_calls") or []:
                of_call = of_choice["calls"].setdefault(
                    call["index"], [call.get("id"), call["function"].get("name"), ""]
                )
                of_call[2] += call["function"]["arguments"]
            of_choice["token_ids"] += choice.get("token_ids") or []
            if (scored := choice.get("logprobs")) is not None:
                names = ("content", "tokens", "token_logprobs", "text_offset", "top_logprobs")
                for name in names:
                    of_choice["logprobs"] += [(name, entry) for entry in scored.get(name) or []]
            if choice["finish_reason"] is not None:
                of_choice["ends"].append((choice["finish_reason"], choice.get("stop_reason")))
    for of_choice in said.values():
        of_choice["logprobs"].sort(key=lambda pair: str(pair[0]))
    return [sorted(said.items()), others, {event.data["id"] for event in events if event.data and "id" in event.data}]
