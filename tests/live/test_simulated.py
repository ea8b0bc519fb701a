"""`up --engine simulated`: the whole mesh with workers that compute nothing, and the real client."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwise.cli.launch.supervision.run_state import ServiceState
from spotwise.core.messages.members import MemberState
from spotwise.wire import subjects
from tests.live.mesh import MODEL, wait_for
from tests.live.simulated_mesh import QUESTION, SimulatedMesh

pytestmark = pytest.mark.parallel

GRACE_S = 30.0
WORKERS = ("--prompt-workers", "12", "--token-workers", "12")


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the shared mesh's journals."""
    return tmp_path_factory.mktemp("journals")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory, journals: Path) -> Iterator[SimulatedMesh]:
    """A mesh of two dozen workers that keeps journals; stopped workers have half a minute."""
    home = tmp_path_factory.mktemp("simulated")
    env = {"SPOTWISE_JOURNAL": str(journals), "SPOTWISE_STOP_GRACE_S": str(GRACE_S)}
    with SimulatedMesh(home, *WORKERS, "--speed", "5", env=env) as mesh:
        yield mesh


def test_two_dozen_workers_are_two_processes(simulated: SimulatedMesh) -> None:
    """Every worker is a member with a load of its own; none of the processes has loaded torch or transformers."""
    members = [each for each in simulated.members() if each.engine is not None]
    assert len(members) == 24
    assert all(each.serving and each.member_now.load is not None for each in members)
    assert {each.member.id for each in members} == {f"{kind}-{n}" for kind in ("prompt", "token") for n in range(12)}
    pids = Counter(each.member.pid for each in members)
    assert sorted(pids.values()) == [12, 12]
    assert set(pids) == {simulated.pid("prompt-0-to-11"), simulated.pid("token-0-to-11")}
    for pid in pids:
        mapped = Path(f"/proc/{pid}/maps").read_text()
        assert "libtorch" not in mapped


def test_answers_are_words_and_the_same_for_a_seed(simulated: SimulatedMesh) -> None:
    """Sixty streams over all workers: whole, readable, and again the same."""
    first = asyncio.run(simulated.answers(60, 12))
    assert all(len(text.split()) >= 12 for text in first)
    assert all(text.replace(" ", "").isalpha() for text in first)
    assert len(set(first)) > 50
    assert asyncio.run(simulated.answers(60, 12)) == first
    simulated.wait_until_idle()
    busy = [each.member.id for each in simulated.members() if each.engine is not None and each.engine.iterations]
    assert len(busy) > 12


def test_hand_offs_are_in_the_ledger(simulated: SimulatedMesh) -> None:
    """The ledger has the bytes and the transport of a simulated hand-off."""
    answer = simulated.client().completions.create(model=MODEL, prompt=QUESTION, max_tokens=3)
    stages = simulated.ledger(answer.id, "assigned", "prefilled", "handed_off", "kv_received", "decoded", "completed")
    assert stages["handed_off"]["transport"] == "simulated"
    assert stages["handed_off"]["kv_bytes"] == stages["kv_received"]["kv_bytes"] > 0
    assert stages["handed_off"]["member"].startswith("prompt-")
    assert stages["decoded"]["member"].startswith("token-")


def test_a_clients_own_request_id_leads_to_the_ledger(simulated: SimulatedMesh) -> None:
    """The answer has the client's id, and `explain` finds either id by the other."""
    headers = {"X-Request-Id": "ticket-42"}
    body = {"model": MODEL, "prompt": QUESTION, "max_tokens": 3}
    answer = simulated.post("/v1/completions", body, headers=headers)
    assert answer.headers["X-Request-Id"] == "ticket-42"
    request_id = answer.json()["id"]
    assert simulated.ledger(request_id, "received")["received"]["client_request_id"] == "ticket-42"
    named = simulated.ledger(subjects.clients_name("ticket-42"), "received")
    assert named["received"]["request_id"] == request_id
    assert request_id in simulated.command("explain", "ticket-42").stdout


async def _leave_early(mesh: SimulatedMesh, count: int) -> None:
    async with mesh.async_client() as client:

        async def leave(number: int) -> None:
            stream = await client.completions.create(
                model=MODEL, prompt=f"{number} {QUESTION}", max_tokens=2000, stream=True
            )
            async for _ in stream:
                break
            await stream.close()

        await asyncio.gather(*map(leave, range(count)))


