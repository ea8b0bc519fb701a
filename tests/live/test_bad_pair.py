"""Hand-offs that fail between two workers, and a request that fells every worker that computes it.

The pair is real: a token worker with KV blocks of another size, to which the prompt worker's bytes mean nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.failing_worker import KILLS, start_failing_worker
from tests.live.failure_mesh import FailureMesh, innocent, run
from tests.live.mesh import ONE_MIXED, wait_for

pytestmark = pytest.mark.parallel

NEW_TOKENS = 30


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[FailureMesh]:
    """One prompt worker, and one token worker that refuses its KV."""
    pools = ("--prompt-workers", "1", "--token-workers", "1")
    journals = {"SPOTWISE_JOURNAL": str(tmp_path / "journals")}
    with FailureMesh(tmp_path, "--simulated-kv", "real", *pools, env=journals) as mesh:
        command = [sys.executable, "-m", "spotwise.cli", "join", "token", "--id", "token-odd"]
        env = {**mesh.env, "SPOTWISE_KV_BLOCK_SIZE": "32"}
        with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as odd:
            try:
                mesh.wait_for_workers("prompt-0", "token-0", "token-odd")
                mesh.drain("token-0", 5.0)
                mesh.wait_for_workers("prompt-0", "token-odd")
                yield mesh
            finally:
                odd.kill()


def quarantined(mesh: FailureMesh) -> list[dict[str, Any]]:
    """The quarantined pairs in `spotwise status --json`."""
    members = json.loads(mesh.command("status", "--json").stdout)
    return [pair for member in members for pair in member.get("quarantined", [])]


def test_a_pair_whose_hand_offs_fail_is_found_out_and_shown(pair: FailureMesh) -> None:
    """Each request gets all its tokens in at most one more attempt; then the pair gets no hand-offs, and `status` shows it."""
    for _ in range(2):
        (ended,) = run(pair, *innocent(1), new_tokens=NEW_TOKENS)
        assert (len(ended.tokens), ended.code) == (NEW_TOKENS, None)
        assert pair.ledger(ended.request_id, "completed")["completed"]["attempts"] <= 2
    (shown,) = wait_for_quarantine(pair)
    assert (shown["prompt_worker"], shown["token_worker"], shown["failures"]) == ("prompt-0", "token-odd", 2)
    assert "hand-offs from prompt-0 to token-odd failed" in pair.command("status").stdout
    (ended,) = run(pair, *innocent(1), new_tokens=NEW_TOKENS)
    assert len(ended.tokens) == NEW_TOKENS
    ledger = pair.ledger(ended.request_id, "assigned", "completed")
    assert ledger["completed"]["attempts"] == 1
    assert ledger["assigned"]["placed_by"] == "bad_pair"
    pair.wait_until_idle()
    done = pair.command("replay", str(pair.home / "journals"))
    assert done.returncode == 0, done.stdout + done.stderr


def wait_for_quarantine(mesh: FailureMesh) -> list[dict[str, Any]]:
    """The registration that `status` reads is a second old at most."""
    found: list[dict[str, Any]] = []

    def shown() -> bool:
        found[:] = quarantined(mesh)
        return bool(found)

    wait_for(shown, lambda: "a quarantined pair in status")
    return found


def test_a_request_that_fells_its_workers_is_given_up_after_three(tmp_path: Path) -> None:
    """Of four workers one is left, which serves on; streams that were on the others lose nothing."""
    with FailureMesh(tmp_path, *ONE_MIXED) as mesh:
        workers = [start_failing_worker(mesh, f"failing-{number}") for number in range(4)]
        try:
            mesh.wait_for_workers("mixed-0", *(f"failing-{number}" for number in range(4)))
            mesh.drain("mixed-0", 5.0)
            mesh.wait_for_workers(*(f"failing-{number}" for number in range(4)))
            expected = [each.tokens for each in run(mesh, *innocent(6), new_tokens=100)]
            *others, poison = run(mesh, *innocent(6), KILLS, new_tokens=100)
            assert (poison.tokens, poison.code) == ((), "fells_workers")
            assert [(each.tokens, each.code) for each in others] == [(tokens, None) for tokens in expected]
            assert sum(worker.poll() is None for worker in workers) == 1
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
