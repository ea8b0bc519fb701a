"""One machine's metadata on loopback, as AWS, Google Cloud, Azure and a Kubernetes API server serve it, with faults to order.

Paths, headers, status codes and forms of dates are those that the clouds document; a question that breaks a rule of theirs gets
their refusal. What is announced is served in the formats of all four at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Self
from urllib.parse import parse_qs, urlsplit

LOOPBACK = "127.0.0.1"
NODE_TOKEN = "a-service-account"
TTL_HEADER = "x-aws-ec2-metadata-token-ttl-seconds"


@dataclass(frozen=True, slots=True)
class Question:
    """A request as it came; names of headers in lower case."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Answer:
    """The answer to a request."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, document: object) -> Answer:
        """A document of JSON."""
        return cls(200, json.dumps(document).encode(), {"Content-Type": "application/json"})


@dataclass(slots=True)
class Fault:
    """What goes wrong with requests of a path.

    Attributes:
        path: beginning of the paths that it concerns.
        times: how many requests.
        after: how many are answered well before.
        status: sent instead of the answer.
        body: sent instead of the answer's.
        slow_s: the answer comes so much later.
        truncated: the connection ends in the middle of the body.
        hang_up: the connection ends before any answer.
        raw: bytes sent instead of HTTP.
    """

    path: str = "/"
    times: int = 1
    after: int = 0
    status: int | None = None
    body: bytes | None = None
    slow_s: float = 0.0
    truncated: bool = False
    hang_up: bool = False
    raw: bytes = b""


class MetadataServer:
    """A machine's metadata, from its start to its end.

    Args:
        vm_name, node_name: what the machine is called.
        clouds: which languages are spoken; the doors of the others do not exist.
        clock: Unix time.
    """

    def __init__(
        self,
        vm_name: str = "vm-0",
        node_name: str = "node-0",
        clouds: tuple[str, ...] = ("aws", "gcp", "azure", "kubernetes"),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.vm_name = vm_name
        self.node_name = node_name
        self.clouds = clouds
        self.clock = clock
        self.questions: list[Question] = []
        #: Ids of events that were acknowledged.
        self.acknowledged: list[str] = []
        self.faults: list[Fault] = []
        #: Machines that Azure's events name besides this one.
        self.other_resources: list[str] = []
        self.azure_names_a_time = True
        self.aws_token_uses: int | None = None
        self.taint_has_a_time = True
        self.deadline_s: float | None = None
        self.rebalance_s: float | None = None
        self._announced_s = 0.0
        self._event_id = ""
        self._started = False
        self._tokens: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._version = 1
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, LOOPBACK, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        """The URL on which the server listens."""
        assert self._server is not None
        return f"http://{LOOPBACK}:{self._server.sockets[0].getsockname()[1]}"

    # --- what happens to the machine ------------------------------------------------------------------------------------

    def announce(self, deadline_s: float) -> float:
        """The machine is to go then; returns the time that the clouds can write, in whole seconds."""
        self.deadline_s = float(int(deadline_s))
        if not self._event_id:
            self._announced_s = self.clock()
            self._event_id = f"event-{next(self._numbers)}"
        self._change()
        return self.deadline_s

    def withdraw(self) -> None:
        """Withdraw the announcement: the machine stays."""
        self.deadline_s, self._event_id, self._started = None, "", False
        self._change()

    def recommend_rebalance(self) -> None:
        """Recommend a rebalance: the machine may have to go."""
        self.rebalance_s = self.clock()

    def forget_tokens(self) -> None:
        """AWS' sessions end before their time."""
        self._tokens.clear()

    def asked(self, path: str) -> list[Question]:
        """The questions of a path so far."""
        return [question for question in self.questions if question.path.startswith(path)]

    def _change(self) -> None:
        self._version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # --- HTTP -------------------------------------------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                question = await _read(reader)
                self.questions.append(question)
                await self._respond(question, writer)
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _respond(self, question: Question, writer: asyncio.StreamWriter) -> None:
        fault = self._fault_of(question)
        if fault is not None and fault.hang_up:
            return
        if fault is not None and fault.slow_s:
            await asyncio.sleep(fault.slow_s)
        if fault is not None and fault.raw:
            writer.write(fault.raw)
            await writer.drain()
            return
        answer = Answer(fault.status) if fault is not None and fault.status else await self._answer(question)
        if fault is not None and fault.body is not None:
            answer.body = fault.body
        head = [f"HTTP/1.1 {answer.status} Said", f"Content-Length: {len(answer.body)}", "Connection: close"]
        head += [f"{name}: {value}" for name, value in answer.headers.items()]
        body = answer.body
        if fault is not None and fault.truncated:
            body = body[: len(body) // 2]
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        await writer.drain()

    def _fault_of(self, question: Question) -> Fault | None:
        for fault in self.faults:
            if question.path.startswith(fault.path) and fault.times > 0:
                if fault.after > 0:
                    fault.after -= 1
                    continue
                fault.times -= 1
                return fault
        return None

    async def _answer(self, question: Question) -> Answer:
        path, method = question.path, question.method
        if "aws" in self.clouds and path == "/latest/api/token" and method == "PUT":
            return self._new_token(question)
        if "aws" in self.clouds and path.startswith("/latest/meta-data/") and method == "GET":
            return self._aws(question)
        if "gcp" in self.clouds and path.startswith("/computeMetadata/v1/") and method == "GET":
            return await self._gcp(question)
        if "azure" in self.clouds and path.startswith("/metadata/"):
            return self._azure(question)
        if "kubernetes" in self.clouds and path.startswith("/api/v1/nodes/") and method == "GET":
            return self._kubernetes(question)
        return Answer(404)

    # --- each cloud ---------------------------------------------------------------------------------------------------------

    def _new_token(self, question: Question) -> Answer:
        ttl = question.headers.get(TTL_HEADER, "")
        if not ttl.isdigit() or not 1 <= int(ttl) <= 21_600:
            return Answer(400)
        token = f"token-{next(self._numbers)}"
        self._tokens[token] = self.aws_token_uses if self.aws_token_uses is not None else 1 << 30
        return Answer(200, token.encode(), {TTL_HEADER: ttl})

    def _aws(self, question: Question) -> Answer:
        token = question.headers.get("x-aws-ec2-metadata-token", "")
        if self._tokens.get(token, 0) <= 0:
            return Answer(401)
        self._tokens[token] -= 1
        if question.path == "/latest/meta-data/spot/instance-action" and self.deadline_s is not None:
            return Answer.of({"action": "terminate", "time": _rfc3339(self.deadline_s)})
        if question.path == "/latest/meta-data/events/recommendations/rebalance" and self.rebalance_s is not None:
            return Answer.of({"noticeTime": _rfc3339(self.rebalance_s)})
        return Answer(404, b"<?xml version='1.0'?><html><title>404 - Not Found</title></html>")

    async def _gcp(self, question: Question) -> Answer:
        if question.headers.get("metadata-flavor") != "Google":
            return Answer(403)
        headers = {"Metadata-Flavor": "Google"}
        if question.path == "/computeMetadata/v1/instance/id":
            return Answer(200, b"4520031799277581759", headers)
        if question.path != "/computeMetadata/v1/instance/preempted":
            return Answer(404, b"", headers)
        known = question.query.get("last_etag", [str(self._version)])[0]
        if question.query.get("wait_for_change") == ["true"] and known == str(self._version):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(float(question.query.get("timeout_sec", ["3600"])[0])):
                    await self._changed.wait()
        value = b"FALSE" if self.deadline_s is None else b"TRUE"
        return Answer(200, value, {**headers, "ETag": str(self._version)})

    def _azure(self, question: Question) -> Answer:
        if question.headers.get("metadata") != "true" or "api-version" not in question.query:
            return Answer(400)
        if question.path == "/metadata/instance/compute/name":
            return Answer(200, self.vm_name.encode())
        if question.path != "/metadata/scheduledevents":
            return Answer(404)
        if question.method == "POST":
            return self._azure_acknowledged(question)
        events = []
        if self.deadline_s is not None:
            named = self.azure_names_a_time and not self._started
            events.append(
                {
                    "EventId": self._event_id,
                    "EventType": "Preempt",
                    "EventStatus": "Started" if self._started else "Scheduled",
                    "ResourceType": "VirtualMachine",
                    "Resources": [self.vm_name, *self.other_resources],
                    "NotBefore": _rfc1123(self.deadline_s) if named else "",
                    "EventSource": "Platform",
                }
            )
        return Answer.of({"DocumentIncarnation": self._version, "Events": events})

    def _azure_acknowledged(self, question: Question) -> Answer:
        ids = [each["EventId"] for each in json.loads(question.body)["StartRequests"]]
        if ids != [self._event_id]:
            return Answer(400)
        self.acknowledged += ids
        self._started = True
        self._change()
        return Answer(200)

    def _kubernetes(self, question: Question) -> Answer:
        if question.headers.get("authorization") != f"Bearer {NODE_TOKEN}":
            return Answer(401)
        if question.path != f"/api/v1/nodes/{self.node_name}":
            return Answer(404)
        taints = [{"key": "node.kubernetes.io/unrelated", "effect": "NoSchedule"}]
        if self.deadline_s is not None:
            taint = {"key": "cloud.google.com/impending-node-termination", "effect": "NoExecute", "value": "true"}
            taints.append(taint | ({"timeAdded": _rfc3339(self._announced_s)} if self.taint_has_a_time else {}))
        metadata = {"name": self.node_name}
        return Answer.of({"kind": "Node", "apiVersion": "v1", "metadata": metadata, "spec": {"taints": taints}})


async def _read(reader: asyncio.StreamReader) -> Question:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    url = urlsplit(target)
    return Question(method, url.path, parse_qs(url.query), headers, body)


def _rfc3339(at_s: float) -> str:
    return datetime.fromtimestamp(int(at_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _rfc1123(at_s: float) -> str:
    return format_datetime(datetime.fromtimestamp(int(at_s), UTC), usegmt=True)
