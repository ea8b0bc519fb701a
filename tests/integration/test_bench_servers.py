"""Servers of a benchmark: they end with their block, and an error explains why one did not start."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spotwise.benchmarks.yardsticks.vllm_server import running_vllm
from spotwise.cli.bench.servers import running_mesh
from spotwise.cli.errors import CommandError
from spotwise.mesh.embedded.child_process import identify, is_alive, send_signal

#: Serves /health, starts a process of its own that ignores requests to leave, and records both.
FAKE_VLLM = """#!/usr/bin/env python3
import http.server, pathlib, subprocess, sys

class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

assert sys.argv[1:3] == ["serve", "/models/tiny"], sys.argv
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
engine = subprocess.Popen([sys.executable, "-c", stubborn])
pathlib.Path(__file__).with_name("pid").write_text(str(engine.pid))
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Health).serve_forever()
"""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTWISE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("spotwise.benchmarks.yardsticks.server_process.GRACE_S", 1.0)


def program(folder: Path, text: str) -> Path:
    path = folder / "vllm"
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_the_peer_ends_with_every_process_it_started(tmp_path: Path) -> None:
    """The end of the block also kills a process that ignores the signal, and removes the folder."""
    with running_vllm(program(tmp_path, FAKE_VLLM), Path("/models/tiny"), ["--more"], dtype="float32") as endpoint:
        engine = int((tmp_path / "pid").read_text())
        assert identify(engine) is not None
        assert endpoint.url.startswith("http://127.0.0.1:")
    assert identify(engine) is None
    assert list((tmp_path / "home" / "run").iterdir()) == []


#: A benchmark of its own, which waits beside the peer.
BENCHMARK = """
import sys, time
from pathlib import Path
from spotwise.benchmarks.yardsticks import server_process, vllm_server
from spotwise.cli.bench import app

server_process.GRACE_S = 1.0
app._group()
with vllm_server.running_vllm(Path(sys.argv[1]), Path("/models/tiny"), [], dtype="float32"):
    print("it serves", flush=True)
    time.sleep(600)
"""


def test_a_benchmark_that_is_ended_twice_leaves_no_process(tmp_path: Path) -> None:
    """As by `timeout`, whose signal reaches the benchmark and `make`, which passes it on while the peer is ended."""
    command = [sys.executable, "-c", BENCHMARK, str(program(tmp_path, FAKE_VLLM))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as benchmark:
        assert benchmark.stdout is not None and benchmark.stdout.readline() == b"it serves\n"
        engine = identify(int((tmp_path / "pid").read_text()))
        assert engine is not None
        for _ in range(2):
            benchmark.terminate()
            time.sleep(0.3)
        benchmark.wait(timeout=30)
    try:
        assert not is_alive(engine)
    finally:
        send_signal(engine, signal.SIGKILL)
    assert list((tmp_path / "home" / "run").iterdir()) == []


def test_a_peer_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    broken = program(tmp_path, "#!/bin/sh\necho no such device >&2\nexit 3\n")
    with (
        pytest.raises(CommandError, match=r"vLLM did not come up(.|\n)*no such device"),
        running_vllm(broken, Path("/models/tiny"), [], dtype="float32"),
    ):
        pass
    assert len(list((tmp_path / "home" / "run").rglob("vllm.log"))) == 1


def test_a_mesh_that_does_not_start_shows_its_output(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    with (
        pytest.raises(CommandError, match=r"the mesh did not come up(.|\n)*nowhere"),
        running_mesh(["--model", nowhere]),
    ):
        pass
