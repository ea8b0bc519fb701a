"""A client's program as a process of its own, against a mesh."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.live.mesh import MODEL, LiveMesh

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
NODE_PROGRAMS = Path(__file__).parent / "node"
#: Where `make test-clients` installs: a folder for each lock of `environments`, and `node`.
INSTALLED = ROOT / "build" / "clients"
#: Of a program; each check is a request or a few.
PATIENCE_S = 300.0
#: What the clients would send or fetch beside requests; a Python program could not reach it anyway (`checks.py`).
_QUIET = {
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "true",
    "OTEL_SDK_DISABLED": "true",
    "AI_SDK_LOG_WARNINGS": "false",
}


def why_not(environment: str) -> str:
    """Why the programs of an environment cannot run here; empty where they can."""
    if environment in ("node", "agents") and shutil.which("node") is None:
        return "node is absent"
    if not (INSTALLED / environment / ".installed").exists():
        return f"the environment '{environment}' is absent; make test-clients installs it" + (
            " where npm is there" if environment in ("node", "agents") else ""
        )
    return ""


def run_python(program: str, mesh: LiveMesh, environment: str | None = None) -> None:
    """Run a program of `programs` in an environment, by default the one that runs the tests.

    Raises:
        AssertionError: one of its checks failed; its output.
    """
    python = sys.executable if environment is None else str(INSTALLED / environment / "bin" / "python")
    _run([python, "-m", f"tests.clients.programs.{program}"], ROOT, mesh)


def run_node(program: str, mesh: LiveMesh) -> None:
    """Run a program of `node`, beside the packages that it imports.

    Raises:
        AssertionError: one of its checks failed; its output.
    """
    for source in NODE_PROGRAMS.glob("*.mjs"):
        shutil.copy(source, INSTALLED / "node")
    _run(["node", f"{program}.mjs"], INSTALLED / "node", mesh)


def _run(command: list[str], folder: Path, mesh: LiveMesh) -> None:
    with tempfile.TemporaryDirectory() as home:
        env = {"PATH": os.environ["PATH"], "HOME": home, "CLIENTS_URL": mesh.url, "CLIENTS_MODEL": MODEL, **_QUIET}
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "  ok " in done.stdout, "no check ran"
