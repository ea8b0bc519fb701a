"""`spotwise reshape`, with a planner that answers over the in-memory mesh."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from rich.console import Console

from spotwise.cli import reshape as command
from spotwise.cli.errors import CommandError, OptionError
from spotwise.cli.reshape import parse_shape, reshape_mesh
from spotwise.cli.reshape_view import ReshapeProgress
from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import Pool
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.planner.plan import Plan, PlannedDeployment, ReshapeStage
from spotwise.mesh.ports.ports import BusMessage
from spotwise.wire import subjects
from spotwise.wire.codec import encode
from tests.contracts.waiting import until
from tests.fakes.memory import MemoryBroker, MemoryBus, MemoryStore
from tests.unit.cli.command_line import RefusalOf
from tests.unit.core.builders import worker_member
from tests.unit.migration_planner.test_planner import planning
from tests.unit.migration_planner.test_reshape import two_devices

OLD = m.DeviceGroup("mixed-0", Pool.MIXED, 1, 2, ("d0", "d1"))
NEW = m.DeviceGroup("mixed-c7-0", Pool.MIXED, 2, 1, ("d0", "d1"))
FORMING = PlannedDeployment(7, "1,2,1", ReshapeStage.FORMING, (NEW,), ("mixed-c7-0",), (OLD,), 100.0, 160.0)
MOVING = replace(FORMING, stage=ReshapeStage.MOVING, moved=2, given_back=1)
ORDER = m.ReshapeMesh(ParallelConfig(1, 2, 1))


class Screen:
    def __init__(self, *, terminal: bool = False) -> None:
        self._written = io.StringIO()
        self.console = Console(file=self._written, width=160, force_terminal=terminal, highlight=False)

    @property
    def text(self) -> str:
        return self._written.getvalue()


@asynccontextmanager
async def answering(reply: m.Message | None) -> AsyncIterator[MemoryBus]:
    """A bus on which a planner gives this answer, or none."""
    bus = MemoryBus(MemoryBroker())

    async def answer(raw: BusMessage) -> None:
        assert raw.respond is not None
        if reply is not None:
            await raw.respond(encode(reply))

    await bus.subscribe(subjects.RESHAPE, answer)
    yield bus


async def stored(deployment: PlannedDeployment | None) -> MemoryStore:
    store = MemoryStore()
    await store.hold_term(subjects.PLANNER, "planner/1", 1, 60.0)
    assert await store.put_plan("planner/1", Plan(1, 7, 1, deployment=deployment))
    return store


@pytest.mark.parametrize("terminal", [False, True], ids=["lines", "terminal"])
async def test_a_re_shape_is_shown_from_its_plan_to_its_summary(terminal: bool) -> None:
    """With the real planner, and devices that do what they are told."""
    broker, store, screen = MemoryBroker(), MemoryStore(), Screen(terminal=terminal)
    async with two_devices(broker) as (_, bus), planning(broker, store) as planner:
        await until(lambda: planner.term > 0)
        await asyncio.sleep(0.3)  # for the first heartbeats
        await reshape_mesh(bus, store, ORDER, screen.console, 30.0)
    for words in ("1 group is formed", "mixed-c1-0", "2 x 1", "d0, d1", "retires", "weights that stay", "pause"):
        assert words in screen.text
    assert "re-shaped to 1,2,1 in" in screen.text
    assert "0 requests moved, 0 given back" in screen.text


async def test_a_dry_run_shows_the_plan_and_ends() -> None:
    prediction = m.PredictedReshape((NEW,), ("mixed-c7-0",), ("mixed-0",), 3 << 20, 1 << 20, 0.5, 0.05)
    screen = Screen()
    async with answering(m.ReshapeReply(True, "1,2,1: planned", 0, prediction)) as bus:
        await reshape_mesh(bus, MemoryStore(), replace(ORDER, dry_run=True), screen.console, 1.0)
    for words in ("3.0 MiB", "1.0 MiB", "500 ms", "50 ms", "nothing was changed"):
        assert words in screen.text


@pytest.mark.parametrize(
    ("reply", "deployment", "words"),
    [
        (m.ReshapeReply(False, "1,2,1 needs 2 devices"), None, "not re-shaped: 1,2,1 needs 2 devices"),
        (m.DrainReply(True, ""), None, "cannot read the planner's answer"),
        (None, None, "no planner has answered"),
        (m.ReshapeReply(True, "", 7), None, "the plan of change 7 is not in the store"),
        (m.ReshapeReply(True, "", 6), FORMING, "the plan of change 6 is not in the store"),
        (m.ReshapeReply(True, "", 7), FORMING, "has not ended within 0 s, and goes on (forming: 0 of 1"),
        (
            m.ReshapeReply(True, "", 7),
            replace(FORMING, stage=ReshapeStage.ABANDONED, reason="mixed-0 has to leave"),
            "the re-shape was abandoned: mixed-0 has to leave; the old groups serve on",
        ),
    ],
)
async def test_what_fails_is_said_in_one_line(
    reply: m.Message | None, deployment: PlannedDeployment | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_REPLY_TIMEOUT_S", 0.05)
    store = await stored(deployment)
    async with answering(reply) as bus:
        with pytest.raises(CommandError) as failed:
            await reshape_mesh(bus, store, ORDER, Screen().console, 0.0)
    assert words in str(failed.value)
    assert failed.value.exit_status == 1


async def test_a_mesh_without_a_planner_is_named() -> None:
    with pytest.raises(CommandError, match="no migration planner is in the mesh"):
        await reshape_mesh(MemoryBus(MemoryBroker()), MemoryStore(), ORDER, Screen().console, 1.0)


def test_progress_counts_groups_and_requests() -> None:
    """Those of workers that have not left."""
    old = worker_member("mixed-0", Pool.MIXED, state=m.MemberState.DRAINING, running=3, waiting=1)
    new = worker_member("mixed-c7-0", Pool.MIXED)
    line = ReshapeProgress(FORMING, {"mixed-0": old}, 1.0).line()
    assert line == "forming: 0 of 1 new groups serve; waiting for mixed-c7-0"
    assert ReshapeProgress(FORMING, {"mixed-c7-0": new}, 1.0).line() == "forming: 1 of 1 new groups serve"
    line = ReshapeProgress(MOVING, {"mixed-0": old, "mixed-c7-0": new}, 1.0).line()
    assert line == "moving: 2 requests moved, 1 given back, 4 left; mixed-0 of the old groups to leave"
    assert ReshapeProgress(MOVING, {}, 1.0).line().endswith("0 left; none of the old groups to leave")
    ended = replace(MOVING, stage=ReshapeStage.DONE, ended_s=112.5, served_s=103.0, pause_s=0.06, longest_pause_s=0.09)
    ended = replace(ended, fetched_bytes=2 << 20, unplanned_bytes=1 << 19)
    done = ReshapeProgress(ended, {}, 12.0)
    assert done.line() == "done"
    assert done.summary().splitlines() == [
        "re-shaped to 1,2,1 in 12.50 s: 2 requests moved, 1 given back (computed again)",
        "the new groups served after 3.00 s",
        "weights from other devices: 2.0 MiB, 512.0 KiB of that from others than planned; from model folders: 0 B",
        "pause of a request that moved: 60 ms in the mean, 90 ms at most",
    ]
    expected = m.PredictedReshape((), (), (), 0, 4 << 20, forming_s=2.5, pause_s=0.05, storage_bytes=1 << 20)
    assert "after 3.00 s (expected 2.50 s)" in done.summary(expected)
    assert "devices: 2.0 MiB (expected 3.0 MiB), 512.0 KiB of that" in done.summary(expected)
    assert "folders: 0 B (expected 1.0 MiB)" in done.summary(expected)
    assert "60 ms in the mean (expected 50 ms)" in done.summary(expected)
    screen = Screen()
    screen.console.print(ReshapeProgress(MOVING, {"mixed-0": old}, 3.0).table())
    for words in ("moving, 3 s", "not there yet", "draining, 4 requests", "requests moved: 2, left: 4"):
        assert words in screen.text


def test_shapes_are_read_as_they_are_written() -> None:
    """Without a batch size."""
    assert parse_shape("2+1,2,3") == ParallelConfig(1, 2, 3, prompt_data=2)
    for wrong in ("1,2", "a", "1,2,3,4", "0,1,1"):
        with pytest.raises(OptionError, match="CONFIG"):
            parse_shape(wrong)


def test_a_wrong_shape_is_a_wrong_option(refusal_of: RefusalOf) -> None:
    assert "CONFIG" in refusal_of("reshape 1,2")
