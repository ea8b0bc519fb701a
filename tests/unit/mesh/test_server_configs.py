"""Broker and store: their configuration, their URLs, the order in which nodes are tried, and their ports."""

from __future__ import annotations

import hashlib
import random
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlparse

import pytest
from nats.aio.client import Server

from spotwise.cli.launch.gateway_options import open_ports
from spotwise.mesh.embedded import ports as module
from spotwise.mesh.embedded.configs import broker_config, derived_password, store_acl
from spotwise.mesh.embedded.ports import claim_port, quiet_ports
from spotwise.mesh.embedded.servers import free_port
from spotwise.mesh.nats.bus import ReconnectOrder
from spotwise.mesh.process.server_urls import SentinelUrl, server_urls, shown_servers
from spotwise.wire import subjects
from spotwise.wire.permissions import Principal
from spotwise.wire.roles import MeshRole

GATEWAY = Principal(MeshRole.GATEWAY, "gateway-0")
USERS = {GATEWAY: "for-a-gateway", Principal(MeshRole.WORKER): "for-workers"}


def test_passwords_differ_by_user_and_mesh() -> None:
    passwords = {derived_password(root, principal) for root in ("a", "b") for principal in USERS}
    assert len(passwords) == 4
    assert derived_password("a", GATEWAY) == derived_password("a", GATEWAY)
    assert all(len(each) == 64 for each in passwords)


def test_an_acl_has_hashes_alone_and_the_default_user_off() -> None:
    """The store's users are named, and a reader of the file learns no password."""
    default, gateway, worker = store_acl(USERS, separates_reads=False).splitlines()
    assert default == "user default off"
    assert gateway.startswith("user gateway.gateway-0 on #" + hashlib.sha256(b"for-a-gateway").hexdigest())
    assert " -@all +" in gateway
    assert "for-" not in gateway + worker
    assert f"~{subjects.request_key('*')}" in gateway.split()


def test_redis_7_separates_reading_and_writing() -> None:
    """A gateway lists members and writes its own registration; a worker only reads records and plans."""
    _, gateway, worker = store_acl(USERS, separates_reads=True).splitlines()
    assert f"~{subjects.request_key('*')}" in gateway.split()
    assert f"%R~{subjects.MEMBER_KEYS}" in gateway.split()
    assert f"~{subjects.member_key('gateway-0')}" in gateway.split()
    assert f"%R~{subjects.request_key('*')}" in worker.split()
    assert f"%R~{subjects.PLAN_KEY}" in worker.split()


def test_a_broker_has_no_user_without_permissions() -> None:
    config = broker_config(USERS)
    assert config.count('"user"') == config.count('"permissions"') == 2
    assert "allow_responses" not in config  # a user that sends to itself could have it for any subject


URLS = [urlparse(f"nats://user:a,b@{host}:4222") for host in "abc"]


def test_a_comma_in_a_password_divides_no_url() -> None:
    url = ", ".join(each.geturl() for each in URLS)
    assert server_urls(url) == [each.geturl() for each in URLS]
    assert server_urls("nats://a:4222") == ["nats://a:4222"]
    assert shown_servers(url) == "nats://***@a:4222,nats://***@b:4222,nats://***@c:4222"


def test_a_lost_node_is_tried_last_and_failed_ones_after_the_others() -> None:
    spans: list[float] = []

    def longest(_least: float, most: float) -> float:
        spans.append(most)
        return most

    order = ReconnectOrder(longest)
    order.connected(URLS[0], URLS)
    assert order.connected_to == "a:4222"
    failed = [0, 0, 0]
    tried = []
    for _ in range(7):
        server, delay_s = order([Server(uri, count) for uri, count in zip(URLS, failed, strict=True)], {})
        assert delay_s == spans[-1]
        tried.append(URLS.index(server.uri))
        failed[tried[-1]] += 1
    assert tried == [1, 2, 0, 1, 2, 0, 1]
    assert spans == sorted(spans)
    failed = [99, 99, 99]
    assert order([Server(uri, count) for uri, count in zip(URLS, failed, strict=True)], {})[1] == 1.0


def test_addresses_that_a_cluster_announces_are_not_tried() -> None:
    """They have no credentials; where only such are left, they are."""
    order = ReconnectOrder()
    order.connected(URLS[0], URLS[:1])
    announced = Server(urlparse("nats://10.0.0.9:4222"), 0)
    assert order([announced, Server(URLS[0], 5)], {})[0].uri == URLS[0]
    assert order([announced], {})[0] == announced


def test_a_sentinel_url_has_credentials_hosts_and_the_primarys_name() -> None:
    """Ports and the database have defaults; what is escaped is not so afterwards."""
    url = SentinelUrl("redis+sentinel://mesh:p%40ss@a:1,b,[::1]:3/main/2")
    assert (url.user, url.password, url.primary_name, url.database) == ("mesh", "p@ss", "main", 2)
    assert url.sentinels == [("a", 1), ("b", 26379), ("::1", 3)]
    assert SentinelUrl("redis+sentinel://a/main").database == 0


@pytest.mark.parametrize(
    "url",
    [
        "redis://a/main",
        "redis+sentinel://a",
        "redis+sentinel://a/main/x",
        "redis+sentinel://:1/main",
        "redis+sentinel://a:x/main",
    ],
)
def test_a_url_that_is_none_of_sentinels_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        SentinelUrl(url)


@pytest.fixture
def outgoing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that says which ports outgoing connections are given."""
    path = tmp_path / "range"
    path.write_text("32768\t60999\n")
    monkeypatch.setattr(module, "_OUTGOING", path)
    return path


def test_ports_are_none_of_those_of_outgoing_connections(outgoing: Path) -> None:
    """Of embedded servers and of gateways alike."""
    *likely, last = quiet_ports()
    assert last == 0
    assert len(set(likely)) == len(likely) > 1
    assert all(10_000 <= port < 32_768 for port in (*likely, free_port(), *open_ports("127.0.0.1", 0, 3)))


@pytest.mark.parametrize("text", ["1024\t65535\n", "no numbers", ""])
def test_where_all_ports_may_be_given_away_any_one_will_do(outgoing: Path, text: str) -> None:
    outgoing.write_text(text)
    assert list(quiet_ports()) == [0]
    assert free_port() > 0


def test_a_taken_port_is_passed_over(outgoing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for name in ("spotwise.mesh.embedded.servers", "spotwise.cli.launch.gateway_options"):
            monkeypatch.setattr(f"{name}.quiet_ports", lambda: [port, 0])
        assert free_port() != port
        assert open_ports("127.0.0.1", 0) != (port,)


def test_what_one_process_chose_no_other_does(outgoing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although no process listens there yet: a gateway does so only seconds after its port was chosen."""
    program = """
from spotwise.mesh.embedded.ports import claim_port, quiet_ports
print(next(quiet_ports()), flush=True)
input()
"""
    other = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with other:
        assert other.stdin is not None
        assert other.stdout is not None
        chosen = int(other.stdout.readline())
        assert not claim_port(chosen)
        monkeypatch.setattr(module, "_TRIES", 2)
        outgoing.write_text(f"{chosen + 1} 60999")
        monkeypatch.setattr(module, "_FIRST", chosen - 1)
        assert list(quiet_ports()) == [chosen - 1, 0]
        other.stdin.close()
    assert claim_port(chosen)


def test_processes_with_the_same_seed_choose_other_ports(outgoing: Path) -> None:
    random.seed(0)
    first = list(quiet_ports())[:-1]
    random.seed(0)
    assert not set(first) & set(list(quiet_ports())[:-1])
