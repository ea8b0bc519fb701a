"""A worker's role and a real engine: however memory is given, shared, taken and cut, greedy tokens are the same."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

import pytest

from spotwise.core import messages as m
from spotwise.core.batching import BatchLimits
from spotwise.core.kv_blocks import BlockPool
from spotwise.core.record import KvTarget, RequestRecord
from spotwise.core.worker import commands as c
from spotwise.core.worker.policy import Reserve, WorkerPolicy
from spotwise.core.worker.role import WorkerRole
from spotwise.engine.engine import Engine
from tests.unit.engine.tiny_models import VOCAB_SIZE, llama_config, load_engine, record, save_model

BLOCK_SIZE = 8
MAX_NEW = 24
HERE = KvTarget("w", 1, "w:1", ())
PLAIN = WorkerPolicy(BatchLimits(max_num_seqs=8), Reserve.MAX_TOKENS, prefix_caching=False)


class SoloWorker:
    """One worker for both phases: what its role orders, its engine does at once."""

    def __init__(self, engine: Engine, policy: WorkerPolicy, num_blocks: int) -> None:
        self.engine = engine
        self.pool = BlockPool(num_blocks, engine.block_size)
        self.role = WorkerRole("w", 1, "w:1", self.pool, policy)
        self.records: dict[str, RequestRecord] = {}
        self.tokens: dict[int, list[int]] = {}
        self.cached_tokens = 0
        self.waiting: deque[RequestRecord] = deque()
        self.events: deque[c.WorkerEvent] = deque()
        self.prefill_rows: list[tuple[int, int]] = []

    def serve(self, requests: list[RequestRecord]) -> list[list[int]]:
        """Run requests, in order, to their ends, one more with every event."""
        self.waiting.extend(requests)
        self.records = {request.request_id: request for request in requests}
        self.tokens = {request.stream_id: [] for request in requests}
        while self.waiting or self.events:
            if self.waiting:
                self.offer(self.waiting.popleft())
            if self.events:
                self.feed(self.events.popleft())
        assert self.pool.free_blocks == self.pool.num_blocks
        assert self.engine.num_sequences == 0
        return [self.tokens[request.stream_id] for request in requests]

    def offer(self, request: RequestRecord) -> None:
        stream, tokens = m.StreamRef("g", request.stream_id), len(request.prompt_token_ids)
        self.feed(m.StartPrefill(request.request_id, 1, stream, "s", 1, tokens, HERE, 1e9, MAX_NEW))

    def feed(self, event: c.WorkerEvent) -> None:
        for command in self.role.handle(event, 0.0):
            match command:
                case m.Send("g", m.TokenBatch(_, deltas)):
                    for delta in deltas:
                        assert delta.token_id is not None, delta.error
                        assert delta.token_index == len(self.tokens[delta.stream_id])
                        self.tokens[delta.stream_id].append(delta.token_id)
                        self.cached_tokens += delta.cached_tokens or 0
                case c.LoadRecord(request_id):
                    self.engine.add_sequence(self.records[request_id])
                    self.events.append(c.RecordLoaded(self.records[request_id]))
                case c.RunIteration(batch):
                    self.prefill_rows += [
                        (row.first_position, row.num_tokens) for row in batch.rows if not row.is_decode
                    ]
                    self.events.append(c.IterationFinished(self.engine.run_iteration(batch)))
                case c.DropSequence(sequence_id):
                    self.engine.drop_sequence(sequence_id)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = save_model(llama_config(), tmp_path_factory.mktemp("policies") / "llama")
    return load_engine(folder, block_size=BLOCK_SIZE)


@pytest.fixture(scope="module")
def requests() -> list[RequestRecord]:
    """Twenty-four prompts of up to 90 tokens; most begin like one of three others, some are the same."""
    rng = random.Random(5)
    beginnings = [[rng.randrange(VOCAB_SIZE) for _ in range(60)] for _ in range(3)]
    prompts = []
    for _ in range(24):
        shared = beginnings[rng.randrange(3)][: rng.choice([0, 8, 31, 48, 60])]
        prompts.append(shared + [rng.randrange(VOCAB_SIZE) for _ in range(rng.choice([0, 1, 30]) if shared else 30)])
    return [
        replace(record(f"r{number}", prompt, max_new_tokens=MAX_NEW), stream_id=number)
        for number, prompt in enumerate(prompts)
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
    """With room for everything, a good part of the prompts is found and not computed."""
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
