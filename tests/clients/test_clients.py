"""Other people's clients against a mesh: what they send is understood, and what they get is what they expect.

Each is a program of named checks, in an environment with the client's own dependencies. They are about the protocol, not about
what a small model says.
"""

from __future__ import annotations

import pytest

from tests.clients.processes import run_node, run_python, why_not
from tests.live.mesh import LiveMesh

#: Programs by their environment; openai's client is in both, in two major versions.
PYTHON = {
    "current": (
        "openai_python",
        "openai_tools_python",
        "openai_others_python",
        "langchain_python",
        "litellm_python",
        "pydantic_ai_python",
        "anthropic_python",
        "naive_readers_python",
    ),
    "llama_index": ("openai_python", "openai_tools_python", "llama_index_python"),
}
NODE = ("openai_node", "vercel_ai_node")


@pytest.fixture
def environment(request: pytest.FixtureRequest) -> str:
    """The parameter, if it is installed; requested before the mesh, which would start in vain."""
    if reason := why_not(request.param):
        pytest.skip(reason)
    return str(request.param)


@pytest.mark.parametrize(
    ("environment", "program"),
    [(environment, program) for environment, programs in PYTHON.items() for program in programs],
    indirect=["environment"],
)
def test_python(environment: str, program: str, mesh: LiveMesh) -> None:
    run_python(program, mesh, environment)


@pytest.mark.parametrize("environment", ["node"], indirect=True)
@pytest.mark.parametrize("program", NODE)
def test_node(environment: str, program: str, mesh: LiveMesh) -> None:
    run_node(program, mesh)
