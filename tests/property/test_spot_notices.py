"""Laws of the spot watcher under any order of answers, heartbeats, goodbyes, silences and restarts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.core.messages.mesh import InterruptionKind, Tick
from spotwise.core.messages.worker import Drain
from spotwise.core.spot import commands as c
from spotwise.core.spot.role import SpotWatcherRole, WatchPolicy
from spotwise.core.spot.signs import MetadataAnswered, Sign

HERE = "here"
POLL_S, BACKOFF_S, TIMEOUT_S = 1.0, 8.0, 2.0
WORKERS = ("a", "b", "c")
START_S = 1000.0


@dataclass(frozen=True)
class Life:
    """Something a worker does: `None` for the state is silence, which needs no event."""

    worker_id: str
    state: MemberState
    restarts: bool


SIGNS = st.builds(
    Sign,
    st.sampled_from(("e", "f", "g")),
    st.just("cloud: go"),
    st.none() | st.floats(START_S - 100, START_S + 300),
    st.sampled_from((0.0, 30.0)),
    st.booleans(),
    st.booleans(),
)
ANSWERS = st.builds(
    MetadataAnswered,
    st.lists(SIGNS, max_size=3).map(tuple),
    st.none() | st.sampled_from(("no connection", "status 500")),
)
LIVES = st.builds(Life, st.sampled_from(WORKERS), st.sampled_from(MemberState), st.booleans())
EVENTS = st.lists(
    st.tuples(
        st.sampled_from((0.0, 0.1, 0.5, 1.5, 3.0)),
        ANSWERS | LIVES | st.just(Tick()) | st.just("itself") | st.sampled_from((None, "status 500")),
    ),
    max_size=40,
)


class World:
    """The role, and a book of what is true that is kept apart from it."""

    def __init__(self) -> None:
        self.role = SpotWatcherRole("watcher", WatchPolicy(HERE, backoff_s=BACKOFF_S, member_timeout_s=TIMEOUT_S))
        self.now = START_S
        self.incarnations = dict.fromkeys(WORKERS, 1)
        #: Of workers that are there, by their last heartbeat, and when that was.
        self.here: dict[str, tuple[Member, float]] = {}
        #: Deadlines that an incarnation received while a notice is in force, in order.
        self.notified: dict[tuple[str, int], list[float]] = {}
        self.goodbyes: set[tuple[str, int]] = set()
        self.questions = 0
        self.polled_s = START_S
        self.answers = 0
        self.journal: list[tuple[c.SpotWatcherEvent, float, list[c.SpotWatcherCommand]]] = []
        self.queue_state: set[str] = set()
        self.acknowledged: list[str] = []

    def feed(self, event: c.SpotWatcherEvent) -> list[c.SpotWatcherCommand]:
        commands = self.role.handle(event, self.now)
        self.journal.append((event, self.now, commands))
        for command in commands:
            if isinstance(command, c.AskCloud):
                self.questions += 1
                self.polled_s = command.at_s
                assert self.now <= command.at_s <= self.now + max(POLL_S, BACKOFF_S)
            elif isinstance(command, c.PublishNotice):
                self._notified(command)
            elif isinstance(command, c.AcknowledgeEvent):
                self._acknowledge(command.event_id)
        return commands

    def _notified(self, command: c.PublishNotice) -> None:
        notice = command.notice
        member, _ = self.here[notice.worker_id]
        assert member.host == HERE
        assert member.state in (MemberState.READY, MemberState.DRAINING)
        before = self.notified.setdefault((member.id, member.incarnation), [])
        if command.again:
            assert member.state is MemberState.READY
            assert notice.deadline_s == before[-1]
        else:
            assert not before or notice.deadline_s < before[-1]
        before.append(notice.deadline_s)

    def _acknowledge(self, event_id: str) -> None:
        assert all(member.host != HERE for member, _ in self.here.values())
        assert self.notified
        for worker_id, incarnation in self.notified:
            # A newer life of the same id has ended this one.
            assert any(gone_id == worker_id and gone >= incarnation for gone_id, gone in self.goodbyes)
        assert event_id in self.queue_state
        self.acknowledged.append(event_id)

    def answer(self, answer: MetadataAnswered) -> None:
        self.answers += 1
        self.now = max(self.now, self.polled_s)  # no answer comes before its question
        held = {sign.event_id for sign in answer.signs}
        gone = self.queue_state - held if answer.problem is None else set()
        self.queue_state = (self.queue_state - gone) | held
        commands = self.feed(answer)
        reported = [each.report for each in commands if isinstance(each, c.PublishReport)]
        withdrawn = {each.event_id for each in reported if each.kind is InterruptionKind.WITHDRAWN}
        assert withdrawn == gone
        if self.role._signs.notice() is None:
            self.notified.clear()

    def live(self, life: Life) -> None:
        if life.restarts:
            self.incarnations[life.worker_id] += 1
        incarnation = self.incarnations[life.worker_id]
        host = "elsewhere" if life.worker_id == "c" else HERE
        member = Member(life.worker_id, MemberKind.TOKEN_WORKER, incarnation, life.state, host, 1, "h:1")
        if life.state in (MemberState.LEFT, MemberState.LOST):
            self.here.pop(life.worker_id, None)
            if life.state is MemberState.LEFT:  # a lost worker has not sent a goodbye
                self.goodbyes.add((life.worker_id, incarnation))
        else:
            self.here[life.worker_id] = (member, self.now)
        self.feed(member)

    def expire(self) -> None:
        for worker_id, (_, reported_s) in list(self.here.items()):
            if self.now - reported_s > TIMEOUT_S:
                del self.here[worker_id]

    def check_every_worker_is_notified(self) -> None:
        """While a notice is in force every ready worker of this machine knows its deadline, or an earlier one."""
        found = self.role._signs.notice()
        for member, _ in self.here.values():
            if found is not None and member.host == HERE and member.state is MemberState.READY:
                assert self.notified[member.id, member.incarnation][-1] <= found[0]


def run(events: list[tuple[float, object]]) -> World:
    """Feed everything and check what must hold after each event."""
    world = World()
    world.feed(c.WatchStarted("a-cloud", POLL_S))
    for after_s, event in events:
        world.now += after_s
        if isinstance(event, MetadataAnswered):
            world.answer(event)
        elif isinstance(event, Life):
            world.live(event)
        elif isinstance(event, Tick):
            world.expire()
            world.feed(event)
        elif event == "itself":
            world.feed(Member("watcher", MemberKind.SPOT_WATCHER, 1, MemberState.READY, HERE, 1, "h:1"))
        elif world.acknowledged:
            world.feed(c.AcknowledgementAnswered(world.acknowledged[-1], event))  # type: ignore[arg-type]
        world.check_every_worker_is_notified()
        assert world.questions == world.answers + 1  # one at a time, and always one
    return world


@given(EVENTS)
@settings(max_examples=150)
def test_notices_questions_and_leave_keep_the_law(events: list[tuple[float, object]]) -> None:
    """Deadlines only fall, no worker is left out, nothing is released too early, and there is one query at a time."""
    run(events)


@given(EVENTS)
@settings(max_examples=50)
def test_the_same_events_give_the_same_commands(events: list[tuple[float, object]]) -> None:
    world = run(events)
    again = SpotWatcherRole("watcher", WatchPolicy(HERE, backoff_s=BACKOFF_S, member_timeout_s=TIMEOUT_S))
    assert [again.handle(event, now) for event, now, _ in world.journal] == [given for _, _, given in world.journal]


@given(EVENTS, ANSWERS)
@settings(max_examples=50)
def test_a_repeated_answer_sends_nothing(events: list[tuple[float, object]], answer: MetadataAnswered) -> None:
    """The same answer at the same moment produces no message to workers, only the next query."""
    world = run(events)
    world.answer(answer)
    world.now = world.polled_s
    for worker_id, (member, _) in list(world.here.items()):
        world.feed(member)  # workers that had not received it get it again, and not because of the answer
        assert world.here[worker_id][0] is member
    assert {type(command) for command in world.feed(answer)} <= {c.AskCloud}


@given(EVENTS, st.sampled_from(WORKERS), st.floats(START_S, START_S + 100))
@settings(max_examples=50)
def test_an_operator_is_always_answered(events: list[tuple[float, object]], worker_id: str, deadline_s: float) -> None:
    """Once; and the notice is the order, where the worker is known."""
    world = run(events)
    order = Drain(worker_id, deadline_s, "spotwise drain")
    commands = world.role.handle(order, world.now)
    answers = [each.reply for each in commands if isinstance(each, c.AnswerOperator)]
    assert [answer.accepted for answer in answers] == [worker_id in world.here]
    assert [each.notice for each in commands if isinstance(each, c.PublishNotice)] == [order] * answers[0].accepted


def test_a_leave_happens_in_these_worlds() -> None:
    """The laws above are about something: this order of events gives the machine back."""
    sign = Sign("e", "cloud: go", START_S + 60, acknowledgeable=True)
    ready = Life("a", MemberState.READY, False)
    events: list[tuple[float, object]] = [
        (0.1, ready),
        (0.1, MetadataAnswered((sign,))),
        (0.1, Life("a", MemberState.LEFT, False)),
        (0.5, "status 500"),
        (0.5, MetadataAnswered((replace(sign, deadline_s=START_S + 30),))),
    ]
    world = run(events)
    assert world.acknowledged == ["e", "e"]
