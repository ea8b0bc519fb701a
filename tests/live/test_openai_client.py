"""The calls and helpers of OpenAI's client, in the version that is installed here; `make test-clients` runs other clients."""

from __future__ import annotations

from tests.clients.processes import run_python
from tests.live.mesh import LiveMesh


def test_the_openai_client(mesh: LiveMesh) -> None:
    run_python("openai_python", mesh)
