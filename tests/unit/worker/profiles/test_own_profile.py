"""Measured costs in files: found again, believed only where they are of the same thing."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from spotwise.cli.profile_files import read_profile
from spotwise.core.costs.cost_profile import BUILT_IN
from spotwise.worker.profiles.own_profile import KeptProfiles, ProfiledEngine

ENGINE = ProfiledEngine(
    model="org/tiny model",
    weights="0123",
    dtype="float32",
    device="cpu",
    kernels="native generic, 3 fused layers",
    decode_graphs=True,
    threads=2,
    block_size=16,
    machine="2 cores of a processor",
    versions="torch 1",
)
PROFILE = replace(BUILT_IN, link=None)


def write(folder: Path, engine: ProfiledEngine = ENGINE) -> Path:
    kept = KeptProfiles(folder)
    kept.write(engine, PROFILE, {"mape": 0.1}, {"seconds": 3.0})
    path = kept.path_of(engine)
    assert path is not None
    return path


def test_what_was_kept_is_read_again(tmp_path: Path) -> None:
    """The file is a cost profile as any other, and nothing lies beside it."""
    path = write(tmp_path / "profiles")
    assert KeptProfiles(tmp_path / "profiles").read(ENGINE) == PROFILE
    assert read_profile(path, "--profile") == PROFILE
    assert json.loads(path.read_text())["measured"]["of"]["threads"] == 2
    assert list(path.parent.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"weights": "4567"},
        {"dtype": "bfloat16"},
        {"device": "cuda:0"},
        {"kernels": "no native kernels"},
        {"decode_graphs": False},
        {"threads": None},
        {"block_size": 32},
        {"machine": "64 cores of a processor"},
        {"versions": "torch 2"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_profile_of_something_else_is_none(tmp_path: Path, change: dict[str, object]) -> None:
    """A profile is valid only for an engine equal in everything that an iteration's time depends on; each has its file."""
    write(tmp_path)
    other = replace(ENGINE, **change)  # type: ignore[arg-type]
    assert KeptProfiles(tmp_path).read(other) is None
    write(tmp_path, other)
    assert KeptProfiles(tmp_path).read(ENGINE) == PROFILE


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "spotwise-cost-profile/0"}', '{"measured": 3}'])
def test_what_is_damaged_or_of_another_format_is_measured_anew(tmp_path: Path, text: str) -> None:
    """A file that is damaged or of another format is measured anew, and the log has what is wrong with it."""
    write(tmp_path).write_text(text)
    with capture_logs() as logs:
        assert KeptProfiles(tmp_path).read(ENGINE) is None
    assert [line["event"] for line in logs] == ["cost_profile_outdated"]


@pytest.mark.parametrize(("field", "value"), [("version", 0), ("of", {"model": "another, of the same name"})])
def test_what_was_measured_otherwise_is_measured_anew(tmp_path: Path, field: str, value: object) -> None:
    """A profile of another version of the steps, or of another engine with the same digest, is not used."""
    path = write(tmp_path)
    document = json.loads(path.read_text())
    document["measured"][field] = value
    path.write_text(json.dumps(document))
    assert KeptProfiles(tmp_path).read(ENGINE) is None


def test_without_a_folder_nothing_is_kept() -> None:
    """Without a folder no profile is written or found."""
    kept = KeptProfiles(None)
    kept.write(ENGINE, PROFILE, {}, {})
    assert kept.path_of(ENGINE) is None
    assert kept.read(ENGINE) is None


async def test_an_unwritable_folder_is_logged_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = KeptProfiles(tmp_path / "file" / "profiles")
    with capture_logs() as logs:
        async with kept.turn(ENGINE, 1.0):
            kept.write(ENGINE, PROFILE, {}, {})
    assert [line["event"] for line in logs] == ["cost_profile_not_kept"] * 2


async def test_one_measures_at_a_time(tmp_path: Path) -> None:
    """One worker measures while others of the same engine wait; one of another engine does not wait."""
    kept, order = KeptProfiles(tmp_path), []
    measures, may_end = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        async with kept.turn(ENGINE, 60.0):
            measures.set()
            await may_end.wait()
            order.append("first")

    async def second() -> None:
        await measures.wait()
        async with KeptProfiles(tmp_path).turn(ENGINE, 60.0):
            order.append("second")

    tasks = asyncio.create_task(first()), asyncio.create_task(second())
    await measures.wait()
    async with kept.turn(replace(ENGINE, dtype="bfloat16"), 60.0):
        order.append("other")
    may_end.set()
    await asyncio.gather(*tasks)
    assert order == ["other", "first", "second"]


async def test_no_lock_is_waited_for_for_ever(tmp_path: Path) -> None:
    """One that holds its turn for too long is not waited for."""
    kept = KeptProfiles(tmp_path)
    async with kept.turn(ENGINE, 60.0):
        with capture_logs() as logs:
            async with KeptProfiles(tmp_path).turn(ENGINE, 0.05):
                pass
    assert [line["event"] for line in logs] == ["cost_profile_not_kept"]
