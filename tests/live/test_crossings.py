"""A mesh of two numerics classes: a request stays in its class, and crosses, or waits, where that is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotwise.core.messages.numerics import Numerics
from tests.live.mesh import ONE_MIXED, LiveMesh, wait_for
from tests.live.simulated_mesh import SeededStream, SimulatedMesh
from tests.live.tiny_checkpoint import FOUR_KV_HEADS, write_tiny_model

pytestmark = pytest.mark.parallel

OWN, OTHER = Numerics("float32", "simulated").name, Numerics("bfloat16", "simulated").name
STRAY = "mixed-stray"
TOKENS = 200
#: Of a model that decodes thousands of tokens a second: more than come until its worker is killed.
TOKENS_OF_TINY = 1500
SEEDS = range(4)


@contextlib.contextmanager
def two_classes(home: Path, crossing: str) -> Iterator[SimulatedMesh]:
    """A mesh with a worker that claims to compute in float32."""
    env = {"SPOTWISE_CROSSING": crossing}
    with SimulatedMesh(home, *ONE_MIXED, "--dtype", "float32", "--speed", "2", env=env) as mesh:
        yield mesh


@contextlib.contextmanager
def joined(mesh: LiveMesh, dtype: str, module: str) -> Iterator[None]:
    """A second worker with a number format, which is ready."""
    nats_url, redis_url = mesh.state.worker_urls()
    options = mesh.state.options
    env = {
        **mesh.env,
        "SPOTWISE_NATS_URL": nats_url,
        "SPOTWISE_REDIS_URL": redis_url,
        "SPOTWISE_MODEL_DIR": str(options.model_folder),
        "SPOTWISE_MODEL_NAME": options.model_name,
        "SPOTWISE_SERVICE_ID": STRAY,
        "SPOTWISE_POOL": "mixed",
        "SPOTWISE_DTYPE": dtype,
        "SPOTWISE_THREADS": "1",
        "SPOTWISE_KV_CACHE_BYTES": str(256 << 20),
        "SPOTWISE_SPEED": "2",
    }
    log_path = mesh.home / "stray.log"
    command = [sys.executable, "-P", "-m", module]
    with log_path.open("wb") as log, subprocess.Popen(command, env=env, stderr=log) as process:
        try:
            wait_for(lambda: b"ready" in log_path.read_bytes(), lambda: f"the stray: {log_path.read_text()}", 60)
            yield
        finally:
            process.terminate()


def another_class(mesh: SimulatedMesh) -> contextlib.AbstractContextManager[None]:
    """A second worker, which claims to compute in bfloat16."""
    return joined(mesh, "bfloat16", "spotwise.worker.simulated")


def begun_then_killed(mesh: SimulatedMesh) -> list[SeededStream]:
    """Begin streams on the mesh's own worker, add the other one, and kill the first."""
    with contextlib.ExitStack() as stack:

        def disturb() -> None:
            stack.enter_context(another_class(mesh))
            mesh.kill("mixed-0")

        return mesh.streams(SEEDS, TOKENS, 5, disturb)


def crossed(mesh: LiveMesh, request_id: str) -> list[tuple[object, object, object]]:
    """What the ledger says of a request's crossings: how, from where and to where."""
    mesh.ledger(request_id, "completed")
    facts = [dict(each.facts) for each in mesh.ledger_entries(request_id) if each.stage == "crossed"]
    return [(each["by"], each["from_class"], each["to_class"]) for each in facts]


def counted(mesh: LiveMesh) -> float:
    """The crossings that the gateway has counted."""
    lines = [
        line for line in mesh.get("/metrics").text.splitlines() if line.startswith("spotwise_class_crossings_total")
    ]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def shown_classes(mesh: LiveMesh) -> set[str]:
    """The classes in the gateway's metrics."""
    lines = mesh.get("/metrics").text.splitlines()
    return {line.split('"')[-2] for line in lines if line.startswith("spotwise_class_workers{")}


