"""Changes of a mesh of many simulated groups under streams: what they cost the planner, and what each stream sees.

An answer's tokens follow from its seed, so that each stream is compared with what it must be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from spotwise.benchmarks.moved_streams import (
    Stream,
    all_begun,
    completed_ledger,
    computed_again,
    moves_of,
    run_stream,
)
from spotwise.benchmarks.planner_load import PlannerLoad
from spotwise.benchmarks.process_usage import ProcessUsage
from spotwise.benchmarks.reshaped_streams import differences, order_reshape, until_reshaped
from spotwise.cli.bench.servers import MeshEndpoint
from spotwise.cli.client.gateway_client import GatewayClient
from spotwise.cli.drain import send_notice
from spotwise.cli.errors import CommandError
from spotwise.cli.mesh.running import running_state
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.requests.sampling import counter_uniform
from spotwise.mesh.redis.store import RedisStore
from spotwise.worker.simulated.serving import read_words

#: Workers under notice must have left so long after their deadline.
_LATE_S = 60.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Carried:
    """How a change was carried out.

    Attributes:
        stored_s: from the notice or the order until its plan was in the store.
        pause_s: pause of each request that moves, as the planner expected it.
        forming_s, predicted_forming_s: until new groups served; `None`: none were formed.
    """

    stored_s: float
    pause_s: float
    forming_s: float | None = None
    predicted_forming_s: float | None = None


@dataclass(frozen=True, slots=True)
class ScaledChange:
    """One change under streams.

    Attributes:
        load: load of the planner, from the notice or order until the change was over.
        gaps_s: the longest time without a token until then, of each stream that moved or was computed again; `usual_gap_s`:
            the median between tokens before, of all streams; `other_gaps_s`: the longest of those that stayed.
        pauses_s: pause of each move, by the ledger.
        recomputed: tokens computed again.
        lost: streams that failed; `wrong`: tokens that are not what they must be, lost and doubled ones among them.
    """

    name: str
    carried: Carried
    load: PlannerLoad
    gaps_s: tuple[float, ...]
    other_gaps_s: tuple[float, ...]
    usual_gap_s: float
    pauses_s: tuple[float, ...]
    recomputed: int
    lost: int
    wrong: int

    def as_dict(self) -> dict[str, object]:
        """Return it for JSON."""
        carried = {name: getattr(self.carried, name) for name in self.carried.__slots__}
        own = {name: getattr(self, name) for name in self.__slots__ if name not in ("carried", "load")}
        return own | carried | {"planner": self.load.as_dict()}


class ScaledMesh:
    """A mesh of simulated groups.

    Args:
        endpoint: URL of the mesh's API.
        metrics_url: URL of its planner's metrics.
        prompts: prompts of the streams of each change; each answer has `tokens` tokens.
        seed: seed of the first answer; each further one has its own.
    """

    def __init__(
        self, endpoint: MeshEndpoint, metrics_url: str, prompts: Sequence[list[int]], tokens: int, seed: int
    ) -> None:
        self._endpoint = endpoint
        self._metrics_url = metrics_url
        self._prompts = prompts
        self._tokens = tokens
        self._seed = seed
        state = running_state(endpoint.name)
        self._nats_url = state.nats_url
        self._words = read_words(Path(state.options.model_folder))

    async def rest(self, seconds: float) -> tuple[PlannerLoad, float]:
        """Return what the planner takes while nothing happens, and the processors that the whole mesh keeps busy."""
        before, usage = await self._load(), ProcessUsage.of_mesh(self._endpoint.name)
        await asyncio.sleep(seconds)
        load = (await self._load()).since(before)
        return load, sum(ProcessUsage.of_mesh(self._endpoint.name).cpu_since(usage).values()) / load.seconds

    async def noticed(self, name: str, count: int, left: ParallelConfig, notice_s: float) -> ScaledChange:
        """Give so many workers a notice at once. `left`: the configuration then, which the planner is asked about before."""
        _, expected = await order_reshape(self._nats_url, left, dry_run=True)

        async def notify(store: RedisStore) -> Carried:
            serving = [member.id for member in await store.members() if member.pool is not None]
            workers = serving[:: len(serving) // count][:count]
            began_s = time.perf_counter()
            await asyncio.gather(*(send_notice(self._nats_url, worker_id, notice_s) for worker_id in workers))
            stored_s = await self._until_planned(store, workers, notice_s) - began_s
            while await store.registered(workers):
                if time.perf_counter() - began_s > notice_s + _LATE_S:
                    raise CommandError(f"{', '.join(workers)} have not left {_LATE_S:g} s after their deadline")
                await asyncio.sleep(_POLL_S)
            return Carried(stored_s, expected.pause_s)

        return await self._changed(name, notify)

    async def _until_planned(self, store: RedisStore, workers: Sequence[str], notice_s: float) -> float:
        """Return when the stored plan said of all workers that they leave."""
        ends_s = time.perf_counter() + notice_s
        while time.perf_counter() < ends_s:
            plan = await store.get_plan()
            if plan is not None and {leave.worker_id for leave in plan.leaves} >= set(workers):
                return time.perf_counter()
            await asyncio.sleep(_POLL_S)
        raise CommandError(f"no plan has {', '.join(workers)} after {notice_s:g} s")

    async def reshaped(self, name: str, config: ParallelConfig) -> ScaledChange:
        """Order a re-shape."""

        async def order(store: RedisStore) -> Carried:
            began_s = time.perf_counter()
            change, prediction = await order_reshape(self._nats_url, config)
            stored_s = time.perf_counter() - began_s
            deployment = await until_reshaped(store, change, config)
            if not deployment.new_ids:
                return Carried(stored_s, prediction.pause_s)
            forming_s = (deployment.served_s or deployment.began_s) - deployment.began_s
            return Carried(stored_s, prediction.pause_s, forming_s, prediction.forming_s)

        return await self._changed(name, order)

    async def _changed(self, name: str, carry_out: Callable[[RedisStore], Awaitable[Carried]]) -> ScaledChange:
        """Carry out a change once all streams have begun, and read what became of them."""
        streams = [Stream(prompt, seed=self._seed + number) for number, prompt in enumerate(self._prompts)]
        async with GatewayClient(self._endpoint.url) as client, _store(self._endpoint) as store:
            tasks = [
                asyncio.create_task(run_stream(client, self._endpoint.model, stream, self._tokens))
                for stream in streams
            ]
            await all_begun(streams, tasks)
            before, began_s = await self._load(), time.perf_counter()
            carried = await carry_out(store)
            load, over_s = (await self._load()).since(before), time.perf_counter()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            ledgers = [await completed_ledger(store, stream.request_id) for stream in streams]
        moves = [moves_of(ledger) for ledger in ledgers]
        again = [computed_again(ledger) for ledger in ledgers]
        usual = sorted(stream.usual_gap_s(began_s) for stream in streams)
        gaps = [
            (stream.longest_gap_s(began_s, over_s), bool(moved or recomputed))
            for stream, moved, recomputed in zip(streams, moves, again, strict=True)
        ]
        return ScaledChange(
            name,
            carried,
            load,
            tuple(gap_s for gap_s, is_hit in gaps if is_hit),
            tuple(gap_s for gap_s, is_hit in gaps if not is_hit),
            usual[len(usual) // 2],
            tuple(facts["pause_s"] for of_stream in moves for facts in of_stream),
            sum(again),
            sum(isinstance(each, BaseException) for each in ended),
            sum(differences(stream.token_ids, self._expected(stream)) for stream in streams),
        )

    def _expected(self, stream: Stream) -> list[int]:
        assert stream.seed is not None
        words = self._words
        return [words[int(counter_uniform(stream.seed, index) * len(words))] for index in range(self._tokens)]

    async def _load(self) -> PlannerLoad:
        return await PlannerLoad.now(self._endpoint.name, self._metrics_url)


@asynccontextmanager
async def _store(endpoint: MeshEndpoint) -> AsyncIterator[RedisStore]:
    store = await RedisStore.connect(endpoint.redis_url)
    try:
        yield store
    finally:
        await store.close()