def test_a_drained_member_leaves_alone_and_the_journal_is_decided_again(
    simulated: SimulatedMesh, journals: Path, tmp_path: Path
) -> None:
    """Clients that leave, a drain, and streams beside them: every role's commands come out the same; a lie is noticed."""
    asyncio.run(_leave_early(simulated, 8))
    pid = simulated.pid("token-0-to-11")
    simulated.drain("token-3", seconds=20.0)
    assert len(asyncio.run(simulated.answers(30, 8))) == 30

    def gone() -> bool:
        return "token-3" not in {each.member.id for each in simulated.members()}

    wait_for(gone, lambda: "token-3 to leave")
    assert simulated.pid("token-0-to-11") == pid
    assert simulated.state.services["token-0-to-11"].state is ServiceState.HEALTHY
    simulated.wait_until_idle()

    written = tmp_path / "replay.json"
    requests = tmp_path / "requests.csv"
    done = simulated.command("replay", str(journals), "--json", str(written), "--requests", str(requests))
    assert done.returncode == 0, done.stdout + done.stderr
    found = {each["member"]: each for each in json.loads(written.read_text())}
    assert set(found) >= {"gateway-0", "scheduler-0", "watcher-0", "token-3", "prompt-0"}
    assert {"planner-0", "gateway-0-kept"} <= set(found)
    assert len(found) == 29
    assert all(each["identical"] for each in found.values())
    assert found["scheduler-0"]["decision_us"]["SubmitRequest"]["count"] >= 30
    assert {"CancelRequest", "Drain"} <= set().union(*(each["decision_us"] for each in found.values()))
    lines = requests.read_text().splitlines()
    assert len(lines) > 30


def test_a_process_that_is_told_to_stop_drains_its_members(simulated: SimulatedMesh) -> None:
    """Each reports until when it stays, its streams lose nothing, and the process ends; this is the last test of its mesh."""
    pid = simulated.pid("token-0-to-11")
    there = {each.member.id for each in simulated.members() if each.member.pid == pid}
    reported: dict[str, float | None] = {}

    def stop() -> None:
        os.kill(pid, signal.SIGTERM)
        within_s = time.time() + GRACE_S

        def all_drain() -> bool:
            for each in simulated.members():
                if each.member_now.state is MemberState.DRAINING:
                    reported[each.member.id] = each.member_now.leaves_at_s
            return set(reported) == there

        wait_for(all_drain, lambda: f"{sorted(there)} to drain, not {sorted(reported)}")
        assert all(at is not None and within_s - 5 < at < within_s + 5 for at in reported.values())

    streams = simulated.streams(range(40), 1000, after_tokens=5, disturb=stop)
    assert {len(stream.tokens) for stream in streams} == {1000}
    assert simulated.losses(streams) == []

    def left() -> bool:
        return simulated.state.services["token-0-to-11"].state is ServiceState.LEFT

    wait_for(left, lambda: "the process to end", 10.0)


def test_a_killed_process_takes_its_members_and_comes_back_with_all(tmp_path: Path) -> None:
    """The supervisor restarts the process with all its members.

    A stream that ran there resumes on another with the same words.
    """
    with SimulatedMesh(tmp_path, "--prompt-workers", "4", "--token-workers", "4", "--mixed-workers", "2") as mesh:
        expected = asyncio.run(mesh.answers(6, 80))
        pid = mesh.pid("token-0-to-3")

        async def kill_meanwhile() -> list[str]:
            answers = asyncio.create_task(mesh.answers(6, 80))
            await asyncio.sleep(0.8)
            os.kill(pid, signal.SIGKILL)
            return await answers

        assert asyncio.run(kill_meanwhile()) == expected

        def back() -> bool:
            ids = {each.member.id for each in mesh.members() if each.serving}
            return ids >= {f"token-{number}" for number in range(4)} and mesh.pid("token-0-to-3") != pid

        wait_for(back, lambda: "the killed process to be back")
        mesh.wait_until_idle()


