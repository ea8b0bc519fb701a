"""A gateway that is stopped while it answers: what ends in its grace is answered, and a second signal ends the grace."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from tests.live.mesh import MODEL, ONE_MIXED, LiveMesh, wait_for
from tests.live.simulated_mesh import SimulatedMesh

pytestmark = pytest.mark.parallel

#: Longer than any of these answers takes.
GRACE_S = 120


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedMesh]:
    """A mesh whose gateway has a long grace."""
    home = tmp_path_factory.mktemp("patient")
    with SimulatedMesh(home, *ONE_MIXED, env={"SPOTWISE_ANSWER_GRACE_S": str(GRACE_S)}) as mesh:
        yield mesh


@pytest.fixture(autouse=True)
def _serves(patient: SimulatedMesh) -> None:
    """Wait for the gateway that has followed on one that was stopped."""

    def serves() -> bool:
        try:
            return httpx.get(f"{patient.url}/health", timeout=2.0).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    wait_for(serves, lambda: "the gateway to serve", 60.0)


def ask(mesh: LiveMesh, tokens: int) -> httpx.Response:
    """Complete a prompt, not as a stream."""
    body = {"model": MODEL, "prompt": "Go on", "max_tokens": tokens, "ignore_eos": True}
    return httpx.post(f"{mesh.url}/v1/completions", json=body, timeout=GRACE_S)


def stopped_while_it_answers(mesh: SimulatedMesh, clients: ThreadPoolExecutor, tokens: int) -> Future[httpx.Response]:
    """Stop the gateway once a request runs."""
    asking = clients.submit(ask, mesh, tokens)

    def runs() -> bool:
        loads = (status.member_now.load for status in mesh.members() if status.member_now.load is not None)
        return any(load.running for load in loads)

    wait_for(runs, lambda: "the request to run", 30.0)
    os.kill(mesh.pid("gateway-0"), signal.SIGTERM)
    return asking


def test_what_ends_in_the_grace_is_answered(patient: SimulatedMesh) -> None:
    """An answer takes longer than stopping would; no further connection is taken meanwhile."""
    with ThreadPoolExecutor() as clients:
        asking = stopped_while_it_answers(patient, clients, 200)
        answer = asking.result(GRACE_S)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 200


def test_a_second_signal_ends_the_grace(patient: SimulatedMesh) -> None:
    """What was not answered is told at once, and worth sending again."""
    began_s = time.monotonic()
    with ThreadPoolExecutor() as clients:
        asking = stopped_while_it_answers(patient, clients, 7000)
        time.sleep(0.5)
        assert not asking.done()
        os.kill(patient.pid("gateway-0"), signal.SIGTERM)
        answer = asking.result(GRACE_S)
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"]["code"] == "gateway_stopping"
    assert time.monotonic() - began_s < GRACE_S
    patient.wait_until_idle()
