"""`spotwise certs` as a user has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.command_line import CommandLine


@pytest.fixture
def folder(spotwise: CommandLine, tmp_path: Path) -> Path:
    made = tmp_path / "certs"
    ended = spotwise("certs", "init", "--folder", str(made), "--nats-host", "broker", "--redis-host", "10.0.0.2")
    assert ended.status == 0, ended.stderr
    assert "keep ca/ to yourself" in ended.stdout
    return made


def test_a_member_is_added_to_the_servers_configuration(spotwise: CommandLine, folder: Path) -> None:
    """`issue` writes its folder and its user; the password in its URL is hashed in the store's ACL."""
    assert spotwise("certs", "issue", "gateway", "--id", "gateway-0", "--folder", str(folder)).status == 0
    env = (folder / "members" / "gateway.gateway-0" / "mesh.env").read_text()
    assert "tls://gateway.gateway-0:" in env and "@broker:4222" in env
    assert "rediss://gateway.gateway-0:" in env and "@10.0.0.2:6379/0" in env
    assert f"SPOTWISE_TLS_DIR={folder}/members/gateway.gateway-0" in env
    assert '"user": "gateway.gateway-0"' in (folder / "servers" / "nats" / "nats-server.conf").read_text()
    assert "user gateway.gateway-0 on #" in (folder / "servers" / "redis" / "users.acl").read_text()
    password = env.split("@10.0.0.2")[0].rpartition(":")[2]
    assert password not in (folder / "servers" / "redis" / "users.acl").read_text()


def test_certificates_are_listed_and_renewed(spotwise: CommandLine, folder: Path) -> None:
    """`renew` makes anew what expires soon, and says so where nothing does."""
    listed = spotwise("certs", "list", "--folder", str(folder)).stdout
    assert "servers/nats" in listed and "members/worker" in listed
    assert "no certificate expires" in spotwise("certs", "renew", "--folder", str(folder)).stdout
    renewed = spotwise("certs", "renew", "--within", "366", "--days", "700", "--folder", str(folder)).stdout
    assert renewed.count("valid until") == 8


def test_wrong_uses_are_one_line(spotwise: CommandLine, folder: Path, tmp_path: Path) -> None:
    again = spotwise("certs", "init", "--folder", str(folder), "--nats-host", "a", "--redis-host", "b")
    assert (again.status, "has a CA already" in again.stderr) == (1, True)
    wrong = spotwise("certs", "issue", "worker", "--id", "a.b", "--folder", str(folder))
    assert (wrong.status, "--id" in wrong.stderr) == (2, True)
    nothing = spotwise("certs", "issue", "worker", "--folder", str(tmp_path / "none"))
    assert (nothing.status, "spotwise certs init" in nothing.stderr) == (1, True)
