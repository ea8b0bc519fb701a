"""A port that was chosen is still free when its server starts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from spotwise.cli.launch.gateway_options import open_ports
from spotwise.mesh.embedded import child_process as module
from spotwise.mesh.embedded.child_process import quiet_ports
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
    assert quiet_ports() == [0]
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
