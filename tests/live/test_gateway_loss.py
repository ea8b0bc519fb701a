"""Gateways that die or stand still while they stream: the clients go on at another one, token for token."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from spotwise.cli.client.chat_stream import AnswerFigures, ChatClient
from tests.live.mesh import MODEL, wait_for
from tests.live.second_gateway import SecondGateway
from tests.live.simulated_mesh import QUESTION, SimulatedMesh

pytestmark = pytest.mark.paired

#: Long enough to be in the midst of, and a few seconds at most.
TOKENS = 120
BODY = {"model": MODEL, "max_tokens": TOKENS, "ignore_eos": True, "stream": True, "return_token_ids": True}
USAGE = {"stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedMesh]:
    """Two gateways, one prompt worker and two token workers, which take their time."""
    options = ("--gateways", "2", "--prompt-workers", "1", "--token-workers", "2", "--speed", "1.5")
    env = {"SPOTWISE_ANSWER_GRACE_S": "3"}
    with SimulatedMesh(tmp_path_factory.mktemp("gateways"), *options, env=env) as mesh:
        yield mesh


@pytest.fixture
def gateway(simulated: SimulatedMesh) -> SecondGateway:
    """The gateway to lose."""
    second = SecondGateway(simulated)
    second.wait_until_it_serves()
    return second


@dataclass
class Said:
    """What a client got, over all its connections."""

    last_id: str = ""
    request_id: str = ""
    tokens: dict[int, list[int]] = field(default_factory=dict)
    text: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, list[float]] = field(default_factory=dict)
    ends: dict[int, str] = field(default_factory=dict)
    usage: dict[str, int] | None = None
    is_whole: bool = False
    error: str = ""

    def add(self, event_id: str, event: dict[str, Any]) -> None:
        self.last_id = event_id or self.last_id
        if "error" in event:
            self.error = event["error"]["code"]
            return
        assert self.request_id in ("", event["id"])
        self.request_id = event["id"]
        self.usage = event.get("usage") or self.usage
        for choice in event["choices"]:
            index = choice["index"]
            assert index not in self.ends, "more after the end"
            self.tokens.setdefault(index, []).extend(choice.get("token_ids") or [])
            piece = choice.get("text") or choice.get("delta", {}).get("content") or ""
            self.text[index] = self.text.get(index, "") + piece
            scored = (choice.get("logprobs") or {}).get("content") or []
            self.logprobs.setdefault(index, []).extend(each["logprob"] for each in scored)
            if choice["finish_reason"] is not None:
                self.ends[index] = choice["finish_reason"]

    def same_as(self, other: Said) -> bool:
        mine, others = (
            (said.tokens, said.text, said.logprobs, said.ends, said.usage and said.usage["total_tokens"])
            for said in (self, other)
        )
        return mine == others


def read(url: str, path: str, body: dict[str, Any], said: Said, seen: Callable[[Said], None] = lambda _: None) -> Said:
    """Stream, from where `said` ends, until the end or until the connection breaks."""
    headers = {"X-Resume": "true"} | ({"Last-Event-ID": said.last_id} if said.last_id else {})
    event_id = ""
    try:
        with httpx.stream("POST", f"{url}{path}", json=body, headers=headers, timeout=30.0) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                if line.startswith("id: "):
                    event_id = line[4:]
                elif line == "data: [DONE]":
                    said.is_whole = not said.error
                elif line.startswith("data: "):
                    said.add(event_id, json.loads(line[6:]))
                    seen(said)
    except httpx.TransportError:
        pass
    return said


def requests(seed: int) -> list[tuple[str, dict[str, Any]]]:
    """A stream of each kind."""
    chat = {"messages": [{"role": "user", "content": QUESTION}]}
    return [
        ("/v1/completions", BODY | USAGE | {"prompt": QUESTION, "seed": seed}),
        ("/v1/chat/completions", BODY | USAGE | chat | {"seed": seed + 1}),
        ("/v1/chat/completions", BODY | USAGE | chat | {"seed": seed + 2, "n": 2, "logprobs": True, "stop": ["qqq"]}),
    ]


def disturbed(gateway: SecondGateway, seed: int, after_tokens: int, disturb: Callable[[], None]) -> list[Said]:
    """Stream at the gateway, and disturb it in the midst of all streams; what the clients have when these break."""
    said = [Said() for _ in requests(seed)]
    begun = threading.Barrier(len(said) + 1)

    def client(number: int) -> None:
        path, body = requests(seed)[number]
        waits = True

        def seen(so_far: Said) -> None:
            nonlocal waits
            if waits and len(so_far.tokens.get(0, ())) >= after_tokens:
                waits = False
                begun.wait(30)

        read(gateway.url, path, body, said[number], seen)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(len(said))]
    for thread in threads:
        thread.start()
    begun.wait(30)
    disturb()
    for thread in threads:
        thread.join(30)
    return said


def test_streams_go_on_at_another_gateway_when_theirs_is_killed(
    simulated: SimulatedMesh, gateway: SecondGateway
) -> None:
    """kill -9 in the midst of all streams, and of a token worker at the same time: nothing is lost, nothing comes twice."""
    undisturbed = [read(simulated.url, path, body, Said()) for path, body in requests(10)]
    assert all(each.is_whole for each in undisturbed)

    def kill() -> None:
        gateway.kill()
        (workers,) = (name for name in simulated.state.services if name.startswith("token"))
        os.kill(simulated.pid(workers), signal.SIGKILL)

    said = disturbed(gateway, 10, 30, kill)
    assert not any(each.is_whole for each in said)
    for (path, body), so_far, whole in zip(requests(10), said, undisturbed, strict=True):
        before = len(so_far.tokens[0])
        read(simulated.url, path, body, so_far)
        assert so_far.is_whole, so_far.error
        assert so_far.same_as(whole)
        assert before < TOKENS
    simulated.wait_until_idle()


def test_a_gateway_that_wakes_up_doubles_nothing(simulated: SimulatedMesh, gateway: SecondGateway) -> None:
    """SIGSTOP; another gateway goes on; SIGCONT. What the woken one still says is the beginning of the same answer, or that the
    request is elsewhere; the mesh holds nothing of it.
    """
    undisturbed = [read(simulated.url, path, body, Said()) for path, body in requests(20)]
    resumed: list[Said] = []

    def resume(number: int) -> Said:
        path, body = requests(20)[number]
        return read(simulated.url, path, body, Said(last_id=said[number].last_id))

    def pause() -> None:
        gateway.stop()
        with ThreadPoolExecutor() as clients:  # at once: what ends before it is resumed, the woken one has whole
            resumed.extend(clients.map(resume, range(len(said))))
        gateway.wake()

    said = [Said() for _ in requests(20)]
    begun = threading.Barrier(len(said) + 1)

    def client(number: int) -> None:
        path, body = requests(20)[number]

        def seen(so_far: Said) -> None:
            if not begun.broken and len(so_far.tokens.get(0, ())) == 20 and number not in waited:
                waited.add(number)
                begun.wait(30)

        read(gateway.url, path, body, said[number], seen)

    waited: set[int] = set()
    threads = [threading.Thread(target=client, args=(number,)) for number in range(len(said))]
    for thread in threads:
        thread.start()
    begun.wait(30)
    pause()
    for thread in threads:
        thread.join(40)
    for old, new, whole in zip(said, resumed, undisturbed, strict=True):
        assert new.is_whole, new.error
        assert not old.is_whole
        assert old.error == "resumed_elsewhere"
        for index, tokens in whole.tokens.items():
            assert tokens[: len(old.tokens[index])] == old.tokens[index]
            assert tokens[len(tokens) - len(new.tokens.get(index, ())) :] == new.tokens.get(index, [])
    simulated.wait_until_idle()


def test_the_command_line_and_the_example_go_on(simulated: SimulatedMesh, gateway: SecondGateway) -> None:
    """`spotwise chat` and docs/examples/spotwise_stream.py read on when the gateway is killed and the other one is there."""
    path = Path(__file__).parents[2] / "docs" / "examples" / "spotwise_stream.py"
    spec = importlib.util.spec_from_file_location("spotwise_stream", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    chat = {
        "model": MODEL,
        "max_tokens": TOKENS,
        "messages": [{"role": "user", "content": QUESTION}],
        "ignore_eos": True,
    }
    bodies = [chat | {"seed": 31}, chat | {"seed": 32}]
    whole = []
    for body in bodies:
        with closing(ChatClient(simulated.url)) as client:
            whole.append("".join(client.stream(body, AnswerFigures())))
    urls = [gateway.url, simulated.url]
    texts = ["", ""]
    begun = threading.Barrier(3)

    def by_command() -> None:
        with closing(ChatClient(*urls)) as client:
            for number, piece in enumerate(client.stream(bodies[0], AnswerFigures())):
                texts[0] += piece
                if number == 20:
                    begun.wait(30)

    def by_example() -> None:
        for number, piece in enumerate(example.stream(urls, bodies[1])):
            texts[1] += piece
            if number == 20:
                begun.wait(30)

    threads = [threading.Thread(target=each) for each in (by_command, by_example)]
    for thread in threads:
        thread.start()
    begun.wait(30)
    gateway.kill()
    for thread in threads:
        thread.join(40)
    assert texts == whole


def test_a_gateway_that_is_stopped_tells_those_whom_it_has_not_answered(
    simulated: SimulatedMesh, gateway: SecondGateway
) -> None:
    """SIGTERM: whole answers, in each API's form, and a body that is still being sent; all are worth sending again."""
    long = {"model": MODEL, "max_tokens": 7000, "messages": [{"role": "user", "content": QUESTION}]}
    urls = [f"{gateway.url}{path}" for path in ("/v1/chat/completions", "/v1/messages")]
    with ThreadPoolExecutor() as clients:
        answers = [clients.submit(httpx.post, url, timeout=60.0, json=long | {"ignore_eos": True}) for url in urls]
        answers.append(clients.submit(_half_a_body, gateway.url))
        wait_for(lambda: _running(simulated) >= 2, lambda: "the requests to run", 30.0)
        gateway.end()
        told = [answer.result() for answer in answers]
    for answer in told:
        assert answer.status_code == 503, answer.text
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "gateway_stopping"
        assert answer.headers["x-request-id"]
    assert [answer.json().get("type") for answer in told] == [None, "error", None]
    simulated.wait_until_idle()


