"""A role's events and commands, written and replayed."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import make_dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from spotwise.core.costs.batching import Batch, BatchLimits
from spotwise.core.costs.cost_model import LinearIterationCost, PiecewiseLinear, TableIterationCost
from spotwise.core.gateway import commands as g
from spotwise.core.gateway import keeping as k
from spotwise.core.gateway.kept_request import KeptEnding
from spotwise.core.gateway.role import GatewayRole
from spotwise.core.kv.blocks import BlockPool
from spotwise.core.kv.swap import SwapPolicy, WhenFull
from spotwise.core.messages import mesh as m
from spotwise.core.requests.record import KvTarget
from spotwise.core.requests.request import FinishReason
from spotwise.core.scheduler.role import SchedulerLimits, SchedulerRole
from spotwise.core.worker import commands as c
from spotwise.core.worker.policy import Scheduling, WorkerPolicy
from spotwise.core.worker.role import WorkerRole
from spotwise.core.worker.scheduling.mlfq import MlfqPolicy
from spotwise.mesh.replay.journal_replay import (
    COLUMNS,
    JournalError,
    RecordedRequest,
    Replay,
    find_journals,
    recorded_requests,
    replay,
    write_requests,
)
from spotwise.mesh.service.journal import FORMAT, SUFFIX, Journal, make_role, vocabulary_of
from spotwise.mesh.service.role_loop import RoleLoop
from tests.fakes.memory import FakeClock
from tests.property.timeline import BLOCK_SIZE, Arrival, Timeline
from tests.unit.core.builders import worker_member
from tests.unit.core.worker.bench import WorkerBench

STREAM = m.StreamRef("g", 4)


def member(member_id: str, kind: m.MemberKind = m.MemberKind.CLUSTER_SCHEDULER) -> m.Member:
    return m.Member(member_id, kind, 7, m.MemberState.STARTING, "host", 1, "host:1")


class Recorder:
    """A role whose loop is fed by the test, with its journal."""

    def __init__(self, folder: Path, of: m.Member, role_type: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.clock = FakeClock()
        self.role, journal = make_role(folder, of, role_type, *args, **kwargs)
        assert journal is not None
        self.journal = journal
        nothing: dict[type, Callable[[Any], None]] = dict.fromkeys(
            [
                m.Send,
                m.RecordLedger,
                *g.GatewayCommand.__args__,
                *k.KeepingCommand.__args__,
                *c.WorkerCommand.__args__,
            ],
            lambda command: None,
        )
        self.loop = RoleLoop(self.role, self.clock, nothing, self.journal)

    def feed(self, *events: Any) -> None:
        for event in events:
            self.clock.advance(0.1)
            self.loop.feed(event)


def scheduler_journal(folder: Path) -> Recorder:
    recorder = Recorder(folder, member("s"), SchedulerRole, "s", SchedulerLimits(max_queued=5), first_assignment=40)
    target = KvTarget("t", 1, "t:2", (0, 1))
    recorder.feed(
        worker_member("p", m.Pool.PROMPT),
        worker_member("t"),
        m.SubmitRequest("a", 1, STREAM, 30, 5),
        m.KvReserved("a", 1, 40, target),
        m.SubmitRequest("b", 1, STREAM, 30, 10_000),
        m.CloseRequest("a", 1, finished=True),
        m.Tick(),
    )
    return recorder


def replayed(folder: Path, journal: Journal) -> Replay:
    journal.close()
    (source,) = find_journals(folder)
    done = replay(source)
    assert done.difference is None
    return done


def rewritten(path: Path, change: Callable[[list[Any]], None]) -> None:
    header, *lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    entries = [json.loads(line) for line in lines]
    change(entries)
    path.write_bytes(gzip.compress("\n".join([header, *map(json.dumps, entries), ""]).encode()))


def test_a_scheduler_decides_again_what_it_decided(tmp_path: Path) -> None:
    scheduler_journal(tmp_path).journal.close()
    (source,) = find_journals(tmp_path)
    assert (source.role, source.member_id, source.incarnation) == ("SchedulerRole", "s", 7)
    assert source.parameters["first_assignment"] == 40
    done = replay(source)
    assert done.difference is None
    assert (done.events, done.commands) == (7, 6)
    assert {name: len(seconds) for name, seconds in done.decision_s.items()} == {
        "Member": 2,
        "SubmitRequest": 2,
        "KvReserved": 1,
        "CloseRequest": 1,
        "Tick": 1,
    }


def test_a_worker_decides_again_what_it_decided(tmp_path: Path) -> None:
    policy = WorkerPolicy(context_parity=math.inf)
    of = member("w", m.MemberKind.TOKEN_WORKER)
    recorder = Recorder(tmp_path, of, WorkerRole, "w", 9, "w:2", BlockPool(20, 16), policy)
    bench = WorkerBench()

    def feed(event: Any, after_s: float = 0.0) -> list[Any]:
        """Feed the role and the journal."""
        recorder.feed(event)
        return []

    bench.feed = feed  # type: ignore[method-assign]
    bench.prefill("a")
    bench.reserve("b")
    bench.load("b")
    recorder.feed(m.Tick(), m.CancelRequest("a", 1), m.Drain("w", recorder.clock.now() + 1, "spot"), m.Tick())
    done = replayed(tmp_path, recorder.journal)
    assert done.events == 8
    assert done.commands == 7


def test_the_owner_of_kept_requests_decides_again_what_it_decided(tmp_path: Path) -> None:
    """From its take-over of another gateway's request to the end that the store refuses."""
    recorder = Recorder(tmp_path, member("g", m.MemberKind.GATEWAY), k.KeepingRole, 30.0, 600.0)
    turn, ending = k.Turn("r", "1 g/7"), KeptEnding("failed", 503, "mesh_full", "All workers are full.")
    recorder.feed(
        k.RequestOwned(turn, is_resumable=True),
        k.ReaderJoined(turn),
        k.ReaderLeft(turn),
        k.WaitEnded(turn, 1),
        k.ChoicesEnded(turn, ending),
        k.RequestLost(turn),
    )
    done = replayed(tmp_path, recorder.journal)
    assert (done.events, done.commands) == (6, 5)


