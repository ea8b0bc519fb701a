"""The sequences a worker holds, their blocks, and the ways out.

Law: a sequence owns blocks here exactly while it is held, and it is held until nothing reads or writes those blocks any
more: not in the middle of an iteration, not while its KV is being pushed or moves between device and host. One that ends too
early for that is *pending_free* and leaves as soon as it may; its push is called off.

Invariants: blocks owned == blocks of the sequences held; a pending_free sequence joins no iteration and publishes nothing;
every ending that the gateway did not ask for is published to it; an attempt's record is loaded once at a time, so that an
answer to a load can be taken for no other holding of the same attempt.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from spotwise.core import messages as m
from spotwise.core.kv_blocks import BlockPool
from spotwise.core.record import sequence_id
from spotwise.core.request import FINISH_EVENT, FinishReason, RequestState
from spotwise.core.worker import commands as c
from spotwise.core.worker.sequence import KvPlace, Sequence


class SequenceTable:
    """Sequences in order of arrival, and the commands that their fates cause.

    Attributes:
        worker_id, incarnation: whose.
        pool: blocks of the device.
        host: blocks of the host's memory; `None` where nothing is swapped.
        lost_a_member: a sequence in the newest iteration ordered was pending_free since.
    """

    def __init__(self, worker_id: str, pool: BlockPool, host: BlockPool | None = None, incarnation: int = 0) -> None:
        self.worker_id = worker_id
        self.incarnation = incarnation
        self.pool = pool
        self.host = host
        self.lost_a_member = False
        self._iterations: deque[list[tuple[Sequence, int]]] = deque()
        self._sequences: dict[str, Sequence] = {}
        self._attempts: Counter[str] = Counter()  #: sequences by request
        self._commands: list[c.WorkerCommand] = []
        self._deltas: dict[tuple[str, int], list[m.TokenDelta]] = {}
        self._batches_sent: dict[tuple[str, int], int] = {}
        self._gone_gateways: list[tuple[str, int]] = []
        self._loading: set[str] = set()

    # --- who is here --------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    def __reversed__(self) -> Iterator[Sequence]:
        return reversed(self._sequences.values())

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, sequence_id: str) -> bool:
        return sequence_id in self._sequences

    def get(self, choice_id: str, epoch: int) -> Sequence | None:
        """Return that attempt if it is here and not pending_free."""
        return self.by_id(sequence_id(choice_id, epoch))

    def by_id(self, sequence_id: str) -> Sequence | None:
        """Return the sequence if it is here and not pending_free."""
        sequence = self._sequences.get(sequence_id)
        return None if sequence is None or sequence.pending_free else sequence

    def add(self, choice_id: str, epoch: int, stream: m.StreamRef, state: RequestState, now: float) -> Sequence:
        """Enter an attempt that is not here."""
        sequence = Sequence(choice_id, epoch, stream, state, now)
        self._sequences[sequence.sequence_id] = sequence
        self._attempts[choice_id] += 1
        return sequence

    def allocate(self, sequence: Sequence, tokens: int, reused: tuple[int, ...] = ()) -> None:
        """Give the sequence blocks for `tokens` tokens, `reused` the first of them; ask the pool first."""
        sequence.block_ids = self.pool.allocate(sequence.sequence_id, tokens, reused)
        sequence.reused_blocks = len(reused)
        sequence.has_run = False

    def extend(self, sequence: Sequence, tokens: int) -> None:
        """Give the sequence the blocks that it lacks for `tokens` tokens; ask the pool first."""
        sequence.block_ids = self.pool.extend(sequence.sequence_id, tokens)

    def take_blocks(self, sequence: Sequence) -> None:
        """Take the blocks of a sequence that stays."""
        self.pool.free(sequence.sequence_id)
        sequence.block_ids = ()

    # --- its record ---------------------------------------------------------------------------------------------------

    def is_loading(self, choice_id: str, epoch: int) -> bool:
        """Tell whether a load of the attempt's record is unanswered, also where the attempt itself has ended."""
        return sequence_id(choice_id, epoch) in self._loading

    def load_record(self, sequence: Sequence) -> None:
        """Ask for the record of a sequence that was just added; ask `is_loading` first."""
        self._loading.add(sequence.sequence_id)
        self.say(c.LoadRecord(sequence.choice_id, sequence.epoch))

    def load_answered(self, choice_id: str, epoch: int) -> Sequence | None:
        """Note that a load was answered; return its sequence if it is still wanted."""
        self._loading.discard(sequence_id(choice_id, epoch))
        return self.get(choice_id, epoch)

    # --- iterations ---------------------------------------------------------------------------------------------------

    @property
    def iterations_in_flight(self) -> int:
        """Iterations ordered and not ended."""
        return len(self._iterations)

    def begin_iteration(self, members: list[tuple[Sequence, int]]) -> None:
        """Note which sequences take part in an iteration that is about to be ordered, with how many tokens."""
        for sequence, _ in members:
            sequence.in_iteration = True
        self._iterations.append(members)
        self.lost_a_member = False

    def end_iteration(self) -> list[tuple[Sequence, int]]:
        """Note that the oldest iteration ended; return the wanted sequences that took part, and their tokens."""
        took_part = self._iterations.popleft()
        pending_free = []
        for sequence, _ in took_part:
            sequence.in_iteration, sequence.has_run = False, True
            if sequence.pending_free:
                pending_free.append(sequence)
        for sequence in pending_free:
            self.release(sequence)
        return [member for member in took_part if not member[0].pending_free] if pending_free else took_part

    # --- what follows -------------------------------------------------------------------------------------------------

    def say(self, command: c.WorkerCommand) -> None:
        """Add a command to the answer."""
        self._commands.append(command)

    def publish(self, stream: m.StreamRef, delta: m.TokenDelta) -> None:
        """Add to the one message that this event sends to the stream's gateway."""
        self._deltas.setdefault((stream.gateway_id, stream.incarnation), []).append(delta)

    @property
    def gateways(self) -> tuple[m.GatewayStreams, ...]:
        """The gateways that tokens were sent to, or will be, in order of id and incarnation."""
        sent = {
            (each.stream.gateway_id, each.stream.incarnation): 0 for each in self if not each.pending_free
        } | self._batches_sent
        return tuple(m.GatewayStreams(*gateway, batches) for gateway, batches in sorted(sent.items()))

    def record(self, sequence: Sequence, stage: str, now: float, **facts: str | int | float) -> None:
        """Add a line to the request's ledger."""
        entry = m.LedgerEntry(sequence.choice_id, sequence.epoch, stage, self.worker_id, now, tuple(facts.items()))
        self.say(m.RecordLedger(entry))

    def answer(self) -> list[c.WorkerCommand]:
        """Return what was said since the last answer: tokens first, because a client waits for them."""
        commands, self._commands = self._commands, []
        if self._deltas:
            commands = [*self._batches(), *commands]
        while self._gone_gateways:
            self._batches_sent.pop(self._gone_gateways.pop(), None)
        return commands

    def _batches(self) -> list[m.Send]:
        """Return what is published since the last answer, a numbered batch for each gateway."""
        batches = []
        for gateway, deltas in self._deltas.items():
            gateway_id, incarnation = gateway
            self._batches_sent[gateway] = number = self._batches_sent.get(gateway, 0) + 1
            batch = m.TokenBatch(self.worker_id, tuple(deltas), self.incarnation, number)
            batches.append(m.Send(gateway_id, batch, incarnation))
        self._deltas.clear()
        return batches

    def tell_failure(
        self, stream: m.StreamRef, tokens_sent: int, reason: str, *, retryable: bool, suspects: m.Suspects = ()
    ) -> None:
        """Tell a stream's gateway that nothing more comes; one that has moved on ignores it."""
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

    # --- ways out -----------------------------------------------------------------------------------------------------

    def fail(self, sequence: Sequence, reason: str, now: float, *, retryable: bool, suspects: m.Suspects = ()) -> None:
        """End a sequence that cannot be served here, and tell its gateway and its other worker."""
        self.tell_failure(sequence.stream, sequence.output_tokens, reason, retryable=retryable, suspects=suspects)
        self.record(sequence, "failed", now, reason=reason)
        self.cancel_target(sequence)
        self.end(sequence, FinishReason.ERROR)

    def fence(self, choice_id: str, epoch: int) -> None:
        """End all attempts up to `epoch`; whoever asked knows."""
        if choice_id not in self._attempts:
            return
        for sequence in [s for s in self if s.choice_id == choice_id and s.epoch <= epoch and not s.pending_free]:
            self.cancel_target(sequence)
            self.end(sequence, FinishReason.ABORT)

    def forget_gateway(self, order: m.ForgetGateway, now: float) -> None:
        """End what is decoded for a gateway that is gone, or was given up; one that is back after all hears of it."""
        for sequence in [s for s in self if not s.pending_free and _goes_to(s.stream, order)]:
            self.fail(sequence, "the scheduler gave the gateway up", now, retryable=True)
        gone = [key for key in self._batches_sent if key[0] == order.gateway_id and key[1] <= order.incarnation]
        self._gone_gateways.extend(gone)

    def cancel_target(self, sequence: Sequence) -> None:
        """Give the reservation on the token worker back, where there is one."""
        if sequence.target is not None:
            order = m.CancelRequest(sequence.choice_id, sequence.epoch)
            self.say(m.Send(sequence.target.worker_id, order))

    def end(self, sequence: Sequence, finish_reason: FinishReason) -> None:
        """Let go: at once where its blocks are at rest, else once they are."""
        if sequence.state is RequestState.WAITING_FOR_KV:
            self.say(c.ForgetKv(sequence.choice_id))
        if sequence.push_in_flight:
            self.say(c.AbortPush(sequence.choice_id, sequence.epoch))
        sequence.advance(FINISH_EVENT[finish_reason])
        sequence.pending_free = True
        self.lost_a_member |= sequence.in_iteration
        self.release(sequence)

    def release(self, sequence: Sequence) -> None:
        """Take the blocks of an ended or handed-off sequence back, unless they are in use."""
        if sequence.push_in_flight or sequence.in_iteration or sequence.is_moving:
            return
        del self._sequences[sequence.sequence_id]
        self._attempts[sequence.choice_id] -= 1
        if not self._attempts[sequence.choice_id]:
            del self._attempts[sequence.choice_id]
        if sequence.block_ids:
            self.pool.free(sequence.sequence_id)
        if sequence.host_block_ids:
            assert self.host is not None  # else it would have none there
            self.host.free(sequence.sequence_id)
        self.say(c.DropSequence(sequence.sequence_id))

    def move_ended(self, sequence_id: str) -> tuple[Sequence, KvPlace] | None:
        """Note that a move between device and host ended; return its sequence, and how it moved, if it is still wanted."""
        sequence = self._sequences.get(sequence_id)
        if sequence is None or not sequence.is_moving:
            return None
        moved, sequence.kv_place = sequence.kv_place, KvPlace.DEVICE
        if sequence.pending_free:
            self.release(sequence)
            return None
        return sequence, moved

    def push_ended(self, choice_id: str, epoch: int) -> Sequence | None:
        """Note that a push ended; return its sequence if it is still wanted."""
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
