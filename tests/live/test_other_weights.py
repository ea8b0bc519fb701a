"""A worker whose weights are not the mesh's gets no work, is named, and never continues a request."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.mesh import LiveMesh, wait_for
from tests.live.tiny_checkpoint import UP_PROJECTION, WEIGHTS, change_tensors, greedy_tokens, write_tiny_model

pytestmark = pytest.mark.paired

STRAY = "token-stray"
NEW_TOKENS = 240
STREAMS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that the mesh serves."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def other_folder(folder: Path) -> Path:
    """The same but for one tensor."""
    other = folder.parent / "other" / "tiny"
    shutil.copytree(folder, other)
    change_tensors(other, lambda tensors: tensors.update({UP_PROJECTION: tensors[UP_PROJECTION] * -3}))
    return other


@pytest.fixture(scope="module")
def mesh(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    """A prompt worker and a token worker."""
    home = tmp_path_factory.mktemp("other-weights")
    with LiveMesh(home, "--model", str(folder), env={"SPOTWISE_CACHE": str(home / "cache")}) as live:
        yield live


@pytest.fixture(scope="module")
def stray(mesh: LiveMesh, other_folder: Path) -> Iterator[Path]:
    """The log of a worker with other weights that has joined the mesh and reports READY."""
    log_path = mesh.home / "stray.log"
    nats_url, redis_url = mesh.state.worker_urls()
    env = {
        **mesh.env,
        "SPOTWISE_NATS_URL": nats_url,
        "SPOTWISE_REDIS_URL": redis_url,
        "SPOTWISE_MODEL_DIR": str(other_folder),
        "SPOTWISE_MODEL_NAME": "tiny",
        "SPOTWISE_SERVICE_ID": STRAY,
        "SPOTWISE_POOL": "token",
        "SPOTWISE_DTYPE": "float32",
        "SPOTWISE_THREADS": "1",
        "SPOTWISE_KV_CACHE_BYTES": str(256 << 20),
    }
    with (
        log_path.open("wb") as log,
        subprocess.Popen([sys.executable, "-P", "-m", "spotwise.token_worker"], env=env, stderr=log) as process,
    ):
        try:
            wait_for(lambda: b"ready" in log_path.read_bytes(), lambda: f"the stray: {log_path.read_text()}", 60)
            yield log_path
        finally:
            process.terminate()


def serve(mesh: LiveMesh, prompts: list[tuple[int, ...]], kill_after: int | None = None) -> list[tuple[int, ...]]:
    """Stream all prompts at once; once they have `kill_after` tokens together, kill both of the mesh's own workers."""
    total = 0
    killed = kill_after is None

    async def one(client: object, prompt: tuple[int, ...]) -> tuple[int, ...]:
        nonlocal total, killed
        tokens: list[int] = []
        chunks = await client.completions.create(  # type: ignore[attr-defined]
            model="tiny",
            prompt=list(prompt),
            max_tokens=NEW_TOKENS,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        async for chunk in chunks:
            new = chunk.choices[0].token_ids or []
            tokens.extend(new)
            total += len(new)
            if not killed and kill_after is not None and total >= kill_after:
                killed = True
                for worker in ("prompt-0", "token-0"):
                    os.kill(mesh.pid(worker), signal.SIGKILL)
        return tuple(tokens)

    async def run() -> list[tuple[int, ...]]:
        async with mesh.async_client() as client:
            return list(await asyncio.gather(*(one(client, prompt) for prompt in prompts)))

    return asyncio.run(run())


def prompts() -> list[tuple[int, ...]]:
    return [tuple(range(100 + 37 * number, 120 + 41 * number)) for number in range(STREAMS)]


@pytest.fixture(scope="module")
def expected(folder: Path, other_folder: Path) -> list[tuple[int, ...]]:
    """The tokens of the mesh's model; those of the other differ."""
    tokens = [greedy_tokens(folder, prompt, NEW_TOKENS) for prompt in prompts()]
    assert greedy_tokens(other_folder, prompts()[0], NEW_TOKENS) != tokens[0]
    return tokens


def test_a_worker_with_other_weights_gets_no_work(mesh: LiveMesh, stray: Path, expected: list[tuple[int, ...]]) -> None:
    """As idle as the other token worker, it would get every second request; all tokens stay those of the model."""
    assert serve(mesh, prompts()) == expected
    [status] = [status for status in mesh.members() if status.member.id == STRAY]
    assert status.engine is not None
    assert status.engine.iterations == 0


def test_it_is_named_in_the_schedulers_log_its_own_and_in_status(mesh: LiveMesh, stray: Path) -> None:
    """`status` ends with 1, since a member with other weights serves nothing."""
    scheduler_log = mesh.home / "run" / "default" / "logs" / "scheduler-0.log"
    wait_for(lambda: STRAY in scheduler_log.read_text(), lambda: f"its name in {scheduler_log.read_text()}")
    assert "other_weights" in stray.read_text()
    done = mesh.command("status")
    assert done.returncode == 1
    [row] = [line for line in done.stdout.splitlines() if STRAY in line and "token_worker" in line]
    assert "other weights" in row


def test_a_request_never_goes_on_with_other_weights(
    mesh: LiveMesh, stray: Path, expected: list[tuple[int, ...]]
) -> None:
    """Both workers of the mesh die, and for some seconds only the other one is there: the streams wait for theirs."""
    assert serve(mesh, prompts(), kill_after=STREAMS * 40) == expected


def test_a_worker_that_joins_from_a_damaged_folder_says_so_and_ends(mesh: LiveMesh, folder: Path) -> None:
    """`spotwise join` takes the mesh's own folder, to which something may have happened since."""
    kept = (folder / WEIGHTS).read_bytes()
    change_tensors(folder, lambda tensors: tensors.pop(UP_PROJECTION))
    try:
        done = mesh.command("join", "token", "--id", "token-joined")
    finally:
        (folder / WEIGHTS).write_bytes(kept)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    [line] = [line for line in done.stderr.splitlines() if "cannot_serve" in line]
    assert f"it lacks {UP_PROJECTION};" in line