class Moves:
    """Moves of KV that take a while; what is in the blocks does not matter here."""

    def begin(self, move: c.SwapOut | c.SwapIn, timeline: Timeline) -> None:
        timeline.at(timeline.tick + 3, lambda: timeline.feed(c.Swapped(move.sequence_id)))

    def compute(self, batch: Batch, prompts: Mapping[str, tuple[int, ...]]) -> None:
        pass

    def arrive(self, name: str, prompt: tuple[int, ...], block_ids: tuple[int, ...]) -> None:
        pass


class Journaled:
    """A role whose journal is written as by its loop."""

    def __init__(self, role: WorkerRole, journal: Journal) -> None:
        self._role, self._journal = role, journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._role, name)

    def handle(self, event: c.WorkerEvent, now: float) -> list[c.WorkerCommand]:
        commands = self._role.handle(event, now)
        self._journal.note(event, now, commands, None)
        return commands


@pytest.mark.parametrize(
    "cost",
    [
        LinearIterationCost(0.4, 0.1, 0.0, 0.0, 0.0),
        TableIterationCost(PiecewiseLinear((1, 10), (0.5, 1.4)), PiecewiseLinear((1, 9), (0.4, 0.4))),
    ],
    ids=["linear", "table"],
)
def test_a_worker_with_queues_swaps_again_what_it_swapped(
    tmp_path: Path, cost: LinearIterationCost | TableIterationCost
) -> None:
    """The replay makes queues, costs and host blocks anew."""
    mlfq = MlfqPolicy(0.4, 2.0, 6, 3.0)
    swap = SwapPolicy(WhenFull.PROACTIVE, 1, 1)
    policy = WorkerPolicy(
        BatchLimits(2, 30), scheduling=Scheduling.MLFQ, mlfq=mlfq, cost=cost, swap=swap, counted_steps=1
    )
    host = BlockPool(40, BLOCK_SIZE)
    timeline = Timeline(20, policy, host=host, swaps=Moves())
    of = member("w", m.MemberKind.TOKEN_WORKER)
    role, journal = make_role(tmp_path, of, WorkerRole, "w", 1, "w:2", timeline.pool, policy, host=host)
    assert journal is not None
    timeline.role = Journaled(role, journal)  # type: ignore[assignment]
    for number in range(10):
        kind = ("in_place", "decode", "hand_off")[number % 3]
        arrival = Arrival(kind, 6 + number, 12 + 3 * number, 0, 1, 4, None)
        timeline.at(5 * number, partial(timeline.arrive, f"r{number}", arrival))
    timeline.run(until=1_000_000)
    assert timeline.live == {}
    done = replayed(tmp_path, journal)
    moved = sum(isinstance(command, c.SwapOut | c.SwapIn) for _, command in timeline.commands)
    assert len(done.decision_s["Swapped"]) == moved > 4


