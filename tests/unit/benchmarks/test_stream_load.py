"""Many streams against a gateway, and the processes that serve them."""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from spotwise.benchmarks.process_usage import ProcessUsage
from spotwise.benchmarks.stream_client import StreamConnection
from spotwise.benchmarks.stream_load import run_streams
from spotwise.cli.bench.load import StreamShape
from spotwise.cli.bench.servers import MeshEndpoint
from spotwise.cli.errors import CommandError
from spotwise.cli.launch.options import MeshOptions
from spotwise.cli.launch.run_folder import run_folder
from spotwise.cli.launch.supervision.run_state import RecordedService, RunState, ServiceState, write_state
from spotwise.mesh.embedded.child_process import ProcessIdentity, identify
from tests.unit.benchmarks.sse_gateway import breaking, failing, gateway, refusing, short, whole

SHAPE = StreamShape(streams=1, requests=3, input_tokens=4, output_tokens=2, seed=1)


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A mesh whose gateway is this process; of its workers one has not started and one is dead."""
    monkeypatch.setenv("SPOTWISE_HOME", str(tmp_path))
    folder = run_folder("here")
    folder.path.mkdir(parents=True)
    this = identify(os.getpid())
    assert this is not None
    services = {
        "gateway-0": RecordedService(state=ServiceState.HEALTHY, process=this),
        "prompt-0": RecordedService(),
        "token-0": RecordedService(state=ServiceState.HEALTHY, process=ProcessIdentity(2**22 + 1, 1)),
    }
    options = MeshOptions(name="here", model_folder=tmp_path, model_name="m")
    state = RunState(
        supervisor=this,
        ready=True,
        options=options,
        nats_url="nats://127.0.0.1:1",
        redis_url="redis://127.0.0.1:2/0",
        started_unix_s=time.time(),
        services=services,
    )
    write_state(folder.state_path, state)
    return "here"


def test_the_usage_of_running_processes_is_read(mesh: str) -> None:
    before = ProcessUsage.of_mesh(mesh)
    assert list(before.cpu_s) == list(before.resident_bytes) == ["gateway-0"]
    assert before.resident_bytes["gateway-0"] > 2**20
    spent = time.process_time()
    while time.process_time() < spent + 0.05:
        pass
    after = ProcessUsage.of_mesh(mesh)
    assert 0.03 <= after.cpu_since(before)["gateway-0"] <= after.cpu_s["gateway-0"]
    assert (
        after.cpu_since(replace(before, cpu_s={})) == after.cpu_s
    )  # a process that was not there yet had used nothing
    with pytest.raises(CommandError, match="no mesh named"):
        ProcessUsage.of_mesh("elsewhere")


async def test_every_stream_sends_its_number_of_requests(mesh: str) -> None:
    answered = Counter[str]()
    async with gateway(whole, failing, whole) as (url, bodies):
        endpoint = MeshEndpoint(url, "m", "redis://127.0.0.1:2/0", mesh)
        result = await run_streams(endpoint, SHAPE, lambda: answered.update(["request"]))
    assert answered["request"] == len(result.outcomes) == len(bodies) == 3
    assert result.tokens == 4
    assert result.failures.total() == 1
    assert result.most_open == 1
    assert result.seconds > 0.0
    assert result.peak_bytes["gateway-0"] > 2**20
    assert len({tuple(body["prompt"]) for body in bodies}) == 3  # type: ignore[arg-type]


async def test_a_load_may_open_as_many_files_as_it_has_streams(mesh: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = psutil.Process().num_fds()
    lower = max(open_now + 64, 128)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lower, hard))
    try:
        async with gateway(whole) as (url, _):
            endpoint = MeshEndpoint(url, "m", "redis://127.0.0.1:2/0", mesh)
            await run_streams(endpoint, replace(SHAPE, requests=1), lambda: None)
        raised, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert raised >= min(SHAPE.streams + 200, hard if hard != resource.RLIM_INFINITY else 2**30)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_streams_are_requested_and_reported_one_after_the_other() -> None:
    changes: list[int] = []
    async with gateway(whole, whole) as (url, bodies):
        connection = StreamConnection(url, "m", changes.append)
        outcomes = [await connection.stream_completion([1, 2, 3], 2) for _ in range(2)]
        connection.close()
        connection.close()
    assert [(each.tokens, each.failure) for each in outcomes] == [(2, None)] * 2
    assert all(each.first_s is not None and each.sent_s <= each.first_s <= each.ended_s for each in outcomes)
    assert all(each.tpot_s is not None and each.tpot_s >= 0 for each in outcomes)
    assert changes == [1, -1, 1, -1]
    assert [(body["prompt"], body["max_tokens"], body["stream"]) for body in bodies] == [([1, 2, 3], 2, True)] * 2


async def test_every_kind_of_failure_is_an_outcome() -> None:
    async with gateway(failing, short, refusing, breaking, whole) as (url, _):
        connection = StreamConnection(url, "m", lambda change: None)
        failures = [(await connection.stream_completion([1], 2)).failure for _ in range(5)]
        connection.close()
    assert failures[0] == "an error in the stream: not_recovered"
    assert failures[1] == "0 tokens where 2 were requested"
    assert failures[2] == "status 429"
    assert str(failures[3]).startswith("the connection broke")
    assert failures[4] is None
    gone = await StreamConnection(url, "m", lambda change: None).stream_completion([1], 2)
    assert str(gone.failure).startswith("cannot connect")
    assert (gone.first_s, gone.tpot_s) == (None, None)
