"""A mesh with two gateways, two schedulers and two planners, of which one dies or stands still under load.

Requests through both gateways are all served, with their tokens; a running one needs no scheduler, and does not notice.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import openai
import pytest

from spotwise.core.messages.members import MemberKind, MemberState
from tests.live.mesh import wait_for
from tests.live.simulated_mesh import SeededStream, SimulatedMesh

pytestmark = pytest.mark.paired

SEEDS = range(6)
TOKENS = 200
BEGUN_TOKENS = 20
#: Requests move that would not end by themselves within the notice, in which the standby first has to find that it acts.
NOTICE_S = 6.0
MOVED_TOKENS = 500
PAUSE_S = 5.0
#: Tokens of a request that comes while the others run, and seconds between two of them.
SHORT_TOKENS = 3
SHORT_EVERY_S = 0.1
#: A running stream that waited for another scheduler would pause for about a lease, 1.5 s.
TAKE_OVER_S = 1.0


@dataclass
class Load:
    """What clients saw of long streams and of short requests that came meanwhile.

    Attributes:
        before: gaps of the streams until the disturbance, seconds; `after`: those since.
        waits_s: of the short requests.
        errors: of all of them, by gateway.
    """

    streams: list[SeededStream] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    errors: dict[int, list[openai.OpenAIError]] = field(default_factory=lambda: {0: [], 1: []})

    def say(self) -> None:
        """Show the figures with the test's name."""
        sys.stdout.write(
            f" {len(self.waits_s)} short requests, longest wait {max(self.waits_s):.2f} s; longest gap "
            f"{max(self.before):.2f} s before, {max(self.after):.2f} s after "
        )


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedMesh]:
    """Simulated workers; a token takes some 30 ms."""
    options = (
        "--gateways",
        "2",
        "--schedulers",
        "2",
        "--planners",
        "2",
        "--prompt-workers",
        "1",
        "--token-workers",
        "2",
    )
    with SimulatedMesh(tmp_path_factory.mktemp("standbys"), *options) as live:
        yield live


def terms(mesh: SimulatedMesh, kind: MemberKind) -> dict[str, int | None]:
    """The term of each scheduler or planner that is there."""
    members = (status.member_now for status in mesh.members())
    return {each.id: each.term for each in members if each.kind is kind and each.state is MemberState.READY}


def active(mesh: SimulatedMesh, kind: MemberKind) -> str:
    """The one that acts, once there are two."""
    found: list[str] = []

    def settled() -> bool:
        known = terms(mesh, kind)
        found[:] = [id_ for id_, term in known.items() if term is not None]
        return len(known) == 2 and len(found) == 1

    wait_for(settled, lambda: f"one of two to act: {terms(mesh, kind)}")
    return found[0]


def under_load(
    mesh: SimulatedMesh, disturb: Callable[[], object], gateways: tuple[int, ...] = (0, 1), tokens: int = TOKENS
) -> Load:
    """Stream through both gateways, with short requests all the while, and disturb the mesh in the midst of it."""
    load, urls = Load(), mesh.state.options.urls

    async def run() -> None:
        begun: dict[int, int] = {}
        reached, over = asyncio.Event(), asyncio.Event()
        disturbed_s: list[float] = []

        def seen(seed: int, stream: SeededStream) -> None:
            (load.after if disturbed_s else load.before).append(stream.gaps_s[-1])
            begun[seed] = len(stream.tokens)
            if len(begun) == len(SEEDS) and min(begun.values()) >= BEGUN_TOKENS:
                reached.set()

        async def stream(seed: int) -> SeededStream | None:
            number = gateways[seed % len(gateways)]
            try:
                return await mesh.stream(clients[number], seed, tokens, lambda each: seen(seed, each))
            except openai.OpenAIError as error:
                load.errors[number].append(error)
                return None

        async def short(number: int) -> None:
            began_s = time.monotonic()
            try:
                result = await mesh.stream(clients[number], 99, SHORT_TOKENS)
                assert len(result.tokens) == SHORT_TOKENS
                load.waits_s.append(time.monotonic() - began_s)
            except openai.OpenAIError as error:
                load.errors[number].append(error)

        async def newcomers() -> None:
            async with asyncio.TaskGroup() as group:
                while not over.is_set():
                    for number in gateways:
                        group.create_task(short(number))
                    await asyncio.sleep(SHORT_EVERY_S)

        async def disturbance() -> None:
            await reached.wait()
            disturbed_s.append(time.monotonic())
            await asyncio.to_thread(disturb)

        clients = [
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120.0) for url in urls
        ]
        disturbing, coming = asyncio.create_task(disturbance()), asyncio.create_task(newcomers())
        done = await asyncio.gather(*map(stream, SEEDS))
        load.streams = [each for each in done if each is not None]
        await disturbing
        over.set()
        await coming
        for client in clients:
            await client.close()

    asyncio.run(run())
    return load


