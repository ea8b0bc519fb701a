"""`spotwise replay` as a user has it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from spotwise.core.messages import mesh as m
from spotwise.core.scheduler.role import SchedulerRole
from spotwise.mesh.service.journal import SUFFIX, make_role
from spotwise.mesh.service.role_loop import RoleLoop
from tests.fakes.memory import FakeClock
from tests.unit.cli.command_line import CommandLine


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    """A folder with one scheduler's journal: it turned a request away."""
    folder = tmp_path / "journals"
    member = m.Member("s", m.MemberKind.CLUSTER_SCHEDULER, 7, m.MemberState.STARTING, "host", 1, "host:1")
    role, journal = make_role(folder, member, SchedulerRole, "s")
    assert journal is not None
    loop = RoleLoop(role, FakeClock(), {m.Send: lambda command: None}, journal)
    loop.feed(m.SubmitRequest("a", 1, m.StreamRef("g", 1), 30, 5))
    loop.feed(m.Tick())
    journal.close()
    return folder


def test_identical_commands_are_reported(spotwise: CommandLine, journals: Path, tmp_path: Path) -> None:
    """Exit status 0; the JSON has counts and times, the trace has no request, because no gateway's journal is there."""
    json_path, csv_path = tmp_path / "out.json", tmp_path / "requests.csv"
    ended = spotwise("replay", str(journals), "--json", str(json_path), "--requests", str(csv_path))
    assert ended.status == 0, ended.stderr
    assert "identical" in ended.stdout
    (document,) = json.loads(json_path.read_text())
    assert (document["member"], document["events"], document["commands"], document["identical"]) == ("s", 2, 1, True)
    assert document["decision_us"]["SubmitRequest"]["count"] == 1
    assert len(csv_path.read_text().splitlines()) == 1


def test_a_difference_is_shown_and_ends_with_status_1(spotwise: CommandLine, journals: Path, tmp_path: Path) -> None:
    path = next(journals.glob(f"*{SUFFIX}"))
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b"no_workers", b"never_fits")))
    ended = spotwise("replay", str(journals))
    assert ended.status == 1
    for shown in ("different", "line 2, a SubmitRequest", "never_fits", "no_workers"):
        assert shown in ended.stdout


def test_an_unreadable_journal_is_one_error_line(spotwise: CommandLine, tmp_path: Path) -> None:
    """Exit status 1; so where the result cannot be written."""
    ended = spotwise("replay", str(tmp_path))
    assert (ended.status, ended.stdout) == (1, "")
    assert "SPOTWISE_JOURNAL" in ended.stderr


def test_a_result_that_cannot_be_written_is_an_error(spotwise: CommandLine, journals: Path, tmp_path: Path) -> None:
    ended = spotwise("replay", str(journals), "--json", str(tmp_path))
    assert ended.status == 1
    assert "cannot be written" in ended.stderr