def test_what_a_role_raised_is_in_its_journal(tmp_path: Path) -> None:
    recorder = scheduler_journal(tmp_path)
    with capture_logs():
        recorder.feed(m.RequestAccepted("a", 1), m.Tick())  # no event of a scheduler: a bug, which is logged
    recorder.journal.close()
    (source,) = find_journals(tmp_path)
    entries = list(source.entries())
    assert [entry.error for entry in entries[-2:]] == ["KeyError", None]
    with pytest.raises(JournalError, match="line 9: no RequestAccepted"):
        replay(source)


def change_target(entries: list[Any]) -> None:
    """Another worker than the one that was chosen."""
    entries[3][3][0][1] = "x"


def lose_command(entries: list[Any]) -> None:
    """One command less than there were."""
    entries[3][3].pop()


def lose_event(entries: list[Any]) -> None:
    """An event that others depend on."""
    del entries[1]


def later(entries: list[Any]) -> None:
    """Another time, in what was written of it then."""
    entries[3][0] += 1.0


@pytest.mark.parametrize(
    ("change", "line", "command"), [(change_target, 5, 0), (lose_command, 5, 2), (lose_event, 3, 1), (later, 5, 2)]
)
def test_a_changed_journal_is_noticed(
    tmp_path: Path, change: Callable[[list[Any]], None], line: int, command: int
) -> None:
    scheduler_journal(tmp_path).journal.close()
    rewritten(next(tmp_path.glob(f"*{SUFFIX}")), change)
    difference = replay(find_journals(tmp_path)[0]).difference
    assert difference is not None
    assert (difference.entry.number, difference.index) == (line, command)
    assert difference.recorded != difference.replayed


def test_a_killed_process_leaves_what_was_flushed(tmp_path: Path) -> None:
    """A file without an end is read as far as it goes; a second's events at most are missing."""
    recorder = scheduler_journal(tmp_path)
    recorder.clock.advance(2.0)
    recorder.feed(m.Tick())
    (source,) = find_journals(tmp_path)
    assert replay(source).events == 8
    path = next(tmp_path.glob(f"*{SUFFIX}"))
    path.write_bytes(path.read_bytes()[:-20])
    done = replay(find_journals(tmp_path)[0])
    assert 0 < done.events < 8
    assert done.difference is None
    recorder.journal.close()
    recorder.journal.close()


def test_what_is_no_journal_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="holds no journals"):
        find_journals(tmp_path)
    path = tmp_path / f"x{SUFFIX}"
    path.write_bytes(b"text")
    with pytest.raises(JournalError, match="cannot be read"):
        find_journals(tmp_path)
    path.write_bytes(gzip.compress(b"{}\n"))
    with pytest.raises(JournalError, match="is no journal"):
        find_journals(tmp_path)
    path.write_bytes(gzip.compress(b'{"format": "other"}\n'))
    with pytest.raises(JournalError, match="format"):
        find_journals(tmp_path)
    header = {"format": FORMAT, "role": "Poet", "member_id": "x", "incarnation": 1, "parameters": {}}
    path.write_bytes(gzip.compress(json.dumps(header).encode() + b"\nnot json\n"))
    (source,) = find_journals(tmp_path)
    with pytest.raises(JournalError, match="line 2"):
        list(source.entries())
    with pytest.raises(JournalError, match="a Poet cannot be made"):
        replay(source)


