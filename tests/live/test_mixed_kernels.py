"""Workers of unlike processors, killed in turn: the tokens are those of an undisturbed run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwise.cli.launch.mesh_processes import joining_worker
from spotwise.cli.launch.worker_cores import LocalHost
from spotwise.engine.native import build, processor
from tests.live.mesh import ONE_MIXED, LiveMesh, wait_for
from tests.live.oracle import mixed_prompts
from tests.live.streams import stream

pytestmark = pytest.mark.paired

NEW_TOKENS = 90
STREAMS = 5
FIRST = "mixed-0"
#: The kernels of the mesh's own worker, which is started again, and of those that join it, by order of summation.
KINDS = {"dot": ("avx2", "avx512", "avx512_bf16"), "amx": ("avx2", "avx512", "amx_emulated", "amx")}


@pytest.fixture(scope="module", params=KINDS)
def kinds(request: pytest.FixtureRequest) -> tuple[str, tuple[str, ...]]:
    """An order, and the kinds of kernels that this processor runs in it."""
    flags = processor.usable_flags()
    names = [variant.name for variant in (*build.VARIANTS, *build.EMULATIONS) if variant.needs <= flags]
    usable = tuple(name for name in KINDS[request.param] if name in names)
    if len(usable) < 2:
        pytest.skip("this processor runs one kind of kernels only")
    return request.param, usable


@pytest.fixture(scope="module")
def mesh(kinds: tuple[str, tuple[str, ...]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    """One worker, whose kernels are those of the first kind."""
    order, (first, *_) = kinds
    env = {"SPOTWISE_KERNELS": first, "SPOTWISE_KERNEL_ORDER": order}
    home = tmp_path_factory.mktemp("mixed-kernels")
    with LiveMesh(home, *ONE_MIXED, "--threads", "1", "--dtype", "bfloat16", env=env) as live:
        yield live


@pytest.fixture(scope="module")
def others(kinds: tuple[str, tuple[str, ...]], mesh: LiveMesh) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Workers of the other kinds that joined, by name; they are not started again."""
    joined: dict[str, subprocess.Popen[bytes]] = {}
    with contextlib.ExitStack() as stack:
        for kind in kinds[1][1:]:
            plan = joining_worker(mesh.state.options, *mesh.state.worker_urls(), "mixed", kind, LocalHost.this())
            env = {**mesh.env, **plan.environment(os.environ), "SPOTWISE_KERNELS": kind}
            log = stack.enter_context((mesh.home / f"{kind}.log").open("wb"))
            joined[kind] = subprocess.Popen(plan.argv, env=env, cwd=Path(__file__).parents[2], stdout=log, stderr=log)
            stack.callback(end, joined[kind])
        wait_for(lambda: mesh.workers() >= {FIRST, *joined}, lambda: f"{set(joined)} of {mesh.workers()}", 120.0)
        yield joined


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a worker as a machine's failure does."""
    process.kill()
    process.wait()


def tokens_of(
    mesh: LiveMesh, victims: list[str], others: dict[str, subprocess.Popen[bytes]]
) -> tuple[list[tuple[int, ...]], int]:
    """Stream greedily, and kill one more worker each time that a share of each answer has come; return tokens and attempts.

    Of each: a request without progress between two losses is suspected of them.
    """
    counts = dict.fromkeys(range(STREAMS), 0)

    def kill(name: str) -> None:
        if name == FIRST:
            mesh.kill(FIRST)
        else:
            end(others[name])

    def reach(tokens: int) -> None:
        wait_for(lambda: min(counts.values()) >= tokens, lambda: f"{tokens} tokens of each, of {counts}")

    async def run() -> list[tuple[str, tuple[int, ...]]]:
        async with mesh.async_client() as client:

            async def disturb() -> None:
                for number, victim in enumerate(victims, start=1):
                    await asyncio.to_thread(reach, number * NEW_TOKENS // (len(victims) + 1))
                    await asyncio.to_thread(kill, victim)

            disturbing = asyncio.create_task(disturb())
            prompts = mixed_prompts(11, 300)[:STREAMS]
            answers = await asyncio.gather(
                *(
                    stream(client, prompt, NEW_TOKENS, lambda count, number=number: counts.update({number: count}))  # type: ignore[misc]
                    for number, prompt in enumerate(prompts)
                )
            )
            await disturbing
            return answers

    answers = asyncio.run(run())
    attempts = sum(mesh.ledger(name, "completed")["completed"]["attempts"] for name, _ in answers)
    return [tokens for _, tokens in answers], attempts


def test_tokens_are_those_of_an_undisturbed_run(
    kinds: tuple[str, tuple[str, ...]], mesh: LiveMesh, others: dict[str, subprocess.Popen[bytes]]
) -> None:
    """Each worker is killed while requests run on it; another kind of kernels goes on, within one numerics class."""
    order, names = kinds
    for name in (FIRST, *others):
        kind = names[0] if name == FIRST else name
        (engine,) = (s.engine.engine for s in mesh.members() if s.member.id == name and s.engine is not None)
        assert f"native {kind}," in engine
    classes = {s.member.numerics_class for s in mesh.members() if s.engine is not None}
    assert len(classes) == 1 and f"bfloat16/{order}/" in classes.pop()
    undisturbed, attempts = tokens_of(mesh, [], others)
    assert attempts == STREAMS
    disturbed, attempts = tokens_of(mesh, [FIRST, *others], others)
    assert disturbed == undisturbed
    assert attempts > STREAMS + 1
