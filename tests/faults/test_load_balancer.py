"""Two gateways behind the load balancer that is shipped: what it does with requests while no worker is there, or one ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.fault_mesh import FaultMesh
from tests.faults.load_balancer import load_balancer, why_impossible
from tests.live.mesh import MODEL, wait_for

pytestmark = pytest.mark.timeout(400)
#: For which no worker is there.
LOST_S = 20.0
#: Longer than the balancer takes to leave a gateway out.
LAME_DUCK_S = 3.0
TOKENS = 8
#: Between two requests of a client.
PAUSE_S = 0.25


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultMesh]:
    """A supervisor that does not replace what stands still: its workers are to be away for as long as the test says."""
    if reason := why_impossible():
        pytest.skip(f"no load balancer here: {reason}")
    env = {"SPOTWISE_LAME_DUCK_S": f"{LAME_DUCK_S:g}"}
    with FaultMesh(tmp_path_factory.mktemp("balanced"), "--hang-timeout", "0", env=env) as live:
        yield live


@pytest.fixture
def url(mesh: FaultMesh, tmp_path: Path) -> Iterator[str]:
    """Of the load balancer, once both gateways are ready."""
    with load_balancer(tmp_path, mesh.urls) as url:
        wait_for(
            lambda: all(httpx.get(f"{each}/health").is_success for each in mesh.urls), lambda: "gateways to serve", 60.0
        )
        wait_for(lambda: httpx.get(f"{url}/readyz").is_success, lambda: "the balancer to know them", 20.0)
        yield url


class Clients:
    """Clients that ask one question after the other, each by a connection of its own, and what they got."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = asyncio.Event()
        self._late: list[asyncio.Task[None]] = []
        self.errors: list[str] = []
        #: Monotonic seconds at which each answered request began and ended.
        self.answered: list[tuple[float, float]] = []

    async def ask_during(self, fault: Coroutine[Any, Any, None], count: int) -> None:
        """Let so many ask until a fault is over."""
        asking = [asyncio.create_task(self._ask(number)) for number in range(count)]
        try:
            await fault
        finally:
            self._over.set()
        await asyncio.gather(*asking, *self._late)

    def come_late(self, number: int) -> None:
        """Let one more ask from now on: it has no request under way yet."""
        self._late.append(asyncio.create_task(self._ask(number)))

    async def _ask(self, number: int) -> None:
        streams = number % 2 == 1
        body = {
            "model": MODEL,
            "prompt": f"{number}: and then",
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "stream": streams,
        }
        while not self._over.is_set():
            began_s = time.monotonic()
            async with httpx.AsyncClient(timeout=120.0, trust_env=False) as client:
                try:
                    answer = await client.post(f"{self._url}/v1/completions", json=body)
                except httpx.HTTPError as error:
                    self.errors.append(repr(error))
                    continue
            if answer.status_code != httpx.codes.OK or (streams and not answer.text.rstrip().endswith("[DONE]")):
                self.errors.append(f"{answer.status_code}: {answer.text[-300:]}")
            elif '"error"' in answer.text:
                self.errors.append(answer.text[-300:])
            self.answered.append((began_s, time.monotonic()))
            await asyncio.sleep(PAUSE_S)


def is_replaced(mesh: FaultMesh, pid: int) -> bool:
    """Whether another process is the second gateway now."""
    process = mesh.state.services["gateway-1"].process
    return process is not None and process.pid != pid


def signalled(mesh: FaultMesh, number: signal.Signals) -> None:
    """Send a signal to every worker."""
    for worker in mesh.WORKERS:
        os.kill(mesh.pid(worker), number)


def test_requests_are_held_while_all_workers_are_lost(mesh: FaultMesh, url: str) -> None:
    """For 20 s; the balancer leaves its gateways in, and no request ends with an error. Other answers come as ever."""
    lost: list[float] = []
    statuses: list[int] = []

    async def lose_all(clients: Clients) -> None:
        await asyncio.sleep(3.0)
        signalled(mesh, signal.SIGSTOP)
        lost.append(time.monotonic())
        try:
            while time.monotonic() < lost[0] + LOST_S:
                async with httpx.AsyncClient(timeout=10.0, trust_env=False) as client:
                    for path in ("/readyz", "/v1/models"):
                        statuses.append((await client.get(f"{url}{path}")).status_code)
                if len(statuses) % 10 == 0:
                    clients.come_late(len(statuses))
                await asyncio.sleep(0.5)
        finally:
            signalled(mesh, signal.SIGCONT)
        lost.append(time.monotonic())
        await asyncio.sleep(5.0)

    async def run() -> Clients:
        clients = Clients(url)
        await clients.ask_during(lose_all(clients), 8)
        return clients

    clients = asyncio.run(run())
    assert clients.errors == []
    assert set(statuses) == {200}
    from_s, until_s = lost
    held = [
        ended_s for began_s, ended_s in clients.answered if from_s < began_s < until_s or began_s <= from_s < ended_s
    ]
    assert len(held) >= 8  # each client had one
    assert any(ended_s > until_s for ended_s in held)
    mesh.wait_until_whole()


def test_a_gateway_that_is_stopped_fails_no_request(mesh: FaultMesh, url: str) -> None:
    """The balancer has left it out before it ends; its supervisor starts it again."""
    answers: set[tuple[int, ...]] = set()

    async def stop_one() -> None:
        await asyncio.sleep(2.0)
        pid = mesh.pid("gateway-1")
        os.kill(pid, signal.SIGTERM)
        async with httpx.AsyncClient(timeout=10.0, trust_env=False) as client:
            with contextlib.suppress(httpx.HTTPError):  # once it has ended
                while not is_replaced(mesh, pid):
                    asked = [await client.get(f"{mesh.urls[1]}{path}") for path in ("/livez", "/readyz", "/health")]
                    answers.add(tuple(each.status_code for each in asked))
                    await asyncio.sleep(0.1)
        await asyncio.to_thread(wait_for, lambda: is_replaced(mesh, pid), lambda: "another process", 60.0)
        await asyncio.sleep(2.0)

    async def run() -> Clients:
        clients = Clients(url)
        await clients.ask_during(stop_one(), 6)
        return clients

    clients = asyncio.run(run())
    assert clients.errors == []
    assert (200, 503, 200) in answers
    mesh.wait_until_whole()
