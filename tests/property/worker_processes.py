"""What a worker's process does in the mesh of one process: engine, windows and transfers, as its role commands.

An engine's writes take effect when its iteration ends. A move between device and host reads when it begins and when it ends,
and then writes; one in twenty fails. A push reads and writes now and then, as far as was reported, and once more when it ends,
however it ends: a block given away too early would show.

An engine of several processes may be lost, with all that it held and ran: the role hears of it, of its moves between device and
host, and later of its pushes. Until it is whole again it loads nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from spotwise.core.costs.cost_model import LinkCost
from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.messages.numerics import Crossing, is_crossing, refusal_of_classes
from spotwise.core.requests.record import RequestRecord, sequence_id
from spotwise.core.requests.sampling import SampledToken
from spotwise.core.worker import commands as c
from spotwise.core.worker.kv.push_policy import PushCosts
from spotwise.core.worker.policy import WorkerPolicy
from tests.property.fake_worker import FakePush, FakeWorker

#: Blocks of a device or a host, and which of them.
Place = tuple[dict[int, dict[int, tuple[int, ...]]], tuple[int, ...]]


def expected_token(choice_id: str, index: int) -> int:
    """The token that a correct mesh delivers at `index`."""
    return hash((choice_id, index)) % 1000


class Surroundings(Protocol):
    """The surroundings of workers."""

    rng: random.Random
    policy: WorkerPolicy
    iteration_s: float
    push_s: float
    records: dict[str, RequestRecord]
    culprits: set[str]
    failing: float
    killers: set[str]
    bad_pairs: set[tuple[str, str]]

    @property
    def workers(self) -> Mapping[str, FakeWorker]:
        """Return the live workers."""

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        """Let something happen later."""

    def delay(self, most: float = 0.02) -> float:
        """A random one."""

    def tokens(self, choice_id: str, count: int) -> tuple[int, ...]:
        """The first tokens of a request's prompt and right answer."""

    def feed_worker(self, worker: FakeWorker, event: Any) -> None:
        """Give an event to a role."""

    def kill(self, worker_id: str) -> None:
        """End a worker without a word."""

    def come_back(self, worker: FakeWorker) -> None:
        """Start one that ended by itself again."""


