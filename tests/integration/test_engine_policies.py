"""A worker's role and a real engine: however memory is given, shared, taken and cut, greedy tokens are the same."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.costs.cost_model import LinearIterationCost
from spotwise.core.kv.blocks import BlockPool
from spotwise.core.kv.swap import SwapPolicy, WhenFull
from spotwise.core.messages import mesh as m
from spotwise.core.requests.prefixes import prefix_salt
from spotwise.core.requests.record import KvTarget, RequestRecord
from spotwise.core.worker import commands as c
from spotwise.core.worker.policy import Reserve, Scheduling, WorkerPolicy
from spotwise.core.worker.role import WorkerRole
from spotwise.core.worker.scheduling.chunked_prefill import ALONE_TOKENS
from spotwise.core.worker.scheduling.policies import queues_for
from spotwise.engine.engine import Engine
from spotwise.engine.kv.host_swap import HostSwap
from spotwise.engine.model.loading import EngineConfig
from tests.adapters import base_model, save_adapter
from tests.unit.engine.tiny_models import VOCAB_SIZE, llama_config, record, save_model

BLOCK_SIZE = 8
MAX_NEW = 24
HERE = KvTarget("w", 1, "w:1", ())
PLAIN = WorkerPolicy(BatchLimits(max_num_seqs=8), Reserve.MAX_TOKENS, prefix_caching=False)


class SoloWorker:
    """One worker for both phases: what its role orders, its engine does at once, and moves of KV end some events later.

    Attributes:
        stages: of each request's ledger, in order.
    """

    def __init__(self, engine: Engine, policy: WorkerPolicy, num_blocks: int, host_blocks: int = 0) -> None:
        self.engine = engine
        self.pool = BlockPool(num_blocks, engine.block_size)
        self.host = BlockPool(host_blocks, engine.block_size) if host_blocks else None
        self.swap = HostSwap(engine.kv, max(1, host_blocks))
        self.role = WorkerRole("w", 1, "w:1", self.pool, policy, self.host)
        self.stages: dict[str, list[str]] = {}
        self.moves: deque[tuple[int, Callable[[], None], c.Swapped]] = deque()
        self.now = 0.0
        self.fed = 0
        self.rng = random.Random(3)
        self.records: dict[str, RequestRecord] = {}
        self.tokens: dict[int, list[int]] = {}
        self.cached_tokens = 0
        self.waiting: deque[RequestRecord] = deque()
        self.events: deque[c.WorkerEvent] = deque()
        self.prefill_rows: list[tuple[int, int]] = []

    def serve(self, requests: list[RequestRecord]) -> list[list[int]]:
        """Run requests, in order, to their ends, one more with every event."""
        self.waiting.extend(requests)
        self.records = {request.choice_id: request for request in requests}
        self.tokens = {request.attempt_id: [] for request in requests}
        while self.waiting or self.events or self.moves:
            if self.waiting:
                self.offer(self.waiting.popleft())
            if self.events:
                self.feed(self.events.popleft())
            if self.moves and (self.moves[0][0] <= self.fed or not self.events):
                _, copy, ended = self.moves.popleft()
                copy()
                self.feed(ended)
        assert self.pool.free_blocks == self.pool.num_blocks
        assert self.host is None or self.host.free_blocks == self.host.num_blocks
        assert self.engine.num_sequences == 0
        return [self.tokens[request.attempt_id] for request in requests]

    def offer(self, request: RequestRecord) -> None:
        stream, tokens = m.StreamRef("g", request.attempt_id), len(request.prompt_token_ids)
        self.feed(m.StartPrefill(request.choice_id, 1, stream, "s", 1, tokens, HERE, 1e9, MAX_NEW))

    def move(self, sequence_id: str, copy: Callable[[], None]) -> None:
        """Copy now, or when the move ends: until then no iteration may write what is read, or read what is written."""
        if self.rng.random() < 0.5:
            copy()
            copy = _nothing
        self.moves.append((self.fed + self.rng.randint(0, 4), copy, c.Swapped(sequence_id)))

    def feed(self, event: c.WorkerEvent) -> None:
        self.now, self.fed = self.now + 0.01, self.fed + 1
        for command in self.role.handle(event, self.now):
            match command:
                case m.RecordLedger(entry):
                    self.stages.setdefault(entry.choice_id, []).append(entry.stage)
                case c.SwapOut(sequence_id, there, here):
                    self.move(sequence_id, partial(self.swap.swap_out, there, here))
                case c.SwapIn(sequence_id, there, here):
                    self.move(sequence_id, partial(self.swap.swap_in, there, here))
                case m.Send("g", m.TokenBatch(_, deltas)):
                    for delta in deltas:
                        assert delta.token_id is not None, delta.error
                        assert delta.token_index == len(self.tokens[delta.attempt_id])
                        self.tokens[delta.attempt_id].append(delta.token_id)
                        self.cached_tokens += delta.cached_tokens or 0
                case c.LoadRecord(choice_id):
                    self.engine.add_sequence(self.records[choice_id])
                    self.events.append(c.RecordLoaded(self.records[choice_id]))
                case c.RunIteration(batch):
                    self.prefill_rows += [
                        (row.first_position, row.num_tokens) for row in batch.rows if not row.is_decode
                    ]
                    self.events.append(c.IterationFinished(self.engine.run_iteration(batch)))
                case c.DropSequence(sequence_id):
                    self.engine.drop_sequence(sequence_id)


def _nothing() -> None:
    pass


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = save_model(llama_config(), tmp_path_factory.mktemp("policies") / "llama")
    adapter = save_adapter(folder.parent / "adapter", base_model(folder), seed=1)
    config = EngineConfig(folder, "float32", "cpu", 4 << 20, BLOCK_SIZE, threads=1, adapters=(("adapter", adapter),))
    return Engine.load(config)


@pytest.fixture(scope="module")
def requests(engine: Engine) -> list[RequestRecord]:
    """Twenty-four prompts of up to 90 tokens; most begin like one of three others, some are the same. One in four has an
    adapter.
    """
    (adapter,) = engine.adapters
    rng = random.Random(5)
    beginnings = [[rng.randrange(VOCAB_SIZE) for _ in range(60)] for _ in range(3)]
    prompts = []
    for _ in range(24):
        shared = beginnings[rng.randrange(3)][: rng.choice([0, 8, 31, 48, 60])]
        prompts.append(shared + [rng.randrange(VOCAB_SIZE) for _ in range(rng.choice([0, 1, 30]) if shared else 30)])
    plain = [
        replace(record(f"r{number}", prompt, max_new_tokens=MAX_NEW), attempt_id=number)
        for number, prompt in enumerate(prompts)
    ]
    return [
        replace(each, adapter=adapter, prefix_salt=prefix_salt("", "", adapter)) if each.attempt_id % 4 == 3 else each
        for each in plain
    ]


@pytest.fixture(scope="module")
def expected(engine: Engine, requests: list[RequestRecord]) -> list[list[int]]:
    """Memory for everyone, nothing shared, nothing cut."""
    tokens = SoloWorker(engine, PLAIN, 256).serve(requests)
    assert all(len(set(answer)) > MAX_NEW // 3 for answer in tokens), "the tiny model repeats itself: it proves little"
    return tokens


def limits(max_num_batched_tokens: int | None = None) -> BatchLimits:
    return BatchLimits(max_num_seqs=8, max_num_batched_tokens=max_num_batched_tokens)


def test_reused_prefixes_change_no_token(
    engine: Engine, requests: list[RequestRecord], expected: list[list[int]]
) -> None:
    """With memory for everything, a good part of the prompts is found in the cache and not computed."""
    worker = SoloWorker(engine, WorkerPolicy(limits()), 256)
    assert worker.serve(requests) == expected
    assert worker.cached_tokens > 200
    assert worker.role.load().preemptions == 0


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_preemption_and_eviction_change_no_token(
    engine: Engine, requests: list[RequestRecord], expected: list[list[int]], prefix_caching: bool
) -> None:
    """In a cache that holds three of them, sequences lose their blocks, and cached ones are given away."""
    worker = SoloWorker(engine, WorkerPolicy(limits(), watermark=0.0, prefix_caching=prefix_caching), 40)
    assert worker.serve(requests) == expected
    assert worker.role.load().preemptions > 3
    assert (worker.cached_tokens > 0) == prefix_caching


def test_prompts_in_parts_change_no_token(
    engine: Engine, requests: list[RequestRecord], expected: list[list[int]]
) -> None:
    """Parts of at most 13 tokens, with reuse and in little memory."""
    worker = SoloWorker(engine, WorkerPolicy(limits(13), watermark=0.0), 40)
    assert worker.serve(requests) == expected
    assert max(tokens for _, tokens in worker.prefill_rows) <= 13
    assert any(first > 0 for first, _ in worker.prefill_rows)


@pytest.mark.parametrize("max_stall_s", [None, 1e-6], ids=["by the cap", "by time"])
def test_prompts_cut_alone_change_no_token(engine: Engine, max_stall_s: float | None) -> None:
    """One request at a time, so that nothing is beside a prompt, of lengths around the cuts; each chunk but the last is full.
    What `generate` gives for whole prompts is the same, token by token.
    """
    cap = 64 if max_stall_s is None else 2048
    policy = WorkerPolicy(
        BatchLimits(8, cap, cuts_prompts=True), Reserve.MAX_TOKENS, prefix_caching=False, max_stall_s=max_stall_s
    )
    part = cap if max_stall_s is None else ALONE_TOKENS
    rng = random.Random(7)
    for number, tokens in enumerate((part, part + 2, 450)):
        prompt = [rng.randrange(VOCAB_SIZE) for _ in range(tokens)]
        request = replace(record(f"r{number}", prompt, max_new_tokens=MAX_NEW), attempt_id=number)
        worker = SoloWorker(engine, policy, 256)
        assert worker.serve([request]) == SoloWorker(engine, PLAIN, 256).serve([request])
        starts = [*range(0, tokens, part)]
        assert worker.prefill_rows == [(start, min(part, tokens - start)) for start in starts]


#: An iteration lasts an event or two of the worker above, which are 10 ms apart.
COST = LinearIterationCost(0.01, 5e-4, 0.0, 1e-3, 0.0)


@pytest.mark.parametrize(
    ("max_num_batched_tokens", "prefix_caching"), [(None, False), (13, True)], ids=["whole", "in shared parts"]
)
@pytest.mark.parametrize("when_full", WhenFull)
@pytest.mark.parametrize("scheduling", [Scheduling.PRIORITY, Scheduling.MLFQ])
def test_whoever_comes_first_and_wherever_kv_goes_no_token_changes(
    engine: Engine,
    requests: list[RequestRecord],
    expected: list[list[int]],
    scheduling: Scheduling,
    when_full: WhenFull,
    max_num_batched_tokens: int | None,
    prefix_caching: bool,
) -> None:
    """In a cache for two of the sequences, with moves that end some iterations later, the tokens are the same."""
    policy = WorkerPolicy(
        BatchLimits(max_num_seqs=4, max_num_batched_tokens=max_num_batched_tokens),
        watermark=0.0,
        prefix_caching=prefix_caching,
        scheduling=scheduling,
        mlfq=queues_for(COST, starve_limit_s=0.3),
        cost=COST,
        swap=SwapPolicy(when_full, spare_slots=1, burst_queues=1),
    )
    worker = SoloWorker(engine, policy, 24, host_blocks=300)
    if scheduling is Scheduling.PRIORITY:
        requests = [replace(each, priority=(0, 5, 0, -1, 0)[each.attempt_id % 5]) for each in requests]
    assert worker.serve(requests) == expected
    swapped = [stages.count("swapped_out") for stages in worker.stages.values()]
    load = worker.role.load()
    assert (sum(swapped) > 0) == (load.kv_blocks_swapped_in > 0) == when_full.swaps
    assert (load.preemptions == 0) == when_full.swaps
    if scheduling is Scheduling.MLFQ and when_full.swaps:
        assert min(swapped) >= 10
