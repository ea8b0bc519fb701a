"""Serves one streamed chat by a mesh in one process, and prints the product's functions in the order in which it enters them.

Gateway, scheduler, a prompt worker and a token worker are the services' own, over a real broker, store and UCX. Run it with the
URLs of broker and store and a model's folder: `python -m tests.integration.traced_mesh nats://... redis://... FOLDER`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

from spotwise.cluster_scheduler.__main__ import serve as serve_scheduler
from spotwise.cluster_scheduler.settings import SchedulerSettings
from spotwise.core.messages.members import MemberKind, MemberState, Pool
from spotwise.gateway.__main__ import serve as serve_gateway
from spotwise.gateway.settings import GatewaySettings
from spotwise.mesh.embedded.servers import free_port
from spotwise.mesh.redis.store import RedisStore
from spotwise.worker.engine_thread import EngineThread
from spotwise.worker.serve import serve_worker
from spotwise.worker.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
PRODUCT = (f"{ROOT}/libs/spotwise/", f"{ROOT}/services/spotwise/")
PATIENCE_S = 300.0
SETTLED_S = 1.0


class Trace:
    """Records each function of the product when it is first entered, of all threads.

    Attributes:
        entered: path and qualified name, in order of entry.
    """

    def __init__(self) -> None:
        self.entered: dict[tuple[str, str], None] = {}
        threading.setprofile(self._profile)  # of the threads to come
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PRODUCT):
            self.entered.setdefault((code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname))


async def chat(client: httpx.AsyncClient, prompt: str, trace: Trace) -> dict[str, list[tuple[str, str]]]:
    """Stream one chat, and return what was entered until its first and until its last token."""
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": 8, "stream": True}
    trace.entered.clear()
    first: list[tuple[str, str]] = []
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not first and '"content":"' in line.replace('"content":""', "").replace(" ", ""):
                first = list(trace.entered)
    return {"first token": first, "last token": list(trace.entered)}


async def traced(nats_url: str, redis_url: str, model_dir: str) -> dict[str, list[tuple[str, str]]]:
    """Start the services, let them serve one chat, and trace a second one."""
    load_one_at_a_time()
    trace = Trace()  # before the services start their threads
    # Few heartbeats fall into the traced chat, and no limit runs out on a busy machine.
    common: dict[str, Any] = {"nats_url": nats_url, "redis_url": redis_url, "heartbeat_s": 1.0, "stuck_after_s": 0.0}
    common["member_timeout_s"] = PATIENCE_S
    model: dict[str, Any] = {"model_dir": Path(model_dir), "model_name": "m"}
    worker = (
        common | model | {"dtype": "float32", "threads": 1, "kv_cache_bytes": 64 << 20, "push_timeout_s": PATIENCE_S}
    )
    waits = {"max_unready_s": PATIENCE_S, "reservation_timeout_s": PATIENCE_S, "lease_s": PATIENCE_S}
    scheduler = common | waits | {"break_even": False, "scheduler_lease_s": 30.0}
    gateway = common | model | {"submit_timeout_s": PATIENCE_S, "store_timeout_s": PATIENCE_S}
    port = free_port()
    services = [
        serve_scheduler(SchedulerSettings(service_id="scheduler", **scheduler)),
        serve_worker(WorkerSettings(service_id="prompt", **worker), MemberKind.PROMPT_WORKER, Pool.PROMPT),
        serve_worker(WorkerSettings(service_id="token", **worker), MemberKind.TOKEN_WORKER, Pool.TOKEN),
        serve_gateway(GatewaySettings(service_id="gateway", port=port, **gateway)),
    ]
    tasks = [asyncio.create_task(service) for service in services]
    store = await RedisStore.connect(redis_url)
    async with asyncio.timeout(PATIENCE_S):
        while sum(member.state is MemberState.READY for member in await store.members()) < len(services):
            assert not any(task.done() for task in tasks), tasks
            await asyncio.sleep(0.1)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client:
        await chat(client, "Which rivers flow through Paris?", trace)
        await asyncio.sleep(SETTLED_S)
        return await chat(client, "What is the capital of France?", trace)


def load_one_at_a_time() -> None:
    """Two models at once in one process are more than transformers can load."""
    turn, load = asyncio.Lock(), EngineThread.load

    async def load_in_turn(*arguments: Any) -> EngineThread:
        async with turn:
            return await load(*arguments)

    setattr(EngineThread, "load", load_in_turn)  # noqa: B010


if __name__ == "__main__":
    found = asyncio.run(traced(*sys.argv[1:]))
    sys.stdout.write(f"\n{json.dumps(found)}\n")  # after what the services log
    sys.stdout.flush()
    os._exit(0)  # the services would wait for a stop signal
