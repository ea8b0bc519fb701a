"""Devices get weights from one another: a new one needs no model folder, and none reads from storage what another has."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.live.mesh import EXECUTED, MODEL, LiveMesh, wait_for
from tests.live.oracle import greedy, mixed_prompts

pytestmark = pytest.mark.long

NEW_TOKENS = 160
#: Slow enough that what is read from the folder is noticed: the model takes some.
STORAGE = {"SPOTWISE_STORAGE_BYTES_PER_S": "200e6", "SPOTWISE_GROUP_PATIENCE_S": "5", **EXECUTED}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    """One worker of one process, and a device that waits."""
    with LiveMesh(tmp_path_factory.mktemp("weights"), "--parallel", "1,1,1", "--devices", "2", env=STORAGE) as live:
        yield live


@contextmanager
def newcomer(mesh: LiveMesh, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A device that was told where the mesh is, and of no model."""
    env = psutil.Process(mesh.pid("device-0")).environ()
    del env["SPOTWISE_MODEL_DIR"]
    env.pop("SPOTWISE_MODEL_NAME", None)
    env |= {"SPOTWISE_SERVICE_ID": "newcomer"}
    command = [sys.executable, "-P", "-m", "spotwise.worker.groups"]
    with log.open("wb") as output, subprocess.Popen(command, env=env, stdout=output, stderr=output) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()


def is_ready(mesh: LiveMesh, device_id: str) -> bool:
    return any(each.member.id == device_id and each.member_now.state.value == "ready" for each in mesh.members())


def fetched(log: Path) -> list[tuple[float, float]]:
    """Megabytes that came from others, and those that did not, by part that was loaded."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text())
    pattern = r"weights_fetched.*?megabytes=([\d.]+).*?put_off_megabytes=([\d.]+)"
    return [(float(own), float(put_off)) for own, put_off in re.findall(pattern, lines)]


async def reshaped_under_a_stream(mesh: LiveMesh, shape: str) -> tuple[list[int], str]:
    """A greedy stream's tokens, and what the command said."""
    token_ids: list[int] = []
    command: asyncio.Task[Any] | None = None
    async with mesh.async_client() as client:
        chunks: Any = await client.completions.create(
            model=MODEL,
            prompt=[*mixed_prompts(4, 200)[0]],
            max_tokens=NEW_TOKENS,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        async for chunk in chunks:
            token_ids += [token for choice in chunk.choices for token in choice.token_ids or []]
            if command is None and len(token_ids) > 8:
                command = asyncio.create_task(asyncio.to_thread(mesh.command, "reshape", shape))
    assert command is not None
    done = await command
    assert done.returncode == 0, done.stdout + done.stderr
    return token_ids, done.stdout


@pytest.mark.timeout(300)
def test_a_device_without_a_folder_joins(mesh: LiveMesh, tmp_path: Path) -> None:
    """It gets the model from the others, computes a part of it, and clients get the oracle's tokens throughout; then it is
    killed, and a group without it serves.
    """
    log = tmp_path / "newcomer.log"
    with newcomer(mesh, log) as process:
        wait_for(lambda: is_ready(mesh, "newcomer"), log.read_text, 60.0)
        planned = mesh.command("plan", "--live", "--to", "1,1,3")
        assert planned.returncode == 0 and "newcomer" in planned.stdout, planned.stdout + planned.stderr
        tokens, _ = asyncio.run(reshaped_under_a_stream(mesh, "1,1,3"))
        assert tuple(tokens) == greedy(mixed_prompts(4, 200)[0], NEW_TOKENS)
        ((megabytes, put_off),) = fetched(log)
        assert megabytes > 100 and put_off == 0
        mesh.wait_until_idle()
        tokens, _ = asyncio.run(reshaped_under_a_stream(mesh, "1,3,1"))
        assert tuple(tokens) == greedy(mixed_prompts(4, 200)[0], NEW_TOKENS)
        assert sum(put_off for _, put_off in fetched(log)) == 0
        mesh.wait_until_idle()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    done = mesh.command("reshape", "1,1,1")
    assert done.returncode == 0, done.stdout + done.stderr
    prompt = mixed_prompts(4, 200)[1]
    answer = mesh.client().completions.create(
        model=MODEL,
        prompt=[*prompt],
        max_tokens=16,
        temperature=0,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    assert tuple(answer.choices[0].token_ids) == greedy(prompt, 16)  # type: ignore[attr-defined]
    mesh.wait_until_idle()
