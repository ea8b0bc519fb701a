"""A port that was chosen is still free when its server starts."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from spotwise.cli.launch.gateway_options import open_ports
from spotwise.mesh.embedded import ports as module
from spotwise.mesh.embedded.ports import claim_port, quiet_ports
from spotwise.mesh.embedded.servers import free_port


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