def test_crossings_are_counted_and_explained(tmp_path: Path) -> None:
    """Requests go on in the other class at once; every token comes, `explain` has a line for each crossing, and `status` one
    for each class.
    """
    with two_classes(tmp_path, "count") as mesh:
        streams = begun_then_killed(mesh)
        assert [stream.tokens for stream in streams] == [mesh.tokens_of(seed, TOKENS) for seed in SEEDS]
        crossings = [crossed(mesh, stream.request_id) for stream in streams]
        assert [each[0] for each in crossings] == [("recovery", OWN, OTHER)] * len(SEEDS)
        assert counted(mesh) == sum(map(len, crossings))
        shown = mesh.command("explain", streams[0].request_id).stdout
        assert "crossed" in shown and OTHER in shown
        with another_class(mesh):
            wait_for(lambda: {"mixed-0", STRAY} <= mesh.workers(), lambda: f"both workers: {mesh.workers()}")
            wait_for(lambda: shown_classes(mesh) == {OWN, OTHER}, lambda: f"both classes: {shown_classes(mesh)}")
            lines = mesh.command("status").stdout
            assert f"numerics class {OWN}: mixed-0" in lines
            assert f"numerics class {OTHER}: {STRAY}" in lines


def test_refused_crossings_wait_for_their_class(tmp_path: Path) -> None:
    """The supervisor starts the killed worker again: the streams go on there, and the idle other one gets none of them."""
    with two_classes(tmp_path, "refuse") as mesh:
        streams = begun_then_killed(mesh)
        assert [stream.tokens for stream in streams] == [mesh.tokens_of(seed, TOKENS) for seed in SEEDS]
        assert all(mesh.attempts(stream) > 1 for stream in streams)
        assert [crossed(mesh, stream.request_id) for stream in streams] == [[]] * len(SEEDS)
        assert counted(mesh) == 0
        for stream in streams:
            entries = [each for each in mesh.ledger_entries(stream.request_id) if each.stage == "assigned"]
            assert {dict(each.facts)["token_worker"] for each in entries} == {"mixed-0"}


def numerics(mesh: LiveMesh) -> dict[str, Numerics | None]:
    """How each worker computes, as it has registered."""
    return {each.member.id: each.member_now.numerics for each in mesh.members() if each.member.pool is not None}


def test_real_workers_agree_on_a_format_unless_they_are_told_another(tmp_path: Path) -> None:
    """`auto` is what the mesh has, whatever this processor multiplies best. A worker that is told another format is another
    class, and goes on with what the mesh's own worker had begun, computed again.
    """
    folder = write_tiny_model(tmp_path / "models" / "tiny", **FOUR_KV_HEADS)
    env = {"SPOTWISE_CACHE": str(tmp_path / "cache")}
    with LiveMesh(tmp_path / "mesh", "--model", str(folder), *ONE_MIXED, env=env) as mesh:
        with joined(mesh, "auto", "spotwise.token_worker"):
            both = numerics(mesh)
            assert both["mixed-0"] is not None and both["mixed-0"].dtype == "float32"
            assert both[STRAY] == both["mixed-0"]
        wait_for(lambda: STRAY not in mesh.workers(), lambda: f"the stray to leave: {mesh.workers()}")
        with joined(mesh, "bfloat16", "spotwise.token_worker"):
            classes = {name: each.name for name, each in numerics(mesh).items() if each is not None}
            assert classes[STRAY].startswith("bfloat16/")
            pids = {each.member.id: each.member.pid for each in mesh.members()}
            request_id, killed = "", ""
            tokens: list[int] = []
            options: dict[str, Any] = {"model": "tiny", "prompt": [*range(100, 120)], "max_tokens": TOKENS_OF_TINY}
            body = {"ignore_eos": True, "return_token_ids": True}
            for chunk in mesh.client().completions.create(**options, temperature=0, stream=True, extra_body=body):
                request_id = chunk.id
                tokens += chunk.choices[0].token_ids or []
                if len(tokens) >= 20 and not killed:
                    killed = next(name for name in classes if mesh.engine_sequences(name))
                    os.kill(pids[killed], signal.SIGKILL)
            assert len(tokens) == TOKENS_OF_TINY
            (other,) = (name for name in classes if name != killed)
            assert crossed(mesh, request_id) == [("recovery", classes[killed], classes[other])]
            assert counted(mesh) == 1