class WorkerProcesses:
    """Performs the commands of all roles."""

    def __init__(self, world: Surroundings) -> None:
        self._world = world

    def perform(self, worker: FakeWorker, command: Any) -> None:
        world = self._world
        match command:
            case c.LoadRecord(choice_id, epoch):
                world.at(world.delay(), partial(self._load, worker, choice_id, epoch))
            case c.DropSequence(attempt):
                worker.engine.pop(attempt, None)
            case c.AppendToken(attempt, token_id):
                index = worker.outputs[attempt]
                assert token_id == expected_token(worker.engine[attempt].choice_id, index)
                worker.outputs[attempt] += 1
            case h.ExpectKv(choice_id, epoch, block_ids):
                worker.windows[choice_id] = (epoch, block_ids)
            case h.ForgetKv(choice_id):
                worker.windows.pop(choice_id, None)
            case c.RunIteration(batch):
                running = [row.sequence_id for order in (*worker.batches, batch) for row in order.rows]
                assert len(running) == len(set(running)), "a sequence in two iterations at once"
                worker.batches.append(batch)
                assert len(worker.batches) <= world.policy.max_in_flight
                assert not worker.engine_is_lost
                world.at(0.001 + world.delay(world.iteration_s), partial(self._iterate, worker, worker.engine_epoch))
            case c.PushKv(handoff, target, blocks):
                tokens = handoff.num_tokens
                push = FakePush(handoff.choice_id, handoff.epoch, target, blocks, tokens, tokens, handoff=handoff)
                self._start_push(worker, push)
            case h.OpenPush(choice_id, epoch, target, blocks, tokens, written, number):
                self._start_push(worker, FakePush(choice_id, epoch, target, blocks, tokens, written, number))
            case h.CommitPush(handoff, blocks):
                committed = worker.pushes.get(sequence_id(handoff.choice_id, handoff.epoch))
                if committed is not None:
                    if blocks:
                        assert committed.num_tokens is None
                        assert blocks[: len(committed.block_ids)] == committed.block_ids
                        committed.block_ids = blocks
                        committed.written = committed.num_tokens = handoff.num_tokens
                    assert committed.written == committed.num_tokens == handoff.num_tokens
                    committed.handoff = handoff
            case h.AbortPush(choice_id, epoch):
                called_off = worker.pushes.get(sequence_id(choice_id, epoch))
                if called_off is not None and not called_off.over:
                    called_off.over = True
                    world.at(world.delay(world.push_s), partial(self._push_failed, worker, called_off, "called off"))
            case c.SwapOut(attempt, there, on_host):
                self._move(worker, attempt, (worker.blocks, there), (worker.host_blocks, on_host))
            case c.SwapIn(attempt, on_host, there):
                self._move(worker, attempt, (worker.host_blocks, on_host), (worker.blocks, there))
            case m.RecordLedger():
                pass
            case _:
                raise AssertionError(f"no process performs {command}")

    def lose_engine(self, worker: FakeWorker, seconds: float) -> None:
        """A process of its engine is gone, and comes back after a while."""
        if not worker.alive or worker.engine_is_lost:
            return
        if worker.stalled:
            worker.waiting.append(lambda: self.lose_engine(worker, seconds))
            return
        worker.lose_engine()
        for push in worker.pushes.values():
            push.written = 0  # its blocks belong to no sequence
            if not push.over:
                push.over = True
                self._world.at(self._world.delay(), partial(self._push_failed, worker, push, "its engine is lost"))
        self._world.feed_worker(worker, c.EngineLost("a process is gone"))
        while worker.swapping:
            self._world.feed_worker(worker, c.SwapFailed(worker.swapping.pop(), "a process is gone"))
        self._world.at(seconds, lambda: self._restore_engine(worker))

    def _restore_engine(self, worker: FakeWorker) -> None:
        if not worker.alive:
            return
        if worker.stalled:
            worker.waiting.append(lambda: self._restore_engine(worker))
            return
        worker.engine_is_lost = False
        self._world.feed_worker(worker, c.EngineRestored())

    def _load(self, worker: FakeWorker, choice_id: str, epoch: int) -> None:
        if not worker.alive:
            return
        if worker.stalled:
            worker.waiting.append(lambda: self._load(worker, choice_id, epoch))
            return
        record = self._world.records.get(choice_id)
        if record is None or record.epoch != epoch or worker.engine_is_lost:
            self._world.feed_worker(worker, c.RecordUnavailable(choice_id, epoch, "gone", retryable=True))
            return
        refuses = partial(refusal_of_classes, self._world.policy.crossing)
        if refusal := refuses(record.numerics_classes, worker.member.numerics_class):
            self._world.feed_worker(worker, c.RecordUnavailable(choice_id, epoch, refusal, retryable=True))
            return
        assert record.sequence_id not in worker.engine, "loaded twice"
        worker.engine[record.sequence_id] = record
        worker.outputs[record.sequence_id] = len(record.output_token_ids)
        self._world.feed_worker(worker, c.RecordLoaded(record))

    def _iterate(self, worker: FakeWorker, engine_epoch: int) -> None:
        """The oldest batch ends."""
        if not worker.alive or worker.engine_epoch != engine_epoch:
            return
        if worker.stalled:
            worker.waiting.append(lambda: self._iterate(worker, engine_epoch))
            return
        sampled = []
        batch = worker.batches.popleft()
        requests = {worker.engine[row.sequence_id].choice_id for row in batch.rows}
        if not self._world.killers.isdisjoint(requests):
            self._world.kill(worker.member.id)
            self._world.come_back(worker)
            return
        may_fail = not worker.is_unlucky and worker.unlucky.isdisjoint(requests)
        worker.is_unlucky = may_fail and self._world.rng.random() < self._world.failing
        (worker.unlucky.update if worker.is_unlucky else worker.unlucky.difference_update)(requests)
        if worker.engine_is_broken or worker.is_unlucky or not self._world.culprits.isdisjoint(requests):
            for row in batch.rows:  # what it wrote is anything
                worker.write(row.block_ids, (-1,) * (row.first_position + row.num_tokens), row.first_position)
            self._world.feed_worker(worker, c.IterationFailed("bad luck"))
            return
        for row in batch.rows:
            record = worker.engine.get(row.sequence_id)
            assert record is not None, "a row of a sequence that the engine forgot"
            known = len(record.prompt_token_ids) + worker.outputs[row.sequence_id]
            end = row.first_position + row.num_tokens
            assert row.num_tokens > 0
            assert end <= known
            tokens = self._world.tokens(record.choice_id, end)
            worker.check(row.block_ids, tokens[: row.first_position])
            worker.write(row.block_ids, tokens, row.first_position)
            if row.sequence_id in worker.pushes:
                pushed = worker.pushes[row.sequence_id]
                assert pushed.handoff is None, "computed after its hand-off"
                if pushed.num_tokens is not None:
                    pushed.written = end
            if end < known:
                continue
            index = worker.outputs[row.sequence_id]
            worker.outputs[row.sequence_id] += 1
            if self._world.policy.crossing is Crossing.REFUSE:
                refusal = refusal_of_classes(Crossing.REFUSE, record.numerics_classes, worker.member.numerics_class)
                assert refusal is None, f"computed in another class: {refusal}"
            sampled.append(SampledToken(row.sequence_id, expected_token(record.choice_id, index)))
        self._world.feed_worker(worker, c.IterationFinished(tuple(sampled)))

    def _move(self, worker: FakeWorker, attempt: str, source: Place, target: Place) -> None:
        blocks, block_ids = source
        read = [dict(blocks[block_id]) for block_id in block_ids]
        engine_epoch = worker.engine_epoch
        worker.swapping.append(attempt)

        def ended() -> None:
            if not worker.alive or worker.engine_epoch != engine_epoch:
                return
            if worker.stalled:
                worker.waiting.append(ended)
                return
            assert [blocks[block_id] for block_id in block_ids] == read, "written while it was read"
            worker.swapping.remove(attempt)
            fails = self._world.rng.random() < 0.05
            for block_id, content in zip(target[1], read, strict=True):
                target[0][block_id] = {} if fails else dict(content)
            self._world.feed_worker(worker, c.SwapFailed(attempt, "bad luck") if fails else c.Swapped(attempt))

        self._world.at(0.001 + self._world.delay(self._world.push_s), ended)

    def _start_push(self, worker: FakeWorker, push: FakePush) -> None:
        attempt = sequence_id(push.choice_id, push.epoch)
        assert attempt not in worker.pushes, "two pushes of one attempt"
        worker.pushes[attempt] = push
        self._world.at(0.001 + self._world.delay(self._world.push_s), lambda: self._push(worker, push))

    def _push(self, worker: FakeWorker, push: FakePush) -> None:
        """Send what may leave; end the push if it is committed and nothing is left."""
        if not worker.alive or push.over:
            return
        target = self._world.workers.get(push.target.worker_id)
        for end in (worker, target):
            if end is not None and end.stalled:
                end.waiting.append(lambda: self._push(worker, push))
                return
        tokens = self._world.tokens(push.choice_id, push.whole)
        worker.check(push.block_ids, tokens)
        assert sequence_id(push.choice_id, push.epoch) in worker.engine
        refused = (
            target is None
            or target.member.incarnation != push.target.incarnation
            or target.windows.get(push.choice_id) != (push.epoch, push.target.block_ids)
        )
        refused = refused or (worker.member.id, push.target.worker_id) in self._world.bad_pairs
        if target is not None and self._world.policy.crossing is Crossing.REFUSE:
            refused = refused or is_crossing(worker.member.numerics_class, target.member.numerics_class)
        if refused or target is None:
            push.over = True
            self._push_failed(worker, push, "refused")
            return
        target.write(push.target.block_ids, tokens, push.sent)
        push.sent = len(tokens)
        if push.num_tokens is None and not push.caught_up:
            push.caught_up = True
            self._world.at(self._world.delay(), partial(self._caught_up, worker, push))
        if push.handoff is None:
            self._world.at(0.001 + self._world.delay(self._world.push_s), lambda: self._push(worker, push))
            return
        assert push.sent == push.num_tokens
        push.over = True
        del target.windows[push.choice_id]
        self._world.feed_worker(target, c.KvArrived(push.handoff, push.num_tokens or 0, 0.0, "memory"))
        self._world.at(self._world.delay(), lambda: self._delivered(worker, push))

    def _caught_up(self, worker: FakeWorker, push: FakePush) -> None:
        """Say so, also late: the push may have failed, and another of the attempt have begun."""
        if worker.stalled:
            worker.waiting.append(lambda: self._caught_up(worker, push))
        elif worker.alive:
            self._world.feed_worker(worker, h.PushCaughtUp(push.choice_id, push.epoch, push.number))

    def _push_failed(self, worker: FakeWorker, push: FakePush, reason: str) -> None:
        if not worker.alive:
            return
        if worker.stalled:
            worker.waiting.append(lambda: self._push_failed(worker, push, reason))
            return
        worker.check(push.block_ids, self._world.tokens(push.choice_id, push.whole))
        del worker.pushes[sequence_id(push.choice_id, push.epoch)]
        self._world.feed_worker(worker, h.HandoffFailed(push.choice_id, push.epoch, reason))

    def _delivered(self, worker: FakeWorker, push: FakePush) -> None:
        if not worker.alive:
            return
        if worker.stalled:
            worker.waiting.append(lambda: self._delivered(worker, push))
            return
        del worker.pushes[sequence_id(push.choice_id, push.epoch)]
        rng = self._world.rng
        serial, layerwise = (LinkCost(rng.random(), 1.0 + rng.random()) for _ in range(2))
        costs = PushCosts(serial, layerwise)
        self._world.feed_worker(worker, c.PushesMeasured(push.target.worker_id, costs))
        tokens = push.num_tokens or 0
        self._world.feed_worker(worker, h.HandoffDelivered(push.choice_id, push.epoch, tokens, 0.0, "memory", 0.0))
