"""An iteration that fails, on real processes: the others of its batch resume, and the request that fails it gets the error.

The workers are processes of the test's own, whose engine raises where the test configures it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.live.failing_worker import FAILS, start_failing_worker
from tests.live.failure_mesh import FailureMesh, innocent, run
from tests.live.mesh import ONE_MIXED, wait_for

pytestmark = pytest.mark.parallel

NEW_TOKENS = 60


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FailureMesh]:
    """A mesh whose own worker leaves once the failing one is there."""
    home = tmp_path_factory.mktemp("iterations")
    with FailureMesh(home, *ONE_MIXED, env={"SPOTWISE_JOURNAL": str(home / "journals")}) as live:
        yield live


@pytest.fixture(scope="module")
def failing(mesh: FailureMesh) -> Iterator[subprocess.Popen[bytes]]:
    """The only worker of the mesh."""
    worker = start_failing_worker(mesh, "failing-0")
    try:
        mesh.wait_for_workers("mixed-0", "failing-0")
        mesh.drain("mixed-0", 5.0)
        mesh.wait_for_workers("failing-0")
        yield worker
    finally:
        worker.kill()
        worker.wait()


def test_the_others_of_a_failed_batch_go_on(mesh: FailureMesh, failing: subprocess.Popen[bytes]) -> None:
    """Six streams get the same tokens as without the failing request, in one attempt; the seventh gets the error."""
    alone = run(mesh, *innocent(6), new_tokens=NEW_TOKENS)
    assert [len(each.tokens) for each in alone] == [NEW_TOKENS] * 6
    *others, culprit = run(mesh, *innocent(6), FAILS, new_tokens=NEW_TOKENS)
    assert [(each.tokens, each.code) for each in others] == [(each.tokens, None) for each in alone]
    assert culprit.code == "engine_error"
    assert culprit.tokens == ()
    for each in others:
        assert mesh.ledger(each.request_id, "completed")["completed"]["attempts"] == 1
    mesh.wait_until_idle()


def test_an_engine_that_fails_for_everybody_ends_its_worker(
    mesh: FailureMesh, failing: subprocess.Popen[bytes]
) -> None:
    """The worker's process ends with status 1 and a line with the reason; its requests resume on another worker."""
    expected = [each.tokens for each in run(mesh, *innocent(6), new_tokens=NEW_TOKENS)]
    sound = start_failing_worker(mesh, "failing-1")
    try:
        mesh.wait_for_workers("failing-0", "failing-1")
        os.kill(failing.pid, signal.SIGUSR1)
        ended = run(mesh, *innocent(6), new_tokens=NEW_TOKENS)
        assert [(each.tokens, each.code) for each in ended] == [(tokens, None) for tokens in expected]
        wait_for(lambda: failing.poll() is not None, lambda: "the worker to end")
        assert failing.returncode == 1
        assert "the engine fails for every request" in (mesh.home / "failing-0.log").read_text()
        mesh.wait_until_idle()
        done = mesh.command("replay", str(mesh.home / "journals"))
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        sound.kill()
        sound.wait()
