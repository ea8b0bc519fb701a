"""An engine that adds numbers: its next token follows from the KV bytes of all tokens before it."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spotwise.core.costs.batching import Batch
from spotwise.core.requests.names import AdapterRef
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.sampling import SampledToken, TokenLogprobs
from spotwise.engine.model.attention_interface import LayersWritten
from spotwise.mesh.ports.weights import WholeKv
from tests.contracts.waiting import PATIENCE_S

LAYERS, BLOCKS, BLOCK_SIZE = 2, 32, 4


def next_token(tokens: list[int]) -> int:
    """The token that this engine puts after these, from the KV of all of them."""
    return sum((position + 1) * (token % 256) for position, token in enumerate(tokens)) % 251


def expected_tokens(prompt: tuple[int, ...], count: int) -> list[int]:
    """The tokens that one worker alone would generate after a prompt."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class ByteKv(WholeKv):
    """Paged KV of one byte a token and layer: the token's id."""

    num_layers = LAYERS
    layer_block_bytes = BLOCK_SIZE
    layout = "a byte a token"

    def __init__(self) -> None:
        self.cells = np.zeros((LAYERS, BLOCKS, BLOCK_SIZE), dtype=np.uint8)

    def export_layers(
        self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], into: Any = None
    ) -> NDArray[np.uint8]:
        return self.cells[first_layer : first_layer + num_layers, list(block_ids)].reshape(-1)

    def import_layers(
        self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], data: NDArray[np.uint8]
    ) -> None:
        cells = data.reshape(num_layers, len(block_ids), BLOCK_SIZE)
        self.cells[first_layer : first_layer + num_layers, list(block_ids)] = cells


class ByteHost:
    """What `EngineThread` uses of a host's memory, for KV of one byte a token and layer.

    Attributes:
        failures: raised by the next moves, one each.
        moves: (copied out, copied in) blocks so far.
    """

    def __init__(self, kv: ByteKv, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.failures: list[Exception] = []
        self.moves = [0, 0]
        self.thread_names: set[str] = set()
        self._device = kv.cells
        self._host = np.zeros((LAYERS, num_blocks, BLOCK_SIZE), dtype=np.uint8)

    def swap_out(self, block_ids: tuple[int, ...], host_block_ids: tuple[int, ...]) -> None:
        self._moves(0, len(block_ids))
        self._host[:, list(host_block_ids)] = self._device[:, list(block_ids)]

    def swap_in(self, host_block_ids: tuple[int, ...], block_ids: tuple[int, ...]) -> None:
        self._moves(1, len(block_ids))
        self._device[:, list(block_ids)] = self._host[:, list(host_block_ids)]

    def _moves(self, way: int, blocks: int) -> None:
        self.thread_names.add(threading.current_thread().name)
        if self.failures:
            raise self.failures.pop(0)
        self.moves[way] += blocks


class SummingEngine:
    """What `EngineThread` and `WorkerRuntime` use of an engine. A token depends on the KV bytes of all tokens before it.

    Attributes:
        failures: raised by the next iterations, one each.
        gate: iterations wait until it is set.
        compiled: by grammar, what its sequences' iterations wait for; none has any but these.
        at_work: set once an iteration has begun.
        batch_sizes: rows of each iteration that ran.
    """

    num_blocks = BLOCKS
    block_size = BLOCK_SIZE
    dtype = "uint8"
    device = "cpu"
    is_native = False
    fused_layers = 0
    attention_name = "no attention"
    kv_bytes_per_token = LAYERS
    graphs: Any = None
    adapters: tuple[AdapterRef, ...] = ()

    def __init__(self) -> None:
        self.kv = ByteKv()
        self.failures: list[Exception] = []
        self.gate = threading.Event()
        self.gate.set()
        self.at_work = threading.Event()
        self.compiled: dict[str, Future[None]] = {}
        self.batch_sizes: list[int] = []
        self.thread_names: set[str] = set()
        self._records: dict[str, RequestRecord] = {}
        self._tokens: dict[str, list[int]] = {}

    @property
    def num_sequences(self) -> int:
        return len(self._tokens)

    def prepare(self, record: RequestRecord) -> Future[None] | None:
        """Return what a sequence's grammar is compiled to; the test ends that."""
        return self.compiled.get(record.sampling.grammar)

    def add_sequence(self, record: RequestRecord, prepared: Future[None] | None = None) -> None:
        """Learn a sequence; a prompt with token 255 is refused."""
        if 255 in record.prompt_token_ids:
            raise ValueError("a token id outside 0..254")
        self._records[record.sequence_id] = record
        self._tokens[record.sequence_id] = [*record.prompt_token_ids, *record.output_token_ids]

    def append_token(self, sequence_id: str, token_id: int) -> None:
        self._tokens[sequence_id].append(token_id)

    def drop_sequence(self, sequence_id: str) -> None:
        self._records.pop(sequence_id, None)
        self._tokens.pop(sequence_id, None)

    def run_iteration(self, batch: Batch, on_layers: LayersWritten | None = None) -> tuple[SampledToken, ...]:
        """Write the rows' KV, layer by layer, and sample from all the KV that the sequence has."""
        self.at_work.set()
        assert self.gate.wait(PATIENCE_S)
        for row in batch.rows:
            if (compiling := self.compiled.get(self._records[row.sequence_id].sampling.grammar)) is not None:
                compiling.result(PATIENCE_S)  # as the real engine, whose masks wait
        self.thread_names.add(threading.current_thread().name)
        if self.failures:
            raise self.failures.pop(0)
        self.batch_sizes.append(len(batch.rows))
        for layer in range(LAYERS):
            for row in batch.rows:
                tokens = self._tokens[row.sequence_id]
                for position in range(row.first_position, row.first_position + row.num_tokens):
                    block_id = row.block_ids[position // BLOCK_SIZE]
                    self.kv.cells[layer, block_id, position % BLOCK_SIZE] = tokens[position]
            if on_layers is not None:
                on_layers(layer + 1)
        sampled = []
        for row in batch.rows:
            tokens = self._tokens[row.sequence_id]
            if row.first_position + row.num_tokens < len(tokens):
                continue
            blocks = self.kv.cells[:, list(row.block_ids)].reshape(LAYERS, -1)[:, : len(tokens)]
            assert (blocks[0] == blocks[1]).all()
            token_id = next_token([int(byte) for byte in blocks[0]])
            tokens.append(token_id)
            sampled.append(SampledToken(row.sequence_id, token_id, prompt_logprobs=self._scores(row.sequence_id)))
        return tuple(sampled)

    def _scores(self, sequence_id: str) -> tuple[TokenLogprobs | None, ...] | None:
        record = self._records[sequence_id]
        count = record.sampling.prompt_logprobs
        if count is None:
            return None
        return tuple(TokenLogprobs(-1.0, tuple(range(count)), (-1.0,) * count) for _ in record.prompt_token_ids)
