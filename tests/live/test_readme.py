"""The README's examples, run as they stand there, but for the port."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.live.mesh import LiveMesh

README = Path(__file__).parents[2] / "README.md"
SHOWN_URL = "http://127.0.0.1:8000"
ANSWER = "The capital of France is Paris."


def example(language: str, beginning: str) -> str:
    """The fenced block that begins so."""
    found = re.search(
        rf"^```{language}\n({re.escape(beginning)}.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE
    )
    assert found is not None
    assert SHOWN_URL in found[1]
    return found[1]


def test_the_curl_example_is_answered(mesh: LiveMesh) -> None:
    command = example("sh", "curl ").replace(SHOWN_URL, mesh.url)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"] == ANSWER


def test_the_python_example_streams_the_answer(mesh: LiveMesh) -> None:
    program = example("python", "from openai").replace(SHOWN_URL, mesh.url)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{ANSWER}\n"