def _half_a_body(url: str) -> httpx.Response:
    """What a client is answered that has not sent all of its body."""
    with closing(HTTPConnection(urlsplit(url).netloc, timeout=60.0)) as connection:
        connection.putrequest("POST", "/tokenize")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", "100")
        connection.endheaders(b'{"model": ')
        answer = connection.getresponse()
        return httpx.Response(answer.status, headers=answer.getheaders(), content=answer.read())


def _running(simulated: SimulatedMesh) -> int:
    return sum(status.member_now.load.running for status in simulated.members() if status.member_now.load is not None)


def test_a_restarted_gateway_goes_on_with_its_own_streams(simulated: SimulatedMesh) -> None:
    """A gateway is killed; its successor, with the same address, has its streams."""
    path, body = requests(40)[2]
    whole = read(simulated.url, path, body, Said())
    so_far = Said()
    killed: list[bool] = []

    def seen(said: Said) -> None:
        if not killed and len(said.tokens.get(0, ())) >= 30:
            killed.append(True)
            os.kill(simulated.pid("gateway-0"), signal.SIGKILL)

    read(simulated.url, path, body, so_far, seen)
    assert not so_far.is_whole

    def serves() -> bool:
        try:
            return httpx.get(f"{simulated.url}/health", timeout=2.0).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    wait_for(serves, lambda: "the gateway to come back", 30.0)
    read(simulated.url, path, body, so_far)
    assert so_far.is_whole, so_far.error
    assert so_far.same_as(whole)
