"""A script that starts a mesh, uses it and stops it: honest exit codes, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.live.mesh import MODEL, LiveMesh, wait_for

CLIENT = """
import sys, openai
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
chunks = client.chat.completions.create(model=sys.argv[2], stream=True, temperature=0, max_tokens=24,
    messages=[{"role": "user", "content": "What is the capital of France?"}])
print("".join(chunk.choices[0].delta.content or "" for chunk in chunks))
"""


def test_up_use_and_a_killed_supervisor(own_mesh: LiveMesh) -> None:
    """The whole way from a script, with a client in a process of its own; `kill -9` of the supervisor leaves nothing.

    That `down` leaves nothing either is asserted wherever a mesh of these tests ends.
    """
    own_mesh.up()
    assert len(own_mesh.processes()) >= 9  # supervisor, broker, store, six services
    client = [sys.executable, "-c", CLIENT, own_mesh.url, MODEL]
    answer = subprocess.run(client, capture_output=True, text=True, timeout=60, check=True)
    assert "Paris" in answer.stdout
    again = own_mesh.command("up", "--detach", "--port", "0")
    assert again.returncode == 1
    assert "already runs" in again.stderr
    asked = own_mesh.command("chat", "--temperature", "0", "--max-tokens", "24", "What is the capital of France?")
    assert asked.returncode == 0
    assert "Paris" in asked.stdout
    os.kill(own_mesh.state.supervisor.pid, signal.SIGKILL)
    wait_for(lambda: not own_mesh.processes(), lambda: f"no process, of {own_mesh.processes()}")
    idle = own_mesh.command("down")
    assert idle.returncode == 0
    assert own_mesh.command("status").returncode == 1


def test_a_model_that_is_not_there(own_mesh: LiveMesh, tmp_path: Path) -> None:
    """Exit status 1 and one line with what to do."""
    done = own_mesh.command("up", "--detach", "--port", "0", "--model", str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert "nowhere" in done.stderr
    assert own_mesh.processes() == []


def test_explain_tells_the_whole_story(mesh: LiveMesh) -> None:
    """Both workers, in two processes, the queues, the KV and what it moved over, TTFT, TPOT and tokens."""
    answer = mesh.client().completions.create(model=MODEL, prompt="One, two, three,", max_tokens=9, temperature=0)
    ledger = mesh.ledger(answer.id)
    assert (ledger["completed"]["prompt_tokens"], ledger["completed"]["output_tokens"]) == (6, 9)
    assert ledger["completed"]["attempts"] == 1
    assert 0 < ledger["completed"]["ttft_s"] < ledger["completed"]["e2e_s"]
    assert ledger["completed"]["tpot_s"] > 0
    assert ledger["decoded"]["tokens"] == 8
    # one block of 16 tokens, 30 layers, K and V, 3 heads of 64, float32
    assert ledger["handed_off"]["kv_bytes"] == ledger["kv_received"]["kv_bytes"] == 16 * 30 * 2 * 3 * 64 * 4
    assert ledger["handed_off"]["transport"]
    assert mesh.pid(ledger["prefilled"]["member"]) != mesh.pid(ledger["decoded"]["member"])
    shown = mesh.command("explain", answer.id)
    assert shown.returncode == 0
    for word in ("prompt-0", "token-0", "queue", "kv bytes", "transport", "ttft", "tpot", "output tokens: 9"):
        assert word in shown.stdout
    unknown = mesh.command("explain", "cmpl-unknown")
    assert unknown.returncode == 1
    assert "nothing is known" in unknown.stderr


def test_bench_writes_what_it_prints(mesh: LiveMesh, tmp_path: Path) -> None:
    """Every figure of every round, with the environment, in the shape that all benchmarks share."""
    path = tmp_path / "load.json"
    shape = ("--streams", "1,2", "--input-tokens", "16", "--output-tokens", "4", "--requests", "1")
    done = mesh.command("bench", "load", *shape, "--json", str(path))
    assert done.returncode == 0, done.stderr
    report = json.loads(path.read_text())
    assert report["environment"]["cores"] >= 1
    assert len(report["rows"]) == 10
    for row in report["rows"]:
        assert set(row) == {"name", "reference", "ours", "ratio", "target", "holds"}
        assert row["ours"] > 0
        assert row["name"] in done.stdout
