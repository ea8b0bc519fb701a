"""One run of a mesh whose instances a trace takes and gives, under a load: what clients saw, and what the fleet did."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from spotwise.benchmarks.moved_streams import Stream, completed_ledger, moves_of, run_stream
from spotwise.cli.bench.servers import MeshEndpoint
from spotwise.cli.client.gateway_client import GatewayClient
from spotwise.cli.errors import CommandError
from spotwise.cli.fleet import ask_fleet
from spotwise.cli.launch.run_folder import run_folder
from spotwise.cli.mesh.running import running_state
from spotwise.cloud.traced_instances import TRACED_NOTICE
from spotwise.core.messages.fleet import FleetReported, InstanceState
from spotwise.core.planner.change_cost import STORAGE_BYTES_PER_S
from spotwise.core.planner.plan import PlannedDeployment, ReshapeStage
from spotwise.mesh.redis.store import RedisStore

_SAMPLE_S = 0.5
#: Of all requests: the words of a simulated engine follow from it.
SEED = 1
#: Of the request that waits for a mesh's first instance, of the first prompt.
FIRST_TOKENS = 4


@dataclass(frozen=True, slots=True)
class SpotRequest:
    """A request of a load: `at_s` from its beginning, which of the prompts, and how many tokens it asks for."""

    at_s: float
    prompt: int
    tokens: int


@dataclass(slots=True)
class SpotAnswer:
    """What a client saw, and what the ledger has of its request; times are seconds from the load's beginning.

    Attributes:
        failure: why it got no whole answer; empty: it got one.
        gap_s: the longest time without a token after the first.
        recomputed: (time, tokens) of each attempt that computed tokens again.
        move_s: longest pause of its moves; `kv_bytes`: of all of them.
    """

    request: SpotRequest
    ended_s: float = 0.0
    failure: str = ""
    token_ids: list[int] = field(default_factory=list)
    gap_s: float = 0.0
    recomputed: list[tuple[float, int]] = field(default_factory=list)
    moves: int = 0
    move_s: float = 0.0
    kv_bytes: int = 0

    @property
    def latency_s(self) -> float:
        """From the request's time to its whole answer."""
        return self.ended_s - self.request.at_s


@dataclass(frozen=True, slots=True)
class FleetSample:
    """The fleet at a time: instances that run, the shapes that serve and that are chosen (empty: none), open requests."""

    at_s: float
    instances: int
    serving: str
    chosen: str
    open_requests: int
    spent: float


@dataclass(frozen=True, slots=True)
class LostInstance:
    """An instance that the cloud took at a time, so many seconds after its notice; 0: without. `left`: those that ran on."""

    at_s: float
    instance_id: str
    notice_s: float
    left: int = 1


@dataclass(slots=True)
class SpotRunResult:
    """One system's run.

    Attributes:
        first_s, trace_s: seconds of the mesh since its trace began: when its first request was sent, and the load began.
        starting_s: from an instance's purchase until it runs, median.
        forming_s: until new groups had their weights, median of the re-shapes.
        joining_s: the same without what their weights take at the planner's rate, shortest of the re-shapes.
        changes, abandoned: re-shapes, by their end; `weights_bytes`: that devices of new groups got.
    """

    system: str
    seconds: float = 0.0
    answers: list[SpotAnswer] = field(default_factory=list)
    samples: list[FleetSample] = field(default_factory=list)
    losses: list[LostInstance] = field(default_factory=list)
    first_s: float = 0.0
    trace_s: float = 0.0
    starting_s: float = 0.0
    forming_s: float = 0.0
    joining_s: float = 0.0
    changes: int = 0
    abandoned: int = 0
    weights_bytes: int = 0

    @property
    def spent(self) -> float:
        """Dollars, from the load's beginning to its last answer."""
        return self.samples[-1].spent - self.samples[0].spent if self.samples else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        fields = asdict(self)
        for answer in fields["answers"]:
            answer["token_ids"] = len(answer["token_ids"])
        return {**fields, "spent": self.spent}


async def run_load(
    endpoint: MeshEndpoint,
    system: str,
    load: Sequence[SpotRequest],
    prompts: Sequence[list[int]],
    answered: Callable[[], object],
) -> SpotRunResult:
    """Send a load to a mesh that serves, each request at its time, and watch its fleet until the last answer.

    Raises:
        CommandError: the mesh has no fleet.
    """
    result = SpotRunResult(system)
    watch = _FleetWatch(endpoint, result)
    store = await RedisStore.connect(endpoint.redis_url)
    try:
        async with GatewayClient(endpoint.url) as client:
            began_s = time.perf_counter()
            watching = asyncio.create_task(watch.run(began_s, store))
            sent = (_send(client, endpoint.model, each, prompts, began_s, watch, answered) for each in load)
            streams = await asyncio.gather(*sent)
            result.seconds = time.perf_counter() - began_s
            watch.ends = True
            await watching
        for answer, stream in streams:
            result.answers.append(answer)
            await _look_up(store, answer, stream, watch.began_unix_s)
    finally:
        await store.close()
    return result