def expected(mesh: SimulatedMesh, tokens: int = TOKENS) -> list[list[int]]:
    """The tokens of each stream."""
    return [mesh.tokens_of(seed, tokens) for seed in SEEDS]


def assert_unnoticed(mesh: SimulatedMesh, load: Load) -> None:
    """Every request was served, and no running one was computed again or paused."""
    load.say()
    assert load.errors == {0: [], 1: []}
    assert [stream.tokens for stream in load.streams] == expected(mesh)
    assert mesh.losses(load.streams) == []
    assert max(load.after) < max(load.before) + TAKE_OVER_S
    wait_for(lambda: mesh.command("status").returncode == 0, lambda: "a healthy mesh")
    mesh.wait_until_idle()


def test_a_standby_takes_over_from_a_scheduler_that_dies(mesh: SimulatedMesh) -> None:
    """New requests wait for it, with both gateways; none is refused."""
    former = active(mesh, MemberKind.CLUSTER_SCHEDULER)
    term = terms(mesh, MemberKind.CLUSTER_SCHEDULER)[former] or 0
    load = under_load(mesh, lambda: os.kill(mesh.pid(former), signal.SIGKILL))
    assert_unnoticed(mesh, load)
    successor = active(mesh, MemberKind.CLUSTER_SCHEDULER)
    assert successor != former
    assert (terms(mesh, MemberKind.CLUSTER_SCHEDULER)[successor] or 0) > term
    assert f"{successor} " in mesh.command("status").stdout


def test_a_scheduler_that_stood_still_stands_by_when_it_wakes(mesh: SimulatedMesh) -> None:
    """The other has taken over in the meantime; what the first had been sent is not served twice."""
    former = active(mesh, MemberKind.CLUSTER_SCHEDULER)
    pid = mesh.pid(former)

    def pause() -> None:
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(PAUSE_S)
        finally:
            os.kill(pid, signal.SIGCONT)

    assert_unnoticed(mesh, under_load(mesh, pause))
    assert active(mesh, MemberKind.CLUSTER_SCHEDULER) != former
    assert mesh.pid(former) == pid


def test_a_gateways_death_concerns_its_own_clients_only(mesh: SimulatedMesh) -> None:
    """Clients of the other gateway notice nothing."""
    load = under_load(mesh, lambda: os.kill(mesh.pid("gateway-0"), signal.SIGKILL))
    assert load.errors[1] == []
    assert load.errors[0]
    served = [stream for stream in load.streams if len(stream.tokens) == TOKENS]
    assert [stream.tokens for stream in served] == expected(mesh)[1::2]
    assert mesh.losses(served) == []
    wait_for(lambda: mesh.command("status").returncode == 0, lambda: "a healthy mesh")
    mesh.wait_until_idle()


def test_a_standby_planner_goes_on_with_a_drain(mesh: SimulatedMesh) -> None:
    """Requests of a worker that leaves move with their KV, though the planner stands still that was to order it; when it goes
    on, it has lost its term and orders nothing.
    """
    former = active(mesh, MemberKind.MIGRATION_PLANNER)
    pid = mesh.pid(former)

    def drain() -> None:
        os.kill(pid, signal.SIGSTOP)
        try:
            mesh.drain("token-1", NOTICE_S)
            wait_for(lambda: "token-1" not in {each.member.id for each in mesh.members()}, lambda: "token-1 to leave")
        finally:
            os.kill(pid, signal.SIGCONT)

    load = under_load(mesh, drain, gateways=(1,), tokens=MOVED_TOKENS)
    load.say()
    assert load.errors == {0: [], 1: []}
    assert [stream.tokens for stream in load.streams] == expected(mesh, MOVED_TOKENS)
    assert mesh.losses(load.streams) == []
    assert any(entry.stage == "moved" for stream in load.streams for entry in mesh.ledger_entries(stream.request_id))
    assert active(mesh, MemberKind.MIGRATION_PLANNER) != former
    mesh.wait_until_idle()
