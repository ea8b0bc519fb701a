"""A mesh of two numerics classes: a request stays in its class, and crosses, or waits, where that is gone."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwise.core.messages.numerics import Numerics
from tests.live.mesh import MODEL, ONE_MIXED, wait_for
from tests.live.simulated_mesh import SeededStream, SimulatedMesh

pytestmark = pytest.mark.parallel

OWN, OTHER = Numerics("float32", "simulated").name, Numerics("bfloat16", "simulated").name
STRAY = "mixed-stray"
TOKENS = 200
SEEDS = range(4)


@contextlib.contextmanager
def two_classes(home: Path, crossing: str) -> Iterator[SimulatedMesh]:
    """A mesh with a worker that claims to compute in float32."""
    env = {"SPOTWISE_CROSSING": crossing}
    with SimulatedMesh(home, *ONE_MIXED, "--dtype", "float32", "--speed", "2", env=env) as mesh:
        yield mesh


@contextlib.contextmanager
def another_class(mesh: SimulatedMesh) -> Iterator[None]:
    """A second worker, which claims to compute in bfloat16."""
    nats_url, redis_url = mesh.state.worker_urls()
    env = {
        **mesh.env,
        "SPOTWISE_NATS_URL": nats_url,
        "SPOTWISE_REDIS_URL": redis_url,
        "SPOTWISE_MODEL_DIR": str(mesh.state.options.model_folder),
        "SPOTWISE_MODEL_NAME": MODEL,
        "SPOTWISE_MEMBERS": STRAY,
        "SPOTWISE_DTYPE": "bfloat16",
        "SPOTWISE_SPEED": "2",
    }
    log_path = mesh.home / "stray.log"
    command = [sys.executable, "-P", "-m", "spotwise.worker.simulated"]
    with log_path.open("wb") as log, subprocess.Popen(command, env=env, stderr=log) as process:
        try:
            wait_for(lambda: b"ready" in log_path.read_bytes(), lambda: f"the stray: {log_path.read_text()}", 60)
            yield
        finally:
            process.terminate()


def begun_then_killed(mesh: SimulatedMesh) -> list[SeededStream]:
    """Begin streams on the mesh's own worker, add the other one, and kill the first."""
    with contextlib.ExitStack() as stack:

        def disturb() -> None:
            stack.enter_context(another_class(mesh))
            mesh.kill("mixed-0")

        return mesh.streams(SEEDS, TOKENS, 5, disturb)


def crossed(mesh: SimulatedMesh, stream: SeededStream) -> list[tuple[object, object, object]]:
    """What the ledger says of a stream's crossings: how, from where and to where."""
    mesh.ledger(stream.request_id, "completed")
    facts = [dict(each.facts) for each in mesh.ledger_entries(stream.request_id) if each.stage == "crossed"]
    return [(each["by"], each["from_class"], each["to_class"]) for each in facts]


def counted(mesh: SimulatedMesh) -> float:
    """The crossings that the gateway has counted."""
    lines = [
        line for line in mesh.get("/metrics").text.splitlines() if line.startswith("spotwise_class_crossings_total")
    ]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_crossings_are_counted_and_explained(tmp_path: Path) -> None:
    """Requests go on in the other class at once; every token comes, `explain` has a line for each crossing, and `status` one
    for each class.
    """
    with two_classes(tmp_path, "count") as mesh:
        streams = begun_then_killed(mesh)
        assert [stream.tokens for stream in streams] == [mesh.tokens_of(seed, TOKENS) for seed in SEEDS]
        crossings = [crossed(mesh, stream) for stream in streams]
        assert [each[0] for each in crossings] == [("recovery", OWN, OTHER)] * len(SEEDS)
        assert counted(mesh) == sum(map(len, crossings))
        shown = mesh.command("explain", streams[0].request_id).stdout
        assert "crossed" in shown and OTHER in shown
        with another_class(mesh):
            wait_for(lambda: {"mixed-0", STRAY} <= mesh.workers(), lambda: f"both workers: {mesh.workers()}")
            lines = mesh.command("status").stdout
            assert f"numerics class {OWN}: mixed-0" in lines
            assert f"numerics class {OTHER}: {STRAY}" in lines


def test_refused_crossings_wait_for_their_class(tmp_path: Path) -> None:
    """The supervisor starts the killed worker again: the streams go on there, and the idle other one gets none of them."""
    with two_classes(tmp_path, "refuse") as mesh:
        streams = begun_then_killed(mesh)
        assert [stream.tokens for stream in streams] == [mesh.tokens_of(seed, TOKENS) for seed in SEEDS]
        assert all(mesh.attempts(stream) > 1 for stream in streams)
        assert [crossed(mesh, stream) for stream in streams] == [[]] * len(SEEDS)
        assert counted(mesh) == 0
        for stream in streams:
            entries = [each for each in mesh.ledger_entries(stream.request_id) if each.stage == "assigned"]
            assert {dict(each.facts)["token_worker"] for each in entries} == {"mixed-0"}
