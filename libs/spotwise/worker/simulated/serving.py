"""Runs a process of simulated workers, and makes a member of the mesh that has a simulated engine a worker."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar

from spotwise.core.costs.cost_model import IterationCost
from spotwise.core.costs.cost_profile import CostProfile, at_speed
from spotwise.core.messages.members import MemberKind, Pool
from spotwise.mesh.links.ucx_transfer import TransferSettings, UcxKvTransport
from spotwise.mesh.ports.ports import HandoffHandler, KvTransport, MeshError
from spotwise.mesh.service.group import ServiceGroup
from spotwise.mesh.service.host import ServiceHost
from spotwise.worker.engine_watch import EngineWatch
from spotwise.worker.runtime import RuntimeView, WorkerRuntime
from spotwise.worker.simulated.engine import SimulatedEngine
from spotwise.worker.simulated.kv import NoKv, TimedKvTransport
from spotwise.worker.simulated.settings import SimulatedWorkerSettings

EngineT = TypeVar("EngineT", bound=SimulatedEngine)

#: The blank in byte-level and in sentencepiece tokenizers.
_WORD = re.compile(r"[Ġ▁][a-z]{2,12}")
#: Enough for varied text; a tokenizer's first tokens are the most frequent.
_MOST = 4096


def served_words(settings: SimulatedWorkerSettings) -> tuple[int, ...]:
    """Return the token ids to answer with; raises `MeshError` where the model has none."""
    try:
        return read_words(settings.model_dir)
    except ValueError as error:
        raise MeshError(f"the model's tokenizer cannot be read: {error}") from error


def simulated_engine(
    kind: type[EngineT],
    settings: SimulatedWorkerSettings,
    costs: CostProfile,
    words: tuple[int, ...],
    shape: str = "",
    cost: IterationCost | None = None,
) -> EngineT:
    """Return an engine of a kind, at the speed of the settings; `shape`: of its group, for people; `cost`: of its iterations,
    where it is not the profile's.
    """
    speed = "" if settings.speed == 1.0 else f" at {settings.speed:g}x speed"
    return kind(
        at_speed(costs.iteration, settings.speed) if cost is None else cost,
        words,
        settings.num_blocks(costs),
        settings.kv_block_size,
        costs.kv_bytes_per_token,
        f"{costs.name}{speed}{shape}, {settings.simulated_kv} KV",
        settings.num_host_blocks(costs),
        settings.host_link(costs),
        costs.measured,
    )


async def started_simulated_worker(
    settings: SimulatedWorkerSettings,
    costs: CostProfile,
    host: ServiceHost,
    engine: SimulatedEngine,
    view: RuntimeView,
    stack: contextlib.AsyncExitStack,
) -> WorkerRuntime:
    """Start the worker's role, which ends with the stack; the host reports READY once it serves. Raises `MeshError` where a KV
    listener cannot be opened.
    """
    runtime: WorkerRuntime | None = None
    host.introduce(numerics=settings.numerics)
    transport = _transport(
        settings,
        costs,
        host,
        lambda handoff, report: runtime.handoff_arrived(handoff, report) if runtime else None,
    )
    await transport.start()
    stack.push_async_callback(transport.close)
    host.introduce(transfer_address=transport.address)
    policy = settings.worker_policy(costs.context_parity, costs.iteration)
    watch = EngineWatch(host.watchdog, host.id, settings.iteration_timeout_s)
    runtime = WorkerRuntime(host, engine, transport, policy, watch)
    stack.callback(runtime.close)
    view.add(host.id, runtime)
    stack.callback(view.remove, host.id)
    await runtime.start()
    runtime.drain_on_stop(settings.stop_grace_s)
    return runtime


def _transport(
    settings: SimulatedWorkerSettings, costs: CostProfile, host: ServiceHost, on_handoff: HandoffHandler
) -> KvTransport:
    block_bytes = costs.kv_bytes_per_token * settings.kv_block_size
    incarnation = host.member.incarnation
    if settings.simulated_kv == "real":
        return UcxKvTransport(
            memory=NoKv(block_bytes),
            worker_id=host.id,
            incarnation=incarnation,
            on_handoff=on_handoff,
            settings=TransferSettings(
                host=settings.peer_host,
                push_timeout_s=settings.push_timeout_s,
                security=settings.link_security(),
                crossing=settings.crossing,
            ),
            numerics_class=host.member.numerics_class,
        )
    return TimedKvTransport(
        bus=host.bus,
        worker_id=host.id,
        incarnation=incarnation,
        on_handoff=on_handoff,
        link=settings.link(costs),
        block_bytes=block_bytes,
        push_timeout_s=settings.push_timeout_s,
    )


async def serve_simulated(settings: SimulatedWorkerSettings) -> None:
    """Join the mesh as every worker of the settings, and serve until a stop signal, or until all have been drained."""
    words = served_words(settings)
    pool = settings.pool or Pool.MIXED
    kind = MemberKind.PROMPT_WORKER if pool is Pool.PROMPT else MemberKind.TOKEN_WORKER
    costs = settings.costs()
    view = RuntimeView()

    @contextlib.asynccontextmanager
    async def worker(host: ServiceHost) -> AsyncIterator[None]:
        host.introduce(pool=pool, model=settings.served_name)
        engine = simulated_engine(SimulatedEngine, settings, costs, words)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(engine.close)
            await started_simulated_worker(settings, costs, host, engine, view, stack)
            yield

    async with ServiceGroup.open(settings, view) as group:
        await group.run(settings.member_ids, kind, worker)


def read_words(model_dir: Path) -> tuple[int, ...]:
    """Return the ids to sample from, ascending, at least one: words with a leading blank, from the served model's
    `tokenizer.json` and `config.json`. In any order they are readable text, and each streams at once. A tokenizer without such
    words gives all ids but special ones; raises `ValueError` for one without vocabulary.
    """
    try:
        tokenizer = json.loads((model_dir / "tokenizer.json").read_text(encoding="utf-8"))
        config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{model_dir} cannot be read: {error}") from error
    spelled = _vocabulary(tokenizer)
    size = (config.get("text_config") or config).get("vocab_size") or len(spelled)
    hidden = {token["id"] for token in tokenizer.get("added_tokens") or () if token.get("special")}
    usable = {piece: token_id for piece, token_id in spelled.items() if token_id < size and token_id not in hidden}
    words = sorted(token_id for piece, token_id in usable.items() if _WORD.fullmatch(piece))
    found = tuple((words or sorted(usable.values()))[:_MOST])
    if not found:
        raise ValueError(f"{model_dir / 'tokenizer.json'} has no tokens to answer with")
    return found


def _vocabulary(tokenizer: dict[str, Any]) -> dict[str, int]:
    vocabulary = (tokenizer.get("model") or {}).get("vocab") or {}
    if isinstance(vocabulary, dict):
        return {str(piece): int(token_id) for piece, token_id in vocabulary.items()}
    return {str(pair[0]): token_id for token_id, pair in enumerate(vocabulary)}
