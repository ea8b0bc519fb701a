"""A worker that is alive and stuck ends itself, with status 70, and its requests resume on another one with the same tokens.

The workers are processes of the test's own. Their event loops go on in every case: heartbeats, registrations and health checks
say that nothing is wrong.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from spotwise.mesh.process.watchdog import EXIT_STUCK
from tests.live.failing_worker import HANGS, start_failing_worker
from tests.live.failure_mesh import FailureMesh, innocent, run
from tests.live.mesh import ONE_MIXED, wait_for

pytestmark = pytest.mark.paired

NEW_TOKENS = 60
#: Limits of a second or so: ten times as long for an iteration that nothing was measured for, four times for a message.
QUICK = {"SPOTWISE_ITERATION_TIMEOUT_S": "0.3", "SPOTWISE_STUCK_AFTER_S": "0.5"}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FailureMesh]:
    """A mesh whose own worker is sound."""
    home = tmp_path_factory.mktemp("stuck")
    with FailureMesh(home, *ONE_MIXED, env={"SPOTWISE_JOURNAL": str(home / "journals")}) as live:
        yield live


@pytest.fixture
def expected(mesh: FailureMesh) -> list[tuple[int, ...]]:
    """What six streams get on a sound worker."""
    return [each.tokens for each in run(mesh, *innocent(6), new_tokens=NEW_TOKENS)]


@pytest.mark.parametrize(
    ("signal_number", "part"), [(signal.SIGUSR2, "engine"), (signal.SIGRTMIN, "messages on ")], ids=["engine", "inbox"]
)
def test_a_stuck_worker_ends_itself_and_its_requests_go_on(
    mesh: FailureMesh, expected: list[tuple[int, ...]], signal_number: signal.Signals, part: str
) -> None:
    """An iteration that never ends, or a message that is never handled to its end, costs a pause and no token."""
    worker_id = f"stuck-{part.split()[0]}"
    worker = start_failing_worker(mesh, worker_id, env=QUICK)
    try:
        mesh.wait_for_workers("mixed-0", worker_id)
        os.kill(worker.pid, signal_number)
        ended = run(mesh, *innocent(6), new_tokens=NEW_TOKENS)
        assert [(each.tokens, each.code) for each in ended] == [(tokens, None) for tokens in expected]
        wait_for(lambda: worker.poll() is not None, lambda: "the worker to end")
        log = (mesh.home / f"{worker_id}.log").read_text()
        assert worker.returncode == EXIT_STUCK, log
        assert f"{worker_id}: {part}" in log
        assert "thread MainThread:" in log
        mesh.wait_until_idle()
    finally:
        worker.kill()
        worker.wait()


def test_a_request_that_makes_every_worker_stuck_is_given_up(mesh: FailureMesh) -> None:
    """After three of them, as one that kills them would be; requests beside it get all of their tokens."""
    names = [f"doomed-{number}" for number in range(3)]
    workers: list[subprocess.Popen[bytes]] = [start_failing_worker(mesh, name, env=QUICK) for name in names]
    try:
        mesh.wait_for_workers("mixed-0", *names)
        mesh.drain("mixed-0", 5.0)
        mesh.wait_for_workers(*names)
        spare = start_failing_worker(mesh, "spare", env=QUICK)
        workers.append(spare)
        mesh.wait_for_workers("spare", *names)
        guilty, *others = run(mesh, HANGS, *innocent(2), new_tokens=NEW_TOKENS)
        assert guilty.code == "fells_workers"
        assert [len(each.tokens) for each in others] == [NEW_TOKENS] * 2
        wait_for(lambda: sum(worker.poll() == EXIT_STUCK for worker in workers) >= 3, lambda: "three to end")
        done = mesh.command("replay", str(mesh.home / "journals"))
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
