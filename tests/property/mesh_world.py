"""A whole mesh in one process: the real roles, a fake network, engines that only remember the contents of each block.

The network is in `fake_network.py`, what workers do in `worker_processes.py`.

Messages between scheduler and workers, tokens, and heartbeats, may be lost. A worker may stall: nothing happens on it for a
while, and then all that waited: its inbox in order, the rest in any, mixed. Gateway, scheduler and broker may pause: messages
to them wait, and a tick is first. The scheduler may be gone for a while: what is sent to it then is lost, and its successor
knows the registrations, old or new, and nothing else. The gateway may be replaced: no process owns its requests then, and its
successor numbers its streams from 1, as it did. Another gateway may take its requests over, while it is dead or only stands
still (`former_gateways.py`). The message that a request is over may be lost, late or sent twice, and a submission
may come after it.

Workers may have caches of their own sizes. A request of `open_bounds` is sized at each attempt by those that its gateway knows.

Workers may be of several numerics classes, and come back in another one (`token_classes.py`).

Iterations with a request of `culprits` fail, some of any (`failing`), and all of a worker with a broken engine; one with a
request of `killers` ends its worker. Hand-offs between pairs of `bad_pairs` fail. Workers that end so are started again.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from spotwise.core.gateway import commands as g
from spotwise.core.gateway.recovery import RecoveryLimits
from spotwise.core.gateway.role import GatewayRole
from spotwise.core.kv.blocks import BlockPool
from spotwise.core.messages import mesh as m
from spotwise.core.messages.numerics import Numerics
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import SamplingParams
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.role import SchedulerLimits, SchedulerRole
from spotwise.core.worker import commands as c
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.core.worker.role import WorkerRole
from spotwise.wire.codec import decode, encode
from spotwise.wire.roles import MeshRole
from spotwise.wire.senders import may_send
from tests.property.fake_network import REPEATABLE, FakeNetwork
from tests.property.fake_worker import BLOCK_SIZE, FakeWorker
from tests.property.former_gateways import FormerGateway
from tests.property.token_classes import TokenClasses
from tests.property.worker_processes import WorkerProcesses, expected_token

if TYPE_CHECKING:
    from tests.property.devices import Devices
    from tests.property.market import FleetMarket
    from tests.property.planners import Planners
    from tests.property.schedulers import Schedulers

HEARTBEAT_S = 0.25
CONFIRM_EVERY_S = 2.0
#: A member whose own heartbeats do not come back for so long takes the broker for away.
DEAF_AFTER_S = 0.75
TICK_S = 0.1


class MeshWorld(FakeNetwork):
    """One gateway, one scheduler, some workers."""

    def __init__(
        self,
        rng: random.Random,
        pools: list[m.Pool],
        num_blocks: int,
        limits: SchedulerLimits,
        policy: WorkerPolicy,
        iteration_s: float = 0.05,
        push_s: float = 0.1,
        pool_policy: PoolPolicy | None = None,
        load_report_s: float | None = None,
        classes: Sequence[Numerics] = (),
    ) -> None:
        super().__init__(rng)
        #: Those that workers may be of, each time that one starts.
        self.classes = classes
        self.token_classes = TokenClasses()
        self.load_report_s = load_report_s
        self.limits = limits = replace(limits, confirm_every_s=CONFIRM_EVERY_S)
        self.pool_policy = pool_policy
        self.homes_changed = 0
        self.policy = replace(policy, confirm_every_s=CONFIRM_EVERY_S)
        self.planners: Planners | None = None
        self.schedulers: Schedulers | None = None  # in the place of the one
        self.submit_s = 0.0
        self.devices: Devices | None = None
        self.market: FleetMarket | None = None
        self.submissions_wait_s = 0.0
        self.iteration_s = iteration_s
        self.push_s = push_s
        self.attempts: dict[str, int] = {}
        #: Why attempts were lost, as the gateway says.
        self.lost_attempts: list[str] = []
        self.num_blocks = num_blocks
        #: KV blocks of the workers that have others.
        self.blocks_of: dict[str, int] = {}
        self.gateway_id = "gateway"
        self.former: dict[str, FormerGateway] = {}
        self.gateway = self.new_gateway(1)
        self.paused: dict[str, list[Callable[[], None]]] = {}
        self.scheduler = SchedulerRole("scheduler", limits, policy=pool_policy)
        self.scheduler_is_up = True
        self.plain_members = {
            "gateway": self._plain("gateway", m.MemberKind.GATEWAY),
            "scheduler": self._plain("scheduler", m.MemberKind.CLUSTER_SCHEDULER),
        }
        self.workers: dict[str, FakeWorker] = {}
        self.retired: list[FakeWorker] = []
        self.records: dict[str, RequestRecord] = {}
        self.prompts: dict[str, tuple[int, ...]] = {}
        #: When its newest attempt ends.
        self.stops: dict[str, StopCriteria] = {}
        #: The most tokens of requests whose clients gave no bound.
        self.open_bounds: dict[str, int] = {}
        self.claims: dict[str, tuple[int, str]] = {}
        self.patience_s: float | None = None
        self.deadlines: dict[str, float] = {}
        #: Probability that a client takes none of its tokens for a while, after some.
        self.stalling = 0.0
        self.delivered: dict[str, list[int]] = defaultdict(list)
        self.ended: dict[str, str] = {}
        self.moves_ordered = 0
        self.moves_ended: list[m.MoveEnded] = []
        #: Messages of the scheduler, by the event that they follow from and their type.
        self.scheduler_sends: Counter[tuple[type, type]] = Counter()
        #: Ends of attempts that the scheduler was sent.
        self.closings = 0
        self.culprits: set[str] = set()
        #: Probability that an iteration fails, after one that did not, of requests whose last one did not.
        self.failing = 0.0
        self.killers: set[str] = set()
        self.bad_pairs: set[tuple[str, str]] = set()
        self._processes = WorkerProcesses(self)
        for number, pool in enumerate(pools):
            self.start_worker(f"w{number}", pool)
        for member_id in self.plain_members:
            self._beat_plain(member_id)
        self.at(0.05, self._tick)

    def pause(self, member_id: str, seconds: float) -> None:
        """Gateway or scheduler stand still, as after SIGSTOP; what comes waits."""
        if member_id not in self.paused:
            self.paused[member_id] = []
            self.at(seconds, lambda: self._resume(member_id, seconds))

    def _resume(self, member_id: str, seconds: float) -> None:
        feed = self.feed_gateway if member_id == "gateway" else self.feed_scheduler
        waiting = self.paused.pop(member_id)
        feed(m.Tick(away_s=seconds))
        for action in waiting:
            action()

    # --- members ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _plain(member_id: str, kind: m.MemberKind) -> m.Member:
        return m.Member(member_id, kind, 1, m.MemberState.READY, "host", 1, "")

    def start_worker(self, worker_id: str, pool: m.Pool) -> None:
        incarnation = int(self.now * 1000)
        blocks = BlockPool(self.blocks_of.get(worker_id, self.num_blocks), BLOCK_SIZE)
        host = BlockPool(self.rng.choice([2, 12, 80]), BLOCK_SIZE) if self.policy.swap.when_full.swaps else None
        numerics = self.rng.choice(self.classes) if self.classes else None
        numerics_class = "" if numerics is None else numerics.name
        role = WorkerRole(worker_id, incarnation, worker_id, blocks, self.policy, host, numerics_class)
        kind = m.MemberKind.PROMPT_WORKER if pool is m.Pool.PROMPT else m.MemberKind.TOKEN_WORKER
        member = m.Member(
            worker_id, kind, incarnation, m.MemberState.READY, "host", 1, "", pool=pool, numerics=numerics
        )
        worker = FakeWorker(role, blocks, member, host=host)
        worker.prompt_token_s = self.rng.choice([None, 0.01])
        worker.kv_push_token_s = self.rng.choice([None, 0.0, 0.01])
        self.workers[worker_id] = worker
        self._beat(worker)

    def kill(self, worker_id: str) -> None:
        """End a worker, if it is there."""
        if worker_id in self.workers:
            self.workers.pop(worker_id).alive = False

    def start_if_away(self, worker_id: str, pool: m.Pool) -> None:
        if worker_id not in self.workers:
            self.start_worker(worker_id, pool)

    def lose(self, share: float, until_s: float = 10.0) -> None:
        """Lose such a share of the messages, until then."""
        self.loss = share
        self.at(until_s, lambda: setattr(self, "loss", 0.0))

    def come_back(self, worker: FakeWorker) -> None:
        """Start one that ended by itself again, as its supervisor would."""
        worker_id, pool = worker.member.id, worker.member.pool
        assert pool is not None
        self.at(self.rng.uniform(0.5, 3.0), lambda: self.start_worker(worker_id, pool))

    def lose_engine(self, worker_id: str, seconds: float) -> None:
        """A process of a worker's engine is gone for a while."""
        if worker_id in self.workers:
            self._processes.lose_engine(self.workers[worker_id], seconds)

    def restart_scheduler(self, after_s: float) -> None:
        """Kill it; its successor starts later, numbers orders from its start on, and reads what is registered."""
        if not self.scheduler_is_up:
            return
        self.scheduler_is_up = False
        self.at(after_s, self._start_scheduler)

    def _start_scheduler(self) -> None:
        incarnation = int(self.now * 1000)
        self.scheduler = SchedulerRole("scheduler", self.limits, incarnation, self.pool_policy)
        self.scheduler_is_up = True
        self.plain_members["scheduler"] = replace(self.plain_members["scheduler"], incarnation=incarnation)
        for worker in self.workers.values():
            if worker.registered is not None:
                self.feed_scheduler(worker.registered)

    def stall(self, worker_id: str, seconds: float) -> None:
        worker = self.workers.get(worker_id)
        if worker and not worker.stalled:
            worker.stalled = True
            self.at(seconds, lambda: self._wake(worker))

    def _wake(self, worker: FakeWorker) -> None:
        worker.waiting.append(lambda: self.feed_worker(worker, m.Tick()))
        worker.wake(self.rng)

    def new_gateway(self, incarnation: int) -> GatewayRole:
        limits = RecoveryLimits(
            recovery_s=30.0, retry_pause_s=0.3, stall_s=500.0, submit_s=self.submit_s, unheld_s=10.0
        )
        return GatewayRole(self.gateway_id, limits, incarnation, load_report_s=self.load_report_s)

    def restart_gateway(self) -> None:
        """Kill it; the next one takes its id, and no process owns the old one's requests."""
        for choice_id in self.stops:
            self.ended.setdefault(choice_id, "gateway died")
        incarnation = int(self.now * 1000)
        self.gateway = self.new_gateway(incarnation)
        self.plain_members[self.gateway_id] = replace(self.plain_members[self.gateway_id], incarnation=incarnation)

    def take_over(self, sleeps_s: float | None) -> None:
        """Let another gateway go on with all requests from tokens that were saved lately; the former one is dead, or stands
        still for so long, and is told after a while that it has lost them.
        """
        former_id, former = (
            self.gateway_id,
            FormerGateway(self, self.gateway_id, self.gateway, is_dead=sleeps_s is None),
        )
        self.former[former_id] = former
        self.gateway_id = f"gateway-{len(self.former)}"
        self.gateway = self.new_gateway(int(self.now * 1000))
        self.plain_members[self.gateway_id] = replace(
            self._plain(self.gateway_id, m.MemberKind.GATEWAY), incarnation=self.gateway.incarnation
        )
        self._beat_plain(self.gateway_id)
        if sleeps_s is not None:
            self.at(sleeps_s, partial(former.wake, sleeps_s))
        for choice_id, prompt in self.prompts.items():
            if choice_id in self.ended:
                continue
            saved = self.delivered[choice_id] = self.delivered[choice_id][
                : max(0, len(self.delivered[choice_id]) - self.rng.randrange(6))
            ]
            record = self.records.get(choice_id)
            epoch = 0 if record is None else record.epoch
            classes = self.token_classes.saved(choice_id, len(saved))
            self.feed_gateway(g.RequestResumed(choice_id, len(prompt), epoch, tuple(saved), numerics_classes=classes))

    def _beat(self, worker: FakeWorker) -> None:
        if not worker.alive:
            return
        if worker.stalled:
            worker.waiting.append(lambda: self._beat(worker))
            return
        load = replace(worker.role.load(), prompt_token_s=worker.prompt_token_s, kv_push_token_s=worker.kv_push_token_s)
        member = replace(worker.member, state=worker.role.state, load=load, leaves_at_s=worker.role.leaves_at_s)
        if worker.registered is None or self.rng.random() < 0.3:
            worker.registered = member
        self.broadcast(member)
        self.at(HEARTBEAT_S, lambda: self._beat(worker))

    def _beat_plain(self, member_id: str) -> None:
        former = self.former.get(member_id)
        if former is not None and not former.is_awake:
            self.at(HEARTBEAT_S, lambda: self._beat_plain(member_id))
            return
        if member_id not in self.paused and (member_id != "scheduler" or self.scheduler_is_up):
            self.broadcast(self.plain_members[member_id])
        self.at(HEARTBEAT_S, lambda: self._beat_plain(member_id))

    def broadcast(self, member: m.Member) -> None:
        if not self.loses(member):
            self.transmit(member.id, "scheduler", lambda: self.feed_scheduler(member))
        if not self.loses(member):
            self.transmit(member.id, self.gateway_id, lambda: self.feed_gateway(member))
        for former in self.former.values():
            self.transmit(member.id, former.id, partial(former.feed, member))
        if self.planners is not None and not self.loses(member):
            self.planners.receive_all(member.id, member)
        if self.market is not None:
            self.market.receive(member.id, member)

    def _tick(self) -> None:
        since, until = self.broker_away
        tick = m.Tick(away_s=TICK_S if since + DEAF_AFTER_S < self.now < until + TICK_S else 0.0)
        for member_id, feed in (("gateway", self.feed_gateway), ("scheduler", self.feed_scheduler)):
            if member_id not in self.paused and (member_id == "gateway" or self.schedulers is None):
                feed(tick)
        for former in self.former.values():
            if former.is_awake:
                former.feed(tick)
        if self.schedulers is not None:
            self.schedulers.tick(tick)
        for worker in list(self.workers.values()):
            if not worker.stalled:
                self.feed_worker(worker, tick)
        if self.planners is not None:
            self.planners.tick(tick)
        if self.market is not None:
            self.market.tick(tick)
        self.at(TICK_S, self._tick)

    def move(self, choice_id: str, epoch: int, source_id: str, target_id: str) -> None:
        """Order a move, as a planner does; one order in ten is delivered twice."""
        order = m.Send(source_id, m.MoveRequest(choice_id, epoch, "planner", target_id))
        for _ in range(self.rng.choice([1] * 9 + [2])):
            self.moves_ordered += 1
            self.send(MeshRole.PLANNER, "planner", order)

    # --- the client ---------------------------------------------------------------------------------------------------

    def request(self, choice_id: str, prompt_tokens: int, max_new_tokens: int) -> None:
        """A client comes, which may give up within `patience_s`; many prompts begin alike."""
        if self.patience_s is not None and self.rng.random() < 0.7:
            self.deadlines[choice_id] = self.now + self.rng.uniform(0.0, self.patience_s)
        family, shared = self.rng.randrange(3), self.rng.randint(0, prompt_tokens)
        own = (self.rng.randrange(2) for _ in range(prompt_tokens - shared))
        self.prompts[choice_id] = (*(10 * family + position for position in range(shared)), *own)
        self.stops[choice_id] = StopCriteria(max_new_tokens)
        self.claims[choice_id] = self.rng.choice([-1, 0, 0, 0, 5]), self.rng.choice(["", "acme", "user:bob"])
        deadline_unix_s = self.deadlines.get(choice_id)
        self.feed_gateway(g.RequestReceived(choice_id, prompt_tokens, max_new_tokens, deadline_unix_s))

    def close(self, choice_id: str) -> None:
        if choice_id not in self.ended:
            self.ended[choice_id] = "closed"
            self.feed_gateway(g.RequestClosed(choice_id))

    def _stall_reader(self, choice_id: str) -> None:
        """A client leaves its tokens lying for a while; now and then for no time at all."""
        self.feed_gateway(g.ReaderStalled(choice_id))
        self.at(self.rng.choice([0.0, 0.05, 1.0, 8.0]), lambda: self.feed_gateway(g.ReaderCaughtUp(choice_id)))

    def tokens(self, choice_id: str, count: int) -> tuple[int, ...]:
        """The first tokens of a request's prompt and right answer."""
        prompt = self.prompts[choice_id]
        return (*prompt, *(expected_token(choice_id, index) for index in range(count - len(prompt))))[:count]

    # --- gateway ------------------------------------------------------------------------------------------------------

    def feed_gateway(self, event: Any) -> None:
        if "gateway" in self.paused:
            self.paused["gateway"].append(lambda: self.feed_gateway(event))
            return
        for command in self.gateway.handle(event, self.now):
            match command:
                case g.SubmitAttempt():
                    self._submit(command)
                case g.CloseAttempts(order):
                    self.records.pop(order.choice_id, None)
                    self.close_attempts(self.gateway_id, order)
                case g.DeleteRecord(choice_id):
                    self.records.pop(choice_id, None)
                case m.Send():
                    self.send(MeshRole.GATEWAY, self.gateway_id, command)
                case g.PublishLoad(report):
                    if self.planners is not None:
                        self.planners.receive_all("gateway", report)
                case g.Deliver(choice_id, tokens, finish_reason):
                    assert choice_id not in self.ended, "delivered after the end"
                    for delta in tokens:
                        assert delta.token_index == len(self.delivered[choice_id])
                        assert delta.token_id == expected_token(choice_id, delta.token_index)
                        self.delivered[choice_id].append(delta.token_id)
                        self.token_classes.delivered(choice_id, delta)
                    if finish_reason is not None:
                        self.ended[choice_id] = finish_reason.value
                    elif self.stalling and self.rng.random() < self.stalling:
                        self.at(self.delay(), partial(self._stall_reader, choice_id))
                case g.ParkAttempts(order):
                    self.close_attempts(self.gateway_id, order)
                case g.CountCrossing(choice_id):
                    self.token_classes.counted[choice_id] += 1
                case m.RecordLedger(entry) if entry.stage == "crossed":
                    self.token_classes.explained[entry.choice_id] += 1
                case m.RecordLedger(entry) if entry.stage == "attempt_lost":
                    self.lost_attempts.append(str(dict(entry.facts)["reason"]))
                case g.Fail(choice_id, code):
                    assert choice_id not in self.ended, "failed after the end"
                    self.ended[choice_id] = code

    def close_attempts(self, gateway_id: str, order: m.CloseRequest) -> None:
        """Send the end of a request's attempts to the scheduler."""
        self.closings += 1
        for _ in range(self.rng.choice([1, 2]) if self.ending_loss else 1):
            if self.loses(order):
                continue
            if self.ending_loss and self.rng.random() < 0.5:
                self.at(self.delay(3.0), lambda: self.feed_scheduler(order))
            else:
                self.transmit(gateway_id, "scheduler", lambda: self.feed_scheduler(order))

    def _submit(self, command: g.SubmitAttempt) -> None:
        self.attempts[command.choice_id] = command.epoch
        self.token_classes.recorded(command)
        committed, prompt = command.output_token_ids, self.prompts[command.choice_id]
        stop = self._size(command.choice_id, len(prompt), len(committed))
        self.records[command.choice_id] = RequestRecord(
            command.choice_id,
            command.epoch,
            self.gateway_id,
            command.attempt_id,
            "model",
            prompt,
            committed,
            SamplingParams(),
            stop,
            self.now,
            *self.claims[command.choice_id],
            deadline_unix_s=self.deadlines.get(command.choice_id),
            numerics_classes=command.numerics_classes,
        )
        stream = m.StreamRef(self.gateway_id, command.attempt_id, self.gateway.incarnation)
        avoid = command.avoid
        tokens, owed = len(prompt) + len(committed), stop.max_new_tokens - len(committed)
        spans = tuple(hash((*prompt, *committed)[:end]) % 2**64 for end in range(BLOCK_SIZE, tokens + 1, BLOCK_SIZE))
        priority, _ = self.claims[command.choice_id]
        deadline = self.deadlines.get(command.choice_id)
        bounds = command.recovering, command.choice_id in self.open_bounds
        order = m.SubmitRequest(
            command.choice_id, command.epoch, stream, tokens, owed, spans, priority, avoid, deadline, *bounds
        )
        order = replace(order, numerics_class=command.numerics_classes[-1] if command.numerics_classes else "")
        if self.submissions_wait_s:
            self.at(self.delay(self.submissions_wait_s), lambda: self._submit_to_scheduler(order))
        else:
            self.transmit(self.gateway_id, "scheduler", lambda: self._submit_to_scheduler(order))

    def _size(self, choice_id: str, prompt_tokens: int, committed: int) -> StopCriteria:
        """Return when an attempt ends: an open bound by the largest worker that the gateway knows."""
        if choice_id in self.open_bounds:
            ready = [each for each in self.gateway.membership.workers() if each.state is m.MemberState.READY]
            most = max((each.load.kv_blocks_total * BLOCK_SIZE for each in ready if each.load is not None), default=0)
            free, bound = most - prompt_tokens - committed, self.open_bounds[choice_id]
            self.stops[choice_id] = StopCriteria(bound if free < 1 else min(bound, committed + free))
        return self.stops[choice_id]

    def _submit_to_scheduler(self, order: m.SubmitRequest) -> None:
        """Submissions are requests: the sender gets an error where no scheduler answers."""
        if self.schedulers is not None:
            self.schedulers.submit(order)
        elif self.scheduler_is_up:
            self.feed_scheduler(order)
        else:
            self.feed_gateway(g.SubmitFailed(order.choice_id, order.epoch, "no scheduler"))

    # --- scheduler ----------------------------------------------------------------------------------------------------

    def feed_scheduler(self, event: Any) -> None:
        if self.schedulers is not None:
            self.schedulers.receive_all(event)
            return
        if not self.scheduler_is_up:
            return
        if "scheduler" in self.paused:
            self.paused["scheduler"].append(lambda: self.feed_scheduler(event))
            return
        for command in self.scheduler.handle(event, self.now):
            if isinstance(command, m.Send):
                self.scheduler_sends[type(event), type(command.message)] += 1
                self.send(MeshRole.SCHEDULER, "scheduler", command)

    def send(self, role: MeshRole, sender: str, command: m.Send) -> None:
        message = command.message
        assert may_send(role, message), f"no {role} may send a {type(message).__name__}: add it to wire/senders.py"
        assert decode(encode(message)) == message, "a role sends what the wire changes, or drops"
        if isinstance(message, REPEATABLE) and self.repeats and self.rng.random() < self.repeats:
            self.at(self.delay(3.0), lambda: self._deliver(sender, command))
        if not self.loses(message):
            self._deliver(sender, command)

    def _deliver(self, sender: str, command: m.Send) -> None:
        recipient, message = command.recipient_id, command.message
        if (former := self.former.get(recipient)) is not None:
            self.transmit(sender, recipient, partial(former.receive, command))
        elif recipient == self.gateway_id:
            self.transmit(sender, recipient, lambda: self._to_gateway(command))
        elif recipient == "scheduler":
            self.transmit(sender, recipient, lambda: self.feed_scheduler(message))
        elif self.schedulers is not None and recipient in self.schedulers.processes:
            self.schedulers.receive(recipient, message)
        elif recipient == "planner":
            assert isinstance(message, m.MoveEnded)
            self.moves_ended.append(message)
        elif self.planners is not None and recipient in self.planners.roles:
            self.transmit(sender, recipient, partial(self.planners.feed, recipient, message))
        elif self.devices is not None and recipient in self.devices.incarnations:
            self.transmit(sender, recipient, partial(self.devices.receive, recipient, message))
        else:
            self.transmit(sender, recipient, lambda: self._to_worker(recipient, message))

    def _to_gateway(self, command: m.Send) -> None:
        """An inbox is one incarnation's: messages meant for the previous one are not delivered."""
        if command.incarnation == self.gateway.incarnation:
            self.feed_gateway(command.message)

    def _to_worker(self, worker_id: str, message: Any) -> None:
        worker = self.workers.get(worker_id)
        if worker is not None and worker.stalled:
            worker.inbox.append(lambda: self.feed_worker(worker, message))
        elif worker is not None:
            self.feed_worker(worker, message)

    # --- workers ------------------------------------------------------------------------------------------------------

    def feed_worker(self, worker: FakeWorker, event: Any) -> None:
        if not worker.alive:
            return
        handle = partial(worker.role.handle, event, self.now)
        for command in handle() if self.schedulers is None else self.schedulers.handled_by(worker, event, handle):
            match command:
                case m.Send():
                    self.token_classes.sent(worker, command.message)
                    self.send(MeshRole.WORKER, worker.member.id, command)
                case c.TakeHomePool(pool):
                    self.homes_changed += 1
                    worker.member = replace(worker.member, pool=pool)
                case c.Leave(failure):
                    self._leave(worker)
                    if failure:
                        self.come_back(worker)
                case _:
                    self._processes.perform(worker, command)

    def _leave(self, worker: FakeWorker) -> None:
        worker.alive = False
        self.retired.append(self.workers.pop(worker.member.id))
        self.broadcast(replace(worker.member, state=m.MemberState.LEFT))