def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    """Its events or commands have other names or fields: what is missing would be read as a default."""
    scheduler_journal(tmp_path).journal.close()
    (path,) = tmp_path.glob(f"*{SUFFIX}")
    header, rest = gzip.decompress(path.read_bytes()).split(b"\n", 1)
    fields = json.loads(header)
    path.write_bytes(gzip.compress(json.dumps(fields | {"vocabulary": "other"}).encode() + b"\n" + rest))
    with pytest.raises(JournalError, match="commands of a SchedulerRole have changed; replay it with its own version"):
        find_journals(tmp_path)


def test_every_name_of_events_and_commands_is_in_the_vocabulary() -> None:
    """Types, fields, their types, and members of enums, of what a field holds as well."""

    def vocabulary(event: Any, command: Any) -> str:
        def handle(self: Any, event: Any, now: float) -> Any: ...

        handle.__annotations__ = {"event": event | m.Tick, "return": list[command | m.Send]}
        return vocabulary_of(type("Role", (), {"handle": handle}))

    def holding(name: str, field: str, *members: str) -> Any:
        part = make_dataclass("Part", [("colour", Enum("Colour", members))])  # type: ignore[misc]
        return make_dataclass(name, [(field, tuple[part, ...])])  # type: ignore[valid-type]

    began, ended = holding("Began", "parts", "RED"), make_dataclass("Ended", [])
    assert vocabulary(began, ended) == vocabulary(holding("Began", "parts", "RED"), ended)
    changed = (
        vocabulary(holding("Begun", "parts", "RED"), ended),
        vocabulary(holding("Began", "pieces", "RED"), ended),
        vocabulary(holding("Began", "parts", "RED", "BLUE"), ended),
        vocabulary(make_dataclass("Began", [("parts", int)]), ended),
        vocabulary(began, make_dataclass("Ended", [("at_s", float)])),
    )
    assert len({vocabulary(began, ended), *changed}) == 6


def test_a_full_disk_ends_the_journal_and_not_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = scheduler_journal(tmp_path)

    def full(self: object, data: bytes) -> int:
        raise OSError("no space left")

    monkeypatch.setattr(gzip.GzipFile, "write", full)
    with capture_logs() as logs:
        recorder.feed(m.Tick(), m.Tick())
    assert [each["event"] for each in logs] == ["journal_ended"]


def test_a_gateways_journal_has_its_requests(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, member("g", m.MemberKind.GATEWAY), GatewayRole, "g")
    recorder.feed(g.RequestReceived("a", 30, 2), g.RequestReceived("open", 9, 2), g.RequestReceived("gone", 9, 2))
    arrived_s = recorder.clock.now() - 0.2
    recorder.feed(g.RequestClosed("gone"))
    for index in range(2):
        reason = FinishReason.LENGTH if index else None
        recorder.feed(m.TokenBatch("t", (m.TokenDelta(1, index, 5, reason),)))
    recorder.journal.close()
    journals = find_journals(tmp_path)
    assert replay(journals[0]).difference is None
    (request,) = recorded_requests(journals)
    approx: Any = pytest.approx
    assert request == RecordedRequest(approx(arrived_s), 30, 2, approx(0.4), approx(0.1), approx(0.5))
    path = tmp_path / "requests.csv"
    write_requests([request, RecordedRequest(2.0, 1, 1, 0.25, None, 0.25)], path)
    lines = path.read_text().splitlines()
    assert lines[0].split(",") == list(COLUMNS)
    assert lines[1].endswith(",30,2,0.400000,0.100000,0.500000")
    assert lines[2] == "1970-01-01 00:00:02.000000,1,1,0.250000,,0.250000"


def test_a_journal_is_its_owners_alone(tmp_path: Path) -> None:
    """The journal holds prompts, so it and a folder made for it are private."""
    _, journal = make_role(tmp_path / "journals", member("s"), SchedulerRole, "s", SchedulerLimits())
    assert journal is not None
    journal.close()
    [path] = (tmp_path / "journals").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
