"""The second gateway of a live mesh, which a test kills or stops; its supervisor starts it again."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import httpx

from tests.live.mesh import LiveMesh, wait_for

_ID = "gateway-1"


@dataclass
class SecondGateway:
    """A gateway of a mesh with two."""

    mesh: LiveMesh

    @property
    def url(self) -> str:
        """Its base, without `/v1`."""
        return self.mesh.state.options.urls[1]

    def kill(self) -> None:
        """End it as a lost machine does."""
        os.kill(self.mesh.pid(_ID), signal.SIGKILL)

    def end(self) -> None:
        """End it as an operator does."""
        os.kill(self.mesh.pid(_ID), signal.SIGTERM)

    def stop(self) -> None:
        """Let it stand still."""
        os.kill(self.mesh.pid(_ID), signal.SIGSTOP)

    def wake(self) -> None:
        """Let it go on."""
        os.kill(self.mesh.pid(_ID), signal.SIGCONT)

    def wait_until_it_serves(self) -> None:
        """Wait until it answers, with the schedulers and workers in its view."""

        def serves() -> bool:
            try:
                return httpx.get(f"{self.url}/health", timeout=2.0).status_code == httpx.codes.OK
            except httpx.HTTPError:
                return False

        wait_for(serves, lambda: f"{_ID} to serve", 60.0)