async def _send(
    client: GatewayClient,
    model: str,
    request: SpotRequest,
    prompts: Sequence[list[int]],
    began_s: float,
    watch: _FleetWatch,
    answered: Callable[[], object],
) -> tuple[SpotAnswer, Stream]:
    await asyncio.sleep(max(0.0, began_s + request.at_s - time.perf_counter()))
    answer, stream = SpotAnswer(request), Stream(prompts[request.prompt], seed=SEED)
    watch.open_requests += 1
    try:
        await run_stream(client, model, stream, request.tokens)
    except CommandError as error:
        answer.failure = str(error)
    watch.open_requests -= 1
    answer.ended_s = time.perf_counter() - began_s
    answer.token_ids = stream.token_ids
    answer.gap_s = stream.longest_gap_s(0.0) if stream.arrivals else 0.0
    answered()
    return answer, stream


async def _look_up(store: RedisStore, answer: SpotAnswer, stream: Stream, began_unix_s: float) -> None:
    if not stream.request_id:
        return
    ledger = await completed_ledger(store, stream.request_id)
    for entry in ledger:
        if entry.stage == "prefilled" and entry.epoch > 1:
            facts = dict(entry.facts)
            tokens = int(facts["prompt_tokens"]) - int(facts["cached_tokens"])
            answer.recomputed.append((entry.at_s - began_unix_s, tokens))
    for facts in moves_of(ledger):
        answer.moves += 1
        answer.kv_bytes += int(facts["kv_bytes"])
        answer.move_s = max(answer.move_s, float(facts["pause_s"]))


class _FleetWatch:
    """Samples a mesh's fleet and its plans."""

    def __init__(self, endpoint: MeshEndpoint, result: SpotRunResult) -> None:
        self._name = endpoint.name
        self._nats_url = running_state(endpoint.name).nats_url
        self._result = result
        self._deployments: dict[int, PlannedDeployment] = {}
        self._noticed_s: dict[str, float] = {}
        self._here: set[str] = set()
        self._starts_s: dict[str, float] = {}
        self.open_requests = 0
        self.began_unix_s = 0.0
        self.ends = False

    async def run(self, began_s: float, store: RedisStore) -> None:
        """Watch until `ends`; one sample more is taken then."""
        self.began_unix_s = time.time() - (time.perf_counter() - began_s)
        self._result.trace_s = self.began_unix_s - trace_start(self._name)
        is_last = False
        while not is_last:
            is_last = self.ends
            with contextlib.suppress(CommandError):  # a planner that is away answers the next time
                await self._sample(time.perf_counter() - began_s, store)
            await asyncio.sleep(_SAMPLE_S)
        ended = [each.stage for each in self._deployments.values()]
        formed = [each for each in self._deployments.values() if each.new_ids and each.served_s]
        self._result.starting_s = statistics.median(self._starts_s.values() or [0.0])
        self._result.forming_s = statistics.median([_forming_s(each) for each in formed] or [0.0])
        self._result.joining_s = max(0.0, min((_forming_s(each) - _weights_s(each) for each in formed), default=0.0))
        self._result.changes = ended.count(ReshapeStage.DONE)
        self._result.abandoned = ended.count(ReshapeStage.ABANDONED)
        self._result.weights_bytes = sum(each.fetched_bytes + each.read_bytes for each in self._deployments.values())

    async def _sample(self, at_s: float, store: RedisStore) -> None:
        view = await ask_fleet(self._nats_url)
        if view.report is None:
            raise CommandError(view.why)
        plan = await store.get_plan()
        if plan is not None and plan.deployment is not None:
            self._deployments[plan.deployment.change] = plan.deployment
        self._note_losses(view.report, at_s)
        running = sum(each.state is InstanceState.RUNNING for each in view.report.instances)
        sample = FleetSample(at_s, running, view.serving, view.config, self.open_requests, view.report.spent)
        self._result.samples.append(sample)

    def _note_losses(self, report: FleetReported, at_s: float) -> None:
        left = sum(each.state is InstanceState.RUNNING for each in report.instances)
        for each in report.instances:
            if each.state is InstanceState.RUNNING:
                self._starts_s.setdefault(each.id, report.at_s - each.launched_s)
            if each.state is not InstanceState.GONE:
                self._here.add(each.id)
                if each.leaves_at_s is not None and each.id not in self._noticed_s:
                    self._noticed_s[each.id] = each.leaves_at_s - report.at_s
            elif each.id in self._here:
                self._here.remove(each.id)
                if each.why_leaving and not each.why_leaving.startswith(TRACED_NOTICE):
                    continue  # given back
                notice_s = max(0.0, self._noticed_s.get(each.id, 0.0))
                self._result.losses.append(LostInstance(at_s, each.id, notice_s, left))


def trace_start(mesh: str) -> float:
    """Return the Unix time at which a mesh's trace began."""
    (started,) = run_folder(mesh).path.glob("instances/*.started")
    return float(started.read_text())


def _forming_s(deployment: PlannedDeployment) -> float:
    return (deployment.served_s or 0.0) - deployment.began_s


def _weights_s(deployment: PlannedDeployment) -> float:
    """Return what the weights of new groups' devices take, if they come side by side."""
    devices = sum(len(each.device_ids) for each in deployment.groups if each.worker_id in deployment.new_ids)
    return (deployment.fetched_bytes + deployment.read_bytes) / max(1, devices) / STORAGE_BYTES_PER_S
