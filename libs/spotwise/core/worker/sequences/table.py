"""The sequences of a worker, and the batches of tokens that it sends to their gateways.

Law: tokens keep their order, and each is in one batch. What is large beside a token (log-probabilities of its prompt, an
embedding) costs no other sequence its token: batches are divided between sequences, and a prompt's log-probabilities too, whose
first parts are sent ahead of their token.

Law: a sequence is held, with its blocks, until nothing reads or writes those blocks any more: no iteration, push or swap.
One that ends earlier is pending_free: it joins no iteration, publishes nothing, and leaves once no operation uses its blocks.
Every ending that the gateway did not order is published to it.
An attempt's record is loaded once at a time, so that a load's answer belongs to one holding of the attempt.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator

from spotwise.core.kv.blocks import BlockPool
from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.messages.mesh import TokenDelta
from spotwise.core.requests.record import sequence_id
from spotwise.core.requests.request import FINISH_EVENT, FinishReason, RequestState
from spotwise.core.requests.sampling import TokenLogprobs
from spotwise.core.worker import commands as c
from spotwise.core.worker.sequences.sequence import KvPlace, Sequence

#: Of one token batch, as estimated here: a broker's messages have a MiB at most, unless configured otherwise.
MOST_BATCH_BYTES = 1 << 18
#: Of a token with all that is small; of a position of the prompt, and of each of its alternatives; of a number of an embedding.
_TOKEN_BYTES, _POSITION_BYTES, _ALTERNATIVE_BYTES, _FLOAT_BYTES = 64, 20, 13, 4


def sendable(deltas: list[TokenDelta]) -> list[tuple[TokenDelta, ...]]:
    """Return one event's deltas in batches."""
    batches: list[list[TokenDelta]] = [[]]
    filled = 0
    for delta in deltas:
        for part in (delta,) if delta.prompt_logprobs is None else _parts(delta, delta.prompt_logprobs):
            size = _bytes(part)
            if filled + size > MOST_BATCH_BYTES and batches[-1]:
                batches.append([])
                filled = 0
            batches[-1].append(part)
            filled += size
    return [*map(tuple, batches)]


def _parts(delta: TokenDelta, scores: tuple[TokenLogprobs | None, ...]) -> Iterator[TokenDelta]:
    """Yield the delta, after as many without a token as its prompt's log-probabilities fill batches."""
    begin = filled = 0
    for position, score in enumerate(scores):
        size = _score_bytes(score)
        if filled + size > MOST_BATCH_BYTES - _TOKEN_BYTES and position > begin:
            yield TokenDelta(delta.attempt_id, delta.token_index, None, prompt_logprobs=scores[begin:position])
            begin, filled = position, 0
        filled += size
    yield delta if not begin else delta._replace(prompt_logprobs=scores[begin:])


def _bytes(delta: TokenDelta) -> int:
    size = _TOKEN_BYTES
    if delta.embedding is not None:
        size += _FLOAT_BYTES * len(delta.embedding)
    if delta.logprobs is not None:
        size += _score_bytes(delta.logprobs)
    if delta.prompt_logprobs is not None:
        size += sum(map(_score_bytes, delta.prompt_logprobs))
    return size


def _score_bytes(score: TokenLogprobs | None) -> int:
    return _POSITION_BYTES + (0 if score is None else _ALTERNATIVE_BYTES * len(score.top_token_ids))


