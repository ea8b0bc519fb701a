"""What tests of the watcher's role share: a role, workers around it, and answers of its cloud."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from spotwise.core.messages.members import Member, MemberKind, MemberState, Pool
from spotwise.core.messages.mesh import InterruptionReported
from spotwise.core.messages.worker import Drain
from spotwise.core.spot import commands as c
from spotwise.core.spot.role import SpotWatcherRole, WatchPolicy
from spotwise.core.spot.signs import MetadataAnswered, Sign

HERE = "machine-0"
POLL_S = 1.0
TIMEOUT_S = 2.0

CommandT = TypeVar("CommandT")


def worker(worker_id: str, host: str = HERE, incarnation: int = 1, state: MemberState = MemberState.READY) -> Member:
    """A token worker."""
    return Member(worker_id, MemberKind.TOKEN_WORKER, incarnation, state, host, 1, "h:1", Pool.TOKEN)


def notice(deadline_s: float | None = None, event_id: str = "e", **fields: object) -> Sign:
    """A sign that the machine must go."""
    return replace(Sign(event_id, "cloud: go", deadline_s), **fields)  # type: ignore[arg-type]


class Watching:
    """A watcher's role under a clock that the test moves; every command that it gave."""

    def __init__(self, watcher_id: str = "watcher-0", **policy: object) -> None:
        self.role = SpotWatcherRole(watcher_id, WatchPolicy(HERE, member_timeout_s=TIMEOUT_S, **policy))  # type: ignore[arg-type]
        self.now = 1000.0
        self.given: list[c.SpotWatcherCommand] = []

    def feed(self, event: c.SpotWatcherEvent, after_s: float = 0.0) -> list[c.SpotWatcherCommand]:
        """Advance the clock and feed an event; return the role's commands."""
        self.now += after_s
        commands = self.role.handle(event, self.now)
        self.given += commands
        return commands

    def start(self, *workers: Member) -> None:
        """Start the watcher with these workers and a cloud."""
        for member in workers:
            self.feed(member)
        self.feed(c.WatchStarted("a-cloud", POLL_S))

    def answer(self, *signs: Sign, problem: str | None = None, after_s: float = POLL_S) -> list[c.SpotWatcherCommand]:
        """The cloud answers."""
        return self.feed(MetadataAnswered(signs, problem), after_s)

    def beat_itself(self) -> None:
        """Feed the watcher its own heartbeat."""
        watcher = replace(worker(self.role.watcher_id), kind=MemberKind.SPOT_WATCHER)
        self.feed(watcher)


def of(commands: list[c.SpotWatcherCommand], wanted: type[CommandT]) -> list[CommandT]:
    """Return the commands of the given type."""
    return [command for command in commands if isinstance(command, wanted)]


def notices(commands: list[c.SpotWatcherCommand]) -> list[tuple[str, float]]:
    """Return the worker and the deadline of each published notice."""
    return [(each.notice.worker_id, each.notice.deadline_s) for each in of(commands, c.PublishNotice)]


def reports(commands: list[c.SpotWatcherCommand]) -> list[InterruptionReported]:
    """Return the reports to the planner."""
    return [each.report for each in of(commands, c.PublishReport)]


def left(member: Member) -> Member:
    """Return the worker's goodbye."""
    return replace(member, state=MemberState.LEFT)


def draining(member: Member) -> Member:
    """Feed that the worker is draining."""
    return replace(member, state=MemberState.DRAINING)


DRAIN = Drain("w", 1030.0, "spotwise drain")
