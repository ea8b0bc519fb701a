"""A mesh that buys its instances, its file, its trace, and a load on it whose every token is compared."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from spotwise.cli.errors import CommandError
from spotwise.cli.fleet import ask_fleet
from spotwise.cli.launch import fleet_options
from spotwise.cloud.local_meshes import mesh_start
from spotwise.core.messages.fleet import FleetInstance, FleetView, InstanceState
from tests.live.mesh import LiveMesh, wait_for
from tests.live.oracle import greedy, mixed_prompts
from tests.live.streams import stream

NEW_TOKENS = 24
PROMPTS = mixed_prompts(4, 60)
#: Longer than an instance takes to start on a busy machine.
STARTS_S = 90.0
_SENT_EVERY_S = 1.0
_FLEET = """provider = "local"
grace_s = 5
[local]
limit = 4
[[types]]
name = "device"
profile = "device.json"
start_s = 20
spot = {{price_per_h = {spot}, most = 3}}
on_demand = {{price_per_h = {on_demand}, most = 2}}
"""


def slow_profile() -> dict[str, Any]:
    """The profile of a device that serves 0.9 requests of `NEW_TOKENS` a second, and a batch no faster."""
    measured = Path(fleet_options.__file__).parent / "local_fleet" / "device.json"
    profile: dict[str, Any] = json.loads(measured.read_text())
    profile["kv_tokens"] = 1024
    profile["iteration"] |= {
        "prompt": {"at": [1.0, 512.0], "seconds": [0.001, 0.5]},
        "decode": {"at": [1.0, 2.0, 8.0], "seconds": [0.045, 0.09, 0.36]},
        "prompt_context_s": 0.0,
        "decode_context_s": 0.0,
    }
    return profile


class MarketMesh(LiveMesh):
    """A mesh whose instances are processes of this machine, three nodes' spot ones and two on demand."""

    def __init__(self, home: Path, *options: str, env: dict[str, str] | None = None) -> None:
        self.file, self.trace = home / "fleet.toml", home / "trace.csv"
        super().__init__(home, "--fleet", str(self.file), "--trace", str(self.trace), *options, env=env)
        (home / "device.json").write_text(json.dumps(slow_profile()))
        self.set_prices(spot=0.4, on_demand=0.9)
        self._removals: list[tuple[float, str, float]] = []
        self._write_trace()

    def set_prices(self, *, spot: float, on_demand: float) -> None:
        """Write the fleet file, dollars an hour."""
        draft = self.file.with_suffix(".draft")
        draft.write_text(_FLEET.format(spot=spot, on_demand=on_demand))
        draft.replace(self.file)

    def take_in(self, node: int, seconds: float, notice_s: float) -> None:
        """Let the trace take a node; the watcher reads it at its next start."""
        started_s = mesh_start(self.home / "run" / "default" / "instances", "default", time.time())
        self._removals.append((time.time() - started_s + seconds, f"node-{node}", notice_s))
        self._write_trace()

    def _write_trace(self) -> None:
        lines = [f"0,add,node-{number}" for number in (1, 2, 3)]
        lines += [
            f"{at_s * 1e3:.0f},remove,{node},{notice_s * 1e3:.0f}" for at_s, node, notice_s in sorted(self._removals)
        ]
        self.trace.write_text("\n".join(lines) + "\n")

    def view(self) -> FleetView | None:
        """What the planner answers; `None` where none does now."""
        try:
            return asyncio.run(ask_fleet(self.state.nats_url))
        except CommandError:
            return None

    def instances(self) -> dict[str, FleetInstance]:
        """All instances of the last report, gone ones as well."""
        view = self.view()
        return {} if view is None or view.report is None else {each.id: each for each in view.report.instances}

    def staying(self) -> dict[str, FleetInstance]:
        """Those that are there and are to stay."""
        return {
            id_: each
            for id_, each in self.instances().items()
            if each.leaves_at_s is None and each.state in (InstanceState.STARTING, InstanceState.RUNNING)
        }

    def wait_for_view(self, condition: Callable[[FleetView], bool], what: str, seconds: float = STARTS_S) -> FleetView:
        """Wait until the planner's view is so; return it."""
        last: list[FleetView | None] = [None]

        def holds() -> bool:
            last[0] = self.view()
            return last[0] is not None and last[0].report is not None and condition(last[0])

        wait_for(holds, lambda: f"{what}; last: {last[0]}", seconds)
        assert last[0] is not None
        return last[0]

    def kill_service(self, service_id: str) -> None:
        """End a service as a machine's failure does, and wait until its supervisor has another one."""
        before = self.pid(service_id)
        os.kill(before, signal.SIGKILL)

        def is_back() -> bool:
            process = self.state.services[service_id].process
            return process is not None and process.pid != before

        wait_for(is_back, lambda: f"another {service_id}")


class SteadyLoad:
    """Greedy requests, one a second; each is compared with what transformers gives."""

    def __init__(self, mesh: LiveMesh) -> None:
        self._mesh = mesh
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self.served = 0

    def __enter__(self) -> Self:
        self._done = self._pool.submit(lambda: asyncio.run(self._run()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._pool.shutdown()

    def stop(self) -> None:
        """Send no more; raises what was wrong with any request."""
        self._stopping.set()
        self._done.result()

    async def _run(self) -> None:
        async with self._mesh.async_client() as client, asyncio.TaskGroup() as requests:
            number = 0
            while not self._stopping.is_set():
                requests.create_task(self._request(client, PROMPTS[number % len(PROMPTS)]))
                number += 1
                await asyncio.sleep(_SENT_EVERY_S)

    async def _request(self, client: Any, prompt: tuple[int, ...]) -> None:
        request_id, tokens = await stream(client, prompt, NEW_TOKENS, lambda _: None)
        assert tokens == greedy(prompt, NEW_TOKENS), request_id
        self.served += 1
