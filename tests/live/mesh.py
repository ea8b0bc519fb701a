"""A real mesh under test: real processes, broker, store, UCX and model, started and stopped by the real command."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import httpx
import openai
import psutil

from spotwise.cli.drain import send_notice
from spotwise.cli.launch.supervision.run_state import RunState, read_state
from spotwise.cli.mesh.status_table import MemberStatus, gather_status
from spotwise.core.messages.mesh import LedgerEntry
from spotwise.core.planner.plan import PlannedDeployment
from spotwise.mesh.redis.store import RedisStore
from spotwise.wire.permissions import ADMIN
from tests.death_watch import death_watch

MODEL = "smollm2-135m-instruct"
#: Tests are about hand-offs unless configured otherwise: a mesh as idle as theirs would soon convert to serving in place.
SPLIT_ALWAYS = {"SPOTWISE_BREAK_EVEN": "false"}
#: A mesh whose only worker was killed serves again once its process has started, which takes as long as the machine is slow.
PATIENT = {"SPOTWISE_RECOVERY_S": "120"}
#: Beside other meshes on a slow machine, a worker may be silent for longer than the two seconds that a mesh usually waits: for
#: tests that no attempt is lost.
UNHURRIED = {"SPOTWISE_MEMBER_TIMEOUT_S": "6"}
#: /proc shows the environment of a process that is executed, and of none that is forked.
EXECUTED = {"SPOTWISE_FORK_SERVER": "0"}
#: Options of a mesh with one worker, which computes both phases.
ONE_MIXED = ("--prompt-workers", "0", "--token-workers", "0", "--mixed-workers", "1")


class LiveMesh:
    """One mesh, its clients, and what its members report."""

    def __init__(self, home: Path, *options: str, env: dict[str, str] | None = None) -> None:
        self.home = home
        self.options = options
        cache = os.environ.get("SPOTWISE_CACHE", str(Path.home() / ".cache" / "spotwise"))
        self.env = {**os.environ, "SPOTWISE_HOME": str(home), "SPOTWISE_CACHE": cache, "COLUMNS": "200"}
        self.env |= SPLIT_ALWAYS | PATIENT | (env or {})
        self._clients: list[openai.OpenAI] = []
        self._watching = contextlib.ExitStack()

    def command(self, *arguments: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run `spotwise ARGUMENTS` as a user would."""
        command = [sys.executable, "-m", "spotwise.cli", *arguments]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=timeout_s, check=False)

    def __enter__(self) -> Self:
        self._watching.enter_context(death_watch(self.home))
        try:
            self.up()
        except BaseException:  # what came up of it would load the machine under all that follows
            with self._watching:
                self.command("down")
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._watching:
            self.down()

    def up(self) -> None:
        """Start it; float32, so that tokens can be compared."""
        done = self.command(
            "up", "--detach", "--port", "0", "--dtype", "float32", "--kv-cache", "256MiB", *self.options
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def down(self) -> None:
        """Stop it; nothing is left of it."""
        while self._clients:
            self._clients.pop().close()
        done = self.command("down")
        assert done.returncode == 0, done.stdout + done.stderr
        wait_for(lambda: not self.processes(), lambda: f"no process, of {self.processes()}", 5.0)

    def log_ends(self, lines: int = 12, width: int = 200) -> str:
        """The last lines of each process's log, for the report of a failed test."""
        logs = sorted((self.home / "run" / "default" / "logs").glob("*.log"))
        ends = [(log.name, log.read_text(errors="replace").splitlines()[-lines:]) for log in logs]
        return "\n".join(f"{name}: {line[:width]}" for name, end in ends for line in end)

    def processes(self) -> list[str]:
        """Every process that was started with this mesh's SPOTWISE_HOME, whichever its parent is now."""
        found = []
        for process in psutil.process_iter():
            try:
                given = process.environ().get("SPOTWISE_HOME") == str(self.home)
                if given or Path(process.cwd()).is_relative_to(self.home):
                    found.append(f"{process.pid} {' '.join(process.cmdline())}")
            except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
                continue
        return found

    @property
    def state(self) -> RunState:
        """The state that the mesh's supervisor recorded."""
        state = read_state(self.home / "run" / "default" / "state.json")
        assert state is not None
        return state

    @property
    def admin_redis_url(self) -> str:
        """The URL of its embedded store for a user who may do everything there."""
        servers = self.state.servers
        assert servers is not None
        return servers.store.url_of(ADMIN)

    @property
    def url(self) -> str:
        """Base of its API, without `/v1`."""
        return self.state.options.url

    def drain(self, worker: str, seconds: float) -> None:
        """Drain like `spotwise drain`, without the second or two that a process takes to start, during which streams end."""
        asyncio.run(send_notice(self.state.nats_url, worker, seconds))

    def pid(self, service_id: str) -> int:
        """Process of a service."""
        process = self.state.services[service_id].process
        assert process is not None
        return process.pid

    def kill(self, service_id: str) -> None:
        """End a service as a machine's failure does."""
        os.kill(self.pid(service_id), signal.SIGKILL)

    def client(self, **options: Any) -> openai.OpenAI:
        """The real client; it must not hide errors by retrying."""
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60.0, **options)
        self._clients.append(
            client
        )  # left to the garbage collector, its socket may be found unclosed in any later test
        return client

    def async_client(self) -> openai.AsyncOpenAI:
        """The same for many requests at once."""
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120.0)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        """A raw request, for what the client would not send."""
        return httpx.post(f"{self.url}{path}", json=body, timeout=60.0, **options)

    def get(self, path: str) -> httpx.Response:
        """A raw GET."""
        return httpx.get(f"{self.url}{path}", timeout=10.0)

    def members(self) -> list[MemberStatus]:
        """Every member's current report."""
        return asyncio.run(gather_status(self.state.redis_url))

    def workers(self) -> set[str]:
        """Ids of the workers that serve now."""
        return {status.member.id for status in self.members() if status.engine is not None}

    def engine_sequences(self, worker: str) -> int:
        """Sequences that a worker's engine holds."""
        return sum(s.engine.engine_sequences for s in self.members() if s.member.id == worker and s.engine is not None)

    def planned(self) -> PlannedDeployment | None:
        """The deployment in the planner's plan; `None` before the first change."""

        async def read() -> PlannedDeployment | None:
            store = await RedisStore.connect(self.state.redis_url)
            try:
                plan = await store.get_plan()
            finally:
                await store.close()
            return None if plan is None else plan.deployment

        return asyncio.run(read())

    def shapes(self) -> dict[str, tuple[int, int]]:
        """P and M of each group that serves, by worker."""
        places = [status.member_now for status in self.members() if status.member_now.load is not None]
        return {member.id: (member.place.stages, member.place.shards) for member in places if member.place is not None}

    def ledger_entries(self, request_id: str) -> list[LedgerEntry]:
        """A request's ledger as it is now, in order of time."""

        async def read() -> list[LedgerEntry]:
            store = await RedisStore.connect(self.state.redis_url)
            try:
                return await store.get_ledger(request_id)
            finally:
                await store.close()

        return asyncio.run(read())

    def ledger(self, request_id: str, *stages: str) -> dict[str, dict[str, Any]]:
        """A request's ledger once it has these stages (by default all): facts by stage, the member among them."""
        awaited = set(stages or ("assigned", "prefilled", "decoded", "completed"))

        entries: list[LedgerEntry] = []

        def complete() -> bool:
            entries[:] = self.ledger_entries(request_id)
            return awaited <= {entry.stage for entry in entries}

        wait_for(complete, lambda: f"the ledger of {request_id}: {[entry.stage for entry in entries]}")
        return {entry.stage: {**dict(entry.facts), "member": entry.member_id} for entry in entries}

    def wait_until_idle(self) -> None:
        """Wait until no worker holds a block, a reservation or a sequence; fail with what one still holds."""
        held: list[str] = []

        def idle() -> bool:
            held.clear()
            for status in self.members():
                engine, load = status.engine, status.member_now.load
                if engine is None or load is None:
                    continue
                counts = (
                    load.waiting,
                    load.waiting_for_kv,
                    load.running,
                    load.preempted,
                    load.migrating,
                    load.remaining_tokens,
                    load.kv_blocks_used,
                    load.kv_host_blocks_total - load.kv_host_blocks_free,
                    load.swapped,
                )
                if any(counts) or load.kv_blocks_free != load.kv_blocks_total or engine.engine_sequences:
                    held.append(f"{status.member.id}: {load}, {engine.engine_sequences} in the engine")
            return not held

        wait_for(idle, lambda: f"idle workers: {held}", 20.0)


def wait_for(condition: Callable[[], bool], what: Callable[[], str], seconds: float = 40.0) -> None:
    """Poll until `condition` holds; fail with what was waited for."""
    deadline_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline_s, f"waited {seconds:g} s in vain for {what()}"
        time.sleep(0.05)
