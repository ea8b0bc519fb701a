"""A further gateway of a live mesh, which a test starts, stops and kills without harm to the mesh's own."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from spotwise.mesh.embedded import free_port
from tests.live.mesh import LiveMesh, wait_for


@dataclass
class OwnGateway:
    """A gateway's process; `url` without `/v1`."""

    url: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """End it as a lost machine does."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Let it stand still."""
        self.process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def own_gateway(mesh: LiveMesh, service_id: str, log: Path) -> Iterator[OwnGateway]:
    """Start a gateway with the settings of the mesh's own, and end it at the end of the block."""
    port = free_port()
    env = psutil.Process(mesh.pid("gateway-0")).environ()
    env |= {"SPOTWISE_SERVICE_ID": service_id, "SPOTWISE_PORT": str(port)}
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "spotwise.gateway"], env=env, stdout=output, stderr=subprocess.STDOUT
        )
    gateway = OwnGateway(url, process)

    def serves() -> bool:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{url}/health", timeout=2.0).status_code == httpx.codes.OK
        return False

    try:
        wait_for(serves, lambda: log.read_text(), 240.0)
        yield gateway
    finally:
        gateway.wake()
        gateway.kill()