def test_real_bytes_travel_where_asked(tmp_path: Path) -> None:
    """Real KV bytes travel over UCX between two processes of simulated workers, with a given profile and speed."""
    profile = {
        "format": "spotwise-cost-profile/1",
        "name": "tiny",
        "iteration": {
            "kind": "linear",
            "fixed_s": 0.001,
            "prompt_token_s": 1e-5,
            "prompt_context_s": 0.0,
            "decode_s": 1e-4,
            "decode_context_s": 0.0,
        },
        "link": {"latency_s": 0.0, "bytes_per_s": 1e9},
        "kv_bytes_per_token": 4096,
        "kv_tokens": 4096,
    }
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile))
    with SimulatedMesh(tmp_path, "--simulated-kv", "real", "--profile", str(path), "--speed", "2") as mesh:
        answer = mesh.client().completions.create(model=MODEL, prompt=list(range(100, 140)), max_tokens=5)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 5
        stages = mesh.ledger(answer.id, "handed_off", "kv_received")
        assert stages["kv_received"]["kv_bytes"] == 3 * 16 * 4096
        assert "simulated" not in stages["kv_received"]["transport"]
        mesh.wait_until_idle()
        worker = next(each for each in mesh.members() if each.member.id == "token-0")
        assert worker.engine is not None
        assert worker.engine.engine == "simulated: tiny at 2x speed, real KV"


@pytest.mark.parametrize(
    ("workers", "when_full"), [((), "proactive"), (("0", "0", "1"), "reactive")], ids=["split", "mixed"]
)
def test_queues_swap_by_the_clock(tmp_path: Path, workers: tuple[str, ...], when_full: str) -> None:
    """With KV for a few of forty streams, sequences are swapped; the journals replay to the same commands."""
    journals = tmp_path / "journals"
    pools = zip(("--prompt-workers", "--token-workers", "--mixed-workers"), workers, strict=False)
    with SimulatedMesh(
        tmp_path,
        *(word for pool in pools for word in pool),
        *("--policy", "mlfq", "--kv-cache", "128MiB", "--kv-host", "2GiB", "--speed", "10"),
        env={
            "SPOTWISE_JOURNAL": str(journals),
            "SPOTWISE_WHEN_FULL": when_full,
            "SPOTWISE_MAX_NUM_SEQS": "6",
            "SPOTWISE_STARVE_LIMIT_MS": "200",
        },
    ) as mesh:
        assert len(asyncio.run(mesh.answers(40, 30))) == 40
        mesh.wait_until_idle()
        loads = {each.member.id: each.member_now.load for each in mesh.members()}
        load = loads["mixed-0" if workers else "token-0"]
        assert load is not None
        assert load.kv_blocks_swapped_out > 0 and load.kv_blocks_swapped_in > 0, loads
        done = mesh.command("replay", str(journals))
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_newcomer_is_not_sent_behind_a_long_prompt(tmp_path: Path) -> None:
    """A default mesh, as slow as a laptop: one word, a prompt of 7,000 tokens, and then one of 1,000, which
    the other worker computes; it ends while the long prompt is computed.
    """
    profile = {
        "format": "spotwise-cost-profile/1",
        "name": "slow",
        "iteration": {
            "kind": "linear",
            "fixed_s": 0.1,
            "prompt_token_s": 1e-3,
            "prompt_context_s": 0.0,
            "decode_s": 1e-3,
            "decode_context_s": 0.0,
        },
        "link": {"latency_s": 0.5, "bytes_per_s": 1e9},
        "kv_bytes_per_token": 4096,
        "kv_tokens": 16384,
    }
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile))
    options = ("--prompt-workers", "1", "--token-workers", "1", "--profile", str(path))

    async def case(mesh: SimulatedMesh) -> tuple[str, str, bool]:
        async with mesh.async_client() as client:

            async def ask(tokens: int) -> str:
                answer = await client.completions.create(model=MODEL, prompt=[*range(100, 100 + tokens)], max_tokens=4)
                return answer.id

            def computes() -> bool:
                loads = [each.member_now.load for each in mesh.members()]
                return any(load is not None and load.computing_prompt_tokens for load in loads)

            await ask(20)
            long = asyncio.create_task(ask(7000))
            await asyncio.to_thread(wait_for, computes, lambda: "a worker to compute the long prompt")
            newcomer = await ask(1000)
            is_first = not long.done()
            return newcomer, await long, is_first

    with SimulatedMesh(tmp_path, *options, env={"SPOTWISE_BREAK_EVEN": "true"}) as mesh:
        newcomer, long, is_first = asyncio.run(case(mesh))
        assert is_first
        placed = {id_: mesh.ledger(id_, "assigned")["assigned"] for id_ in (newcomer, long)}
        assert placed[newcomer]["prompt_worker"] != placed[long]["prompt_worker"]
        mesh.wait_until_idle()