class SequenceTable:
    """Sequences in order of arrival, and the commands that their events cause; `host` is `None` where nothing is swapped."""

    def __init__(
        self,
        worker_id: str,
        pool: BlockPool,
        host: BlockPool | None = None,
        incarnation: int = 0,
        numerics_class: str = "",
    ) -> None:
        self.worker_id = worker_id
        self.incarnation = incarnation
        self.numerics_class = numerics_class
        self.pool = pool
        self.host = host
        self._iterations: deque[list[tuple[Sequence, int]]] = deque()
        self._sequences: dict[str, Sequence] = {}
        self._without_blocks: dict[str, Sequence] = {}
        self._pending_free = 0
        self._attempts: Counter[str] = Counter()  #: sequences by choice
        self._live_streams: Counter[tuple[str, int]] = Counter()  #: of sequences that have not ended, by gateway
        self._commands: list[c.WorkerCommand] = []
        self._deltas: dict[tuple[str, int], list[m.TokenDelta]] = {}
        self._batches_sent: dict[tuple[str, int], int] = {}
        self._gone_gateways: list[tuple[str, int]] = []
        self._loading: set[str] = set()

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    def __reversed__(self) -> Iterator[Sequence]:
        return reversed(self._sequences.values())

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, sequence_id: str) -> bool:
        return sequence_id in self._sequences

    def get(self, choice_id: str, epoch: int) -> Sequence | None:
        """Return the attempt if it is held and not pending_free."""
        return self.by_id(sequence_id(choice_id, epoch))

    def by_id(self, sequence_id: str) -> Sequence | None:
        """Return the sequence if it is held and not pending_free."""
        sequence = self._sequences.get(sequence_id)
        return None if sequence is None or sequence.pending_free else sequence

    def add(self, choice_id: str, epoch: int, stream: m.StreamRef, state: RequestState, now: float) -> Sequence:
        """Enter an attempt that is not held yet."""
        sequence = Sequence(choice_id, epoch, stream, state, now)
        self._enter(sequence)
        return sequence

    def _enter(self, sequence: Sequence) -> None:
        self._sequences[sequence.sequence_id] = self._without_blocks[sequence.sequence_id] = sequence
        self._attempts[sequence.choice_id] += 1
        self._live_streams[sequence.stream.gateway_id, sequence.stream.incarnation] += 1

    def take_over(self, sequences: Iterable[tuple[Sequence, int]], loading: Iterable[str]) -> None:
        """Enter sequences in order of arrival, each with so many blocks, and note whose records are being loaded."""
        for sequence, blocks in sequences:
            self._enter(sequence)
            if blocks:
                self.allocate(sequence, blocks * self.pool.block_size)
        self._loading.update(loading)

    def allocate(self, sequence: Sequence, tokens: int, reused: tuple[int, ...] = ()) -> None:
        """Allocate blocks for `tokens` tokens, `reused` the first of them; check the pool first."""
        sequence.block_ids = self.pool.allocate(sequence.sequence_id, tokens, reused)
        sequence.reused_blocks = len(reused)
        sequence.has_run = False
        self._without_blocks.pop(sequence.sequence_id, None)

    def extend(self, sequence: Sequence, tokens: int) -> None:
        """Allocate the blocks that the sequence lacks for `tokens` tokens; check the pool first."""
        sequence.block_ids = self.pool.extend(sequence.sequence_id, tokens)

    def take_blocks(self, sequence: Sequence) -> None:
        """Free the blocks of a sequence that stays held."""
        self.pool.free(sequence.sequence_id)
        sequence.block_ids = ()
        self._without_blocks[sequence.sequence_id] = sequence

    @property
    def without_blocks(self) -> Collection[Sequence]:
        """The sequences that own no block of the device."""
        return self._without_blocks.values()

    @property
    def states(self) -> Counter[RequestState]:
        """How many sequences are in each state."""
        return Counter([sequence.state for sequence in self])

    @property
    def has_pending_free(self) -> bool:
        """Whether a sequence has ended whose blocks are in use."""
        return self._pending_free > 0

    def is_loading(self, choice_id: str, epoch: int) -> bool:
        """Tell whether a load of the attempt's record is unanswered, even where the attempt itself has ended."""
        return sequence_id(choice_id, epoch) in self._loading

    def load_record(self, sequence: Sequence) -> None:
        """Load the record of a sequence that was just added; check `is_loading` first."""
        self._loading.add(sequence.sequence_id)
        self.emit(c.LoadRecord(sequence.choice_id, sequence.epoch))

    def load_answered(self, choice_id: str, epoch: int) -> Sequence | None:
        """Note that a load was answered; return its sequence if it has not ended."""
        self._loading.discard(sequence_id(choice_id, epoch))
        return self.get(choice_id, epoch)

    @property
    def iterations_in_flight(self) -> int:
        """Iterations ordered and not ended."""
        return len(self._iterations)

    def prompt_tokens_in_flight(self) -> tuple[int, int]:
        """Return the prompt tokens that iterations in flight compute, and how many of them are of ended sequences."""
        computing = abandoned = 0
        for members in self._iterations:
            for sequence, tokens in members:
                if tokens > 1 or not sequence.computed_tokens:
                    computing += tokens
                    if sequence.pending_free:
                        abandoned += tokens
        return computing, abandoned

    def begin_iteration(self, members: list[tuple[Sequence, int]]) -> None:
        """Note the sequences, with their tokens, of an iteration that is about to be ordered."""
        for sequence, _ in members:
            sequence.in_iteration = True
        self._iterations.append(members)

    def end_iteration(self, *, failed: bool = False) -> list[tuple[Sequence, int]]:
        """Note that the oldest iteration ended, or `failed`; return its sequences that have not ended, and their tokens."""
        took_part = self._iterations.popleft()
        pending_free = []
        for sequence, _ in took_part:
            sequence.in_iteration = False
            if not failed:  # one without computed tokens has nothing that could be swapped out
                sequence.has_run = True
            if sequence.pending_free:
                pending_free.append(sequence)
        for sequence in pending_free:
            self.release(sequence)
        return [member for member in took_part if not member[0].pending_free] if pending_free else took_part

    def drop_iterations(self) -> None:
        """End all iterations: the engine that ran them is gone."""
        while self._iterations:
            self.end_iteration()

    def emit(self, command: c.WorkerCommand) -> None:
        """Add a command."""
        self._commands.append(command)

    def publish(self, stream: m.StreamRef, delta: m.TokenDelta) -> None:
        """Add to what this event sends to the stream's gateway."""
        self._deltas.setdefault((stream.gateway_id, stream.incarnation), []).append(delta)

    @property
    def gateways(self) -> tuple[m.GatewayStreams, ...]:
        """The gateways that tokens were or will be sent to, in order of id and incarnation."""
        sent = dict.fromkeys(self._live_streams, 0) | self._batches_sent
        return tuple(m.GatewayStreams(*gateway, batches) for gateway, batches in sorted(sent.items()))

    def record(self, sequence: Sequence, stage: str, now: float, **facts: str | int | float) -> None:
        """Add an entry to the request's ledger."""
        entry = m.LedgerEntry(sequence.choice_id, sequence.epoch, stage, self.worker_id, now, tuple(facts.items()))
        self.emit(m.RecordLedger(entry))

    def take_commands(self) -> list[c.WorkerCommand]:
        """Return the commands since the last call: tokens first, because a client waits for them."""
        commands, self._commands = self._commands, []
        if self._deltas:
            commands = [*self._batches(), *commands]
        while self._gone_gateways:
            self._batches_sent.pop(self._gone_gateways.pop(), None)
        return commands

    def _batches(self) -> list[m.Send]:
        batches = []
        for gateway, deltas in self._deltas.items():
            gateway_id, incarnation = gateway
            for part in sendable(deltas):
                self._batches_sent[gateway] = number = self._batches_sent.get(gateway, 0) + 1
                batch = m.TokenBatch(self.worker_id, part, self.incarnation, number, self.numerics_class)
                batches.append(m.Send(gateway_id, batch, incarnation))
        self._deltas.clear()
        return batches

    def publish_failure(
        self, stream: m.StreamRef, tokens_sent: int, reason: str, *, retryable: bool, suspects: m.Suspects = ()
    ) -> None:
        """End a stream with an error; a gateway that has begun a later attempt ignores it."""
        delta = m.TokenDelta(
            attempt_id=stream.attempt_id,
            token_index=tokens_sent,
            token_id=None,
            finish_reason=FinishReason.ERROR,
            error=reason,
            retryable=retryable,
            suspects=suspects,
        )
        self.publish(stream, delta)

    def fail(self, sequence: Sequence, reason: str, now: float, *, retryable: bool, suspects: m.Suspects = ()) -> None:
        """End a sequence that cannot be served here; its gateway and its token worker are notified."""
        if sequence.announced or not sequence.source_id:  # else its gateway knows it on another worker, which has it
            self.publish_failure(
                sequence.stream, sequence.output_tokens, reason, retryable=retryable, suspects=suspects
            )
        self.record(sequence, "failed", now, reason=reason)
        self.cancel_target(sequence)
        self.end(sequence, FinishReason.ERROR)

    def fence(self, choice_id: str, epoch: int) -> None:
        """End all attempts up to `epoch` without notifying the gateway, which ordered it."""
        if choice_id not in self._attempts:
            return
        for sequence in [s for s in self if s.choice_id == choice_id and s.epoch <= epoch and not s.pending_free]:
            self._cancel(sequence)
            self.end(sequence, FinishReason.ABORT)

    def forget_gateway(self, order: m.ForgetGateway, now: float) -> None:
        """End the sequences of a gateway that is gone; one that was only silent is notified of each."""
        for sequence in [s for s in self if not s.pending_free and _goes_to(s.stream, order)]:
            self.fail(sequence, "the scheduler gave the gateway up", now, retryable=True)
        gone = [key for key in self._batches_sent if key[0] == order.gateway_id and key[1] <= order.incarnation]
        self._gone_gateways.extend(gone)

    def cancel_target(self, sequence: Sequence) -> None:
        """Cancel the reservation on the token worker, where there is one, and the sequence cannot be there itself."""
        if sequence.holds_reservation:
            self._cancel(sequence)

    def _cancel(self, sequence: Sequence) -> None:
        if (worker_id := sequence.reserved_at) is not None:
            self.emit(m.Send(worker_id, m.CancelRequest(sequence.choice_id, sequence.epoch)))

    def end(self, sequence: Sequence, finish_reason: FinishReason) -> None:
        """End a sequence; its blocks are freed once no operation uses them."""
        if sequence.state is RequestState.WAITING_FOR_KV:
            self.emit(h.ForgetKv(sequence.choice_id))
        if sequence.push_in_flight and not sequence.is_delivered:
            self.emit(h.AbortPush(sequence.choice_id, sequence.epoch))
        if (move := sequence.move) is not None and not sequence.is_delivered:
            order = move.order
            ended = m.MoveEnded(order.choice_id, order.epoch, self.worker_id, order.target_id, m.MoveOutcome.ENDED)
            self.emit(m.Send(order.sender_id, ended))
        sequence.advance(FINISH_EVENT[finish_reason])
        sequence.pending_free = True
        self._pending_free += 1
        self._stream_ended(sequence.stream)
        self.release(sequence)

    def _stream_ended(self, stream: m.StreamRef) -> None:
        gateway = stream.gateway_id, stream.incarnation
        self._live_streams[gateway] -= 1
        if not self._live_streams[gateway]:
            del self._live_streams[gateway]

    def release(self, sequence: Sequence) -> None:
        """Drop an ended or handed-off sequence and free its blocks, unless they are in use."""
        if sequence.push_in_flight or sequence.in_iteration or sequence.is_swapping:
            return
        del self._sequences[sequence.sequence_id]
        self._without_blocks.pop(sequence.sequence_id, None)
        if sequence.pending_free:
            self._pending_free -= 1
        else:
            self._stream_ended(sequence.stream)
        self._attempts[sequence.choice_id] -= 1
        if not self._attempts[sequence.choice_id]:
            del self._attempts[sequence.choice_id]
        if sequence.block_ids:
            self.pool.free(sequence.sequence_id)
        if sequence.host_block_ids:
            assert self.host is not None  # a sequence with host blocks
            self.host.free(sequence.sequence_id)
        self.emit(c.DropSequence(sequence.sequence_id))

    def swap_ended(self, sequence_id: str) -> tuple[Sequence, KvPlace] | None:
        """Note that a swap ended; return its sequence, and where its KV was, if the sequence has not ended."""
        sequence = self._sequences.get(sequence_id)
        if sequence is None or not sequence.is_swapping:
            return None
        moved, sequence.kv_place = sequence.kv_place, KvPlace.DEVICE
        if sequence.pending_free:
            self.release(sequence)
            return None
        return sequence, moved

    def push_ended(self, choice_id: str, epoch: int) -> Sequence | None:
        """Note that a push ended; return its sequence if it has not ended."""
        sequence = self._sequences.get(sequence_id(choice_id, epoch))
        if sequence is None or not sequence.push_in_flight:
            return None
        sequence.push_in_flight = False
        if sequence.pending_free:
            self.release(sequence)
            return None
        return sequence


def _goes_to(stream: m.StreamRef, order: m.ForgetGateway) -> bool:
    return stream.gateway_id == order.gateway_id and stream.incarnation <= order.incarnation
