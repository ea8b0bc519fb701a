"""What the processes of a mesh get of the supervisor's environment."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwise.cli.launch.mesh_servers import MeshServers, ServerAccess
from spotwise.cli.launch.run_folder import RunFolder
from spotwise.cli.launch.service_process import FORK_SERVER, ServiceProcess, StopOrder
from spotwise.cli.launch.supervision.readiness import Readiness
from spotwise.cli.launch.supervision.service_starts import ServiceStarts
from spotwise.cli.launch.supervision.supervise import _embedded, _supervised_service
from spotwise.core.access.store_budget import SHIPPED_MAXMEMORY_BYTES
from tests.contracts.waiting import until

SECRETS = {"SPOTWISE_API_KEYS": "canary-key", "AWS_SECRET_ACCESS_KEY": "canary-cloud", "HF_TOKEN": "canary-hub"}


@pytest.fixture
def no_subreaper() -> Iterator[None]:
    """A fork server makes its client one, and this process is to be none for later tests."""
    yield
    ctypes.CDLL(None).prctl(36, 0)


@pytest.mark.usefixtures("no_subreaper")
@pytest.mark.parametrize("forks", ["1", "0"])
@pytest.mark.parametrize(
    ("service", "expected"),
    [("gateway", "canary-key"), ("spot_watcher", "canary-cloud"), ("worker", ""), ("cluster_scheduler", "")],
)
async def test_a_started_service_has_the_secrets_that_it_reads(
    service: str, expected: str, forks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what the plan gives it, its own variables first, and all that is no secret; a forked one has none in /proc."""
    for name, value in {**SECRETS, FORK_SERVER: forks, "PLAIN": "plain", "OWN": "the supervisor's"}.items():
        monkeypatch.setenv(name, value)
    names = [*SECRETS, "PLAIN", "OWN"]
    show = f"""import os
if __name__ == "__main__":
    print(*[os.environ.get(name, '') for name in {names}])
    print(*[value for value in {[*SECRETS.values()]} if f"={{value}}\\0" in open("/proc/self/environ").read()])
"""
    (tmp_path / "shown_secrets.py").write_text(show)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    planned = ServiceProcess("it", "shown_secrets", {"OWN": "own"}, StopOrder.WORKER, service=service)
    (tmp_path / "logs").mkdir()
    folder = RunFolder("default", tmp_path)
    with (
        Readiness("redis://127.0.0.1:1/0") as readiness,
        ServiceStarts.opened([planned], folder, os.environ, pytest.fail) as starts,
    ):
        process = _supervised_service(planned, folder, readiness, starts)
        await until(process.may_start)
        process.start()
        await until(lambda: process.exit_code() == 0)
    assert folder.log_path("it").read_text().splitlines() == [
        " ".join(name if name == expected else "" for name in SECRETS.values()) + " plain own",
        "" if forks == "1" else expected,
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, SHIPPED_MAXMEMORY_BYTES),
        (str(1 << 30), (1 << 30) * 5 // 4 + (64 << 20)),
        ("much", SHIPPED_MAXMEMORY_BYTES),
    ],
)
def test_the_embedded_store_has_room_for_the_budget(
    given: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPOTWISE_STORE_BYTES", raising=False)
    if given is not None:
        monkeypatch.setenv("SPOTWISE_STORE_BYTES", given)
    broker, store = (ServerAccess(url="nats://h:1"), ServerAccess.embedded("redis://127.0.0.1:1/0"))
    (server,) = _embedded(
        MeshServers(broker=broker, store=store), [], RunFolder("default", tmp_path), keeps_store=False
    )
    assert server.argv[server.argv.index("--maxmemory") + 1] == str(expected)
