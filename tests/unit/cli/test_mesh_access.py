"""How `drain`, `status` and `explain` find their mesh: by name or by address, never half and half."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwise.cli import drain as drain_module
from spotwise.cli.errors import CommandError, OptionError
from spotwise.cli.launch.run_folder import run_folder
from spotwise.cli.launch.supervision.run_state import write_state
from spotwise.cli.mesh.access import operator_access
from spotwise.cli.mesh.running import MeshAddresses, find_broker, find_mesh, find_store
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.redis.store import RedisStore
from tests.unit.cli.builders import run_state
from tests.unit.cli.command_line import CommandLine, RefusalOf

LOCAL = MeshAddresses("nats://127.0.0.1:1", "redis://127.0.0.1:2/0")
OTHER = MeshAddresses("nats://127.0.0.1:3", "redis://127.0.0.1:4/0")


@pytest.fixture
def local_mesh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("SPOTWISE_HOME", str(tmp_path))
    folder = run_folder("here")
    folder.path.mkdir(parents=True)
    write_state(folder.state_path, run_state(nats_url=LOCAL.nats_url, redis_url=LOCAL.redis_url))
    return "here"


def test_addresses_are_all_given_or_all_recorded(local_mesh: str) -> None:
    """The broker of one mesh is never used with the store of another."""
    assert find_mesh(local_mesh, None, None) == LOCAL
    assert find_mesh(local_mesh, OTHER.nats_url, OTHER.redis_url) == OTHER
    with pytest.raises(OptionError, match=r"--nats-url.*--redis-url"):
        find_mesh(local_mesh, OTHER.nats_url, None)
    with pytest.raises(OptionError, match=r"--redis-url.*--nats-url"):
        find_mesh(local_mesh, None, OTHER.redis_url)


def test_one_server_needs_only_its_own_address(local_mesh: str) -> None:
    assert find_broker(local_mesh, None) == LOCAL.nats_url
    assert find_broker(local_mesh, OTHER.nats_url) == OTHER.nats_url
    assert find_store(local_mesh, None) == LOCAL.redis_url
    assert find_store(local_mesh, OTHER.redis_url) == OTHER.redis_url


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("drain token-0 --deadline abc", "--deadline"),
        ("drain token-0 --nats-url foo", "--nats-url"),
        (f"drain token-0 --wait --redis-url foo --nats-url {OTHER.nats_url}", "--redis-url"),
        (f"drain token-0 --name here --redis-url {OTHER.redis_url}", "--nats-url"),
        (f"drain token-0 --name here --wait --nats-url {OTHER.nats_url}", "--redis-url"),
        ("status --redis-url foo", "--redis-url"),
        ("status --redis-url nats://127.0.0.1:4222", "--redis-url"),
        ("explain x --redis-url foo", "--redis-url"),
    ],
)
def test_a_wrong_or_missing_address_ends_with_status_2(
    refusal_of: RefusalOf, local_mesh: str, command: str, option: str
) -> None:
    assert option in refusal_of(command)


def test_a_drain_without_waiting_needs_no_store(
    spotwise: CommandLine, local_mesh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers: list[str] = []

    async def send(nats_url: str, worker: str, seconds: float) -> None:
        brokers.append(nats_url)

    monkeypatch.setattr(drain_module, "send_notice", send)
    assert spotwise("drain", "token-0", "--nats-url", OTHER.nats_url).status == 0
    assert spotwise("drain", "token-0", "--name", local_mesh).status == 0
    assert brokers == [OTHER.nats_url, LOCAL.nats_url]


def test_a_store_that_is_gone_ends_the_wait_for_a_drained_worker(
    spotwise: CommandLine, local_mesh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line names the lost store and what was done already; no traceback."""

    async def send(nats_url: str, worker: str, seconds: float) -> None:
        pass

    async def connect(url: str, tls: object = None) -> RedisStore:
        raise MeshError(f"no Redis server answers at {url}")

    monkeypatch.setattr(drain_module, "send_notice", send)
    monkeypatch.setattr(RedisStore, "connect", connect)
    ended = spotwise("drain", "token-0", "--name", local_mesh, "--wait")
    assert ended.status == 1
    assert "leaves within 30s" in ended.stdout
    [line] = ended.stderr.splitlines()
    assert LOCAL.redis_url in line


def test_without_a_mesh_or_an_address_there_is_no_mesh(local_mesh: str) -> None:
    for find in (find_broker, find_store):
        with pytest.raises(CommandError, match="no mesh named 'elsewhere'"):
            find("elsewhere", None)


def test_unusable_certificates_of_a_command_are_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SPOTWISE_TLS_DIR without certificates is refused by its name; without it a command has none."""
    monkeypatch.delenv("SPOTWISE_TLS_DIR", raising=False)
    assert operator_access().tls is None
    monkeypatch.setenv("SPOTWISE_TLS_DIR", str(tmp_path))
    with pytest.raises(CommandError, match=r"SPOTWISE_TLS_DIR: .*spotwise certs issue"):
        operator_access()


CLUSTER = "nats://a:4222,nats://b:4222"
SENTINELS = "redis+sentinel://:hush@a:26379,b:26379/main/0"


def test_clusters_are_addresses_too() -> None:
    """Several nodes of NATS, and the sentinels of Redis; a wrong one is refused without quoting it."""
    assert find_mesh("none", CLUSTER, SENTINELS) == MeshAddresses(CLUSTER, SENTINELS)
    for nats_url, redis_url in ((f"{CLUSTER},http://c", SENTINELS), (CLUSTER, SENTINELS.removesuffix("/main/0"))):
        with pytest.raises(OptionError, match="write for instance") as refusal:
            find_mesh("none", nats_url, redis_url)
        assert "hush" not in str(refusal.value)
