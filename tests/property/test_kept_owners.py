"""What holds of a kept request, however its gateways, clients and timers interleave: one ending, and an owner until then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from hypothesis import event, given, settings
from hypothesis import strategies as st

from spotwise.core.gateway import keeping as k
from spotwise.core.gateway.kept_request import CANCELLED, FINISHED, KeptEnding, owner_of, turn_of

GATEWAYS = ("g0", "g1", "g2")


@dataclass
class Store:
    """Knows one owner of the request at a time, and its ending."""

    owner: str = owner_of("g0")
    ending: KeptEnding | None = None
    endings: list[k.Turn] = field(default_factory=list)

    def take(self, process: str) -> k.Turn | None:
        """Make a process the owner of a request that has not ended."""
        if self.ending is not None:
            return None
        self.owner = owner_of(process, turn_of(self.owner) + 1)
        return k.Turn("r", self.owner)

    def end(self, turn: k.Turn, ending: KeptEnding) -> bool:
        """Take an ending of the owner's."""
        if turn.owner != self.owner:
            return False
        assert self.ending is None
        self.ending = ending
        self.endings.append(turn)
        return True


class Gateway:
    """Performs a role's commands, each of its store's and its mesh's answers at any time later: `later` keeps them."""

    def __init__(self, name: str, store: Store, later: list[Callable[[], None]]) -> None:
        self.name = name
        self.role = k.KeepingRole(30.0, 600.0)
        self.running: set[k.Turn] = set()
        self.is_leaving = False
        self._store = store
        self._later = later

    def own(self, turn: k.Turn, *, is_resumable: bool) -> None:
        """Begin, after what reads the tokens that are kept."""
        self.running.add(turn)
        self.feed(k.RequestOwned(turn, is_resumable))
        if not self.role.owns(turn):
            self.running.discard(turn)

    def feed(self, happened: k.KeepingEvent) -> None:
        """Handle an event."""
        for command in self.role.handle(happened, 0.0):
            turn = command.turn
            match command:
                case k.AwaitReader(_, wait):
                    self._later.append(partial(self.feed, k.WaitEnded(turn, wait)))
                case k.CancelChoices():
                    self._later.append(partial(self.end_choices, turn, CANCELLED))
                case k.StepDown():
                    self.running.discard(turn)
                case k.StoreEnding(_, ending):
                    assert turn not in self.running, "an ending before the last tokens"
                    self._later.append(partial(self._end, turn, ending))

    def end_choices(self, turn: k.Turn, ending: KeptEnding) -> None:
        """End a turn's choices, where they run."""
        if turn in self.running:
            self.running.discard(turn)
            self.feed(k.ChoicesEnded(turn, ending, self.is_leaving))

    def _end(self, turn: k.Turn, ending: KeptEnding) -> None:
        is_owner = self._store.end(turn, ending)
        self.feed(k.EndingStored(turn) if is_owner else k.RequestLost(turn))


@dataclass
class Case:
    """Three gateways, the first of which has the request."""

    is_resumable: bool
    store: Store = field(default_factory=Store)
    later: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gateways = {name: Gateway(name, self.store, self.later) for name in GATEWAYS}
        self.own("g0", k.Turn("r", self.store.owner))

    def own(self, name: str, turn: k.Turn) -> None:
        """Let a gateway go on with a request that it has taken."""
        self.gateways[name].own(turn, is_resumable=self.is_resumable)

    def act(self, name: str, action: str) -> None:
        """Let something happen at a gateway."""
        gateway = self.gateways[name]
        turn = gateway.role.turn_of("r")
        if action == "take":
            if (taken := self.store.take(name)) is not None:
                if turn is not None:
                    gateway.feed(k.RequestLost(turn))
                self.later.append(partial(self.own, name, taken))
        elif turn is None:
            return
        elif action == "finish":
            gateway.end_choices(turn, FINISHED)
        elif action == "leave" and turn in gateway.running:
            gateway.is_leaving = True
            gateway.feed(k.ReaderLeft(turn)) if not self.is_resumable else None
            gateway.end_choices(turn, CANCELLED)
        elif action == "break" and not self.is_resumable and turn in gateway.running:
            gateway.feed(k.ReaderLeft(turn))
            gateway.end_choices(turn, CANCELLED)
        elif action == "read" and self.is_resumable:
            gateway.feed(k.ReaderJoined(turn))
            self.later.append(partial(gateway.feed, k.ReaderLeft(turn)))
        elif action == "cancel" and gateway.role.can_join(turn):
            gateway.feed(k.CancelRequested(turn))


@settings(max_examples=300)
@given(
    st.booleans(),
    st.lists(
        st.one_of(
            st.tuples(
                st.sampled_from(GATEWAYS), st.sampled_from(["take", "finish", "leave", "break", "read", "cancel"])
            ),
            st.integers(0, 30),
        ),
        max_size=40,
    ),
)
def test_a_request_has_one_ending_and_its_owner_stores_it(
    is_resumable: bool, actions: list[tuple[str, str] | int]
) -> None:
    """Take-overs, readers, timers and endings in any order: a later owner's request is ended by that owner alone, no gateway
    runs a turn that it does not own, and what no gateway handed on ends.
    """
    case = Case(is_resumable)
    for each in actions:
        if isinstance(each, int):
            if case.later:
                case.later.pop(each % len(case.later))()
        else:
            case.act(*each)
        for gateway in case.gateways.values():
            assert all(gateway.role.owns(turn) for turn in gateway.running)
            assert len(gateway.running) <= 1
    while case.later:
        case.later.pop(0)()
    for name in GATEWAYS:  # what runs ends, and what another gateway has taken is refused
        case.act(name, "finish")
    while case.later:
        case.later.pop(0)()
    assert all(gateway.role.turn_of("r") is None for gateway in case.gateways.values())
    handed_on = any(gateway.is_leaving for gateway in case.gateways.values())
    assert len(case.store.endings) == 1 or handed_on
    assert case.store.ending is None or case.store.endings[0].owner == case.store.owner
    event(f"ended: {case.store.ending is not None}, turns: {turn_of(case.store.owner)}")
