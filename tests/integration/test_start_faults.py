"""A user without a home, full and read-only disks, damaged records: the command line says on one line what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spotwise.files.user_folders import NoHomeError, expanded, home_folder
from spotwise.mesh.embedded.child_process import identify

NO_PASSWD = """
import pwd

def getpwuid(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")

pwd.getpwuid = getpwuid
"""
COMMANDS = (
    ("status",),
    ("down",),
    ("chat", "hi"),
    ("bench", "load"),
    ("keys", "list"),
    ("drain", "token-0"),
    ("up", "--engine", "simulated", "--detach"),
)


@pytest.fixture
def nobody(tmp_path: Path) -> dict[str, str]:
    """The environment of a user without an entry in passwd and without HOME, as containers run them."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(NO_PASSWD)
    hidden = ("HOME", "SPOTWISE_HOME", "SPOTWISE_CACHE", "XDG_STATE_HOME", "XDG_CACHE_HOME")
    return {name: value for name, value in os.environ.items() if name not in hidden} | {
        "PYTHONPATH": str(site),
        "COLUMNS": "300",
    }


def at_home(home: Path, **variables: str) -> dict[str, str]:
    return {**os.environ, "SPOTWISE_HOME": str(home), "COLUMNS": "300", **variables}


def run(
    env: dict[str, str], *arguments: str, before: tuple[str, ...] = (), cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-m", "spotwise.cli", *arguments]
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def check_one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: arguments[0])
def test_a_user_without_a_home_is_told_what_to_set(nobody: dict[str, str], arguments: tuple[str, ...]) -> None:
    check_one_line(run(nobody, *arguments), "no home folder", "set SPOTWISE_HOME to an absolute path")


def test_a_user_without_a_home_needs_none_where_the_folders_are_given(nobody: dict[str, str], tmp_path: Path) -> None:
    """Commands find no mesh there; kernels and compiled simulator are found beside the sources."""
    given = nobody | {"SPOTWISE_HOME": str(tmp_path / "home"), "SPOTWISE_CACHE": str(tmp_path / "cache")}
    assert run(given, "down").returncode == 0
    looked = (
        "from spotwise.engine.native import build; from spotwise.simulator.compiled import modules; "
        "print(len(build._folders()), len(modules.folders()))"
    )
    done = subprocess.run([sys.executable, "-c", looked], env=given, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["1", "1"], done.stderr


def test_a_relative_home_is_refused_and_a_relative_xdg_folder_ignored(nobody: dict[str, str], tmp_path: Path) -> None:
    check_one_line(run(nobody | {"HOME": "here"}, "status"), "HOME is 'here'", "set SPOTWISE_HOME")
    relative = nobody | {"HOME": str(tmp_path), "XDG_STATE_HOME": "here", "SPOTWISE_CACHE": str(tmp_path / "cache")}
    (tmp_path / "cwd").mkdir()
    assert run(relative, "down", cwd=tmp_path / "cwd").returncode == 0
    assert list((tmp_path / "cwd").iterdir()) == []


def test_a_home_of_nobody_is_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """`~user` of a user who is not there, and HOME that names no absolute path."""
    with pytest.raises(NoHomeError, match="~no-such-user-here"):
        expanded("~no-such-user-here/models")
    monkeypatch.setenv("HOME", "relative")
    with pytest.raises(NoHomeError, match="HOME is 'relative'"):
        home_folder()


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b"[1]"], ids=["empty", "cut", "binary", "other"])
def test_a_damaged_record_of_a_mesh_that_is_gone_is_removed(tmp_path: Path, damage: bytes) -> None:
    """`down` and `status` agree that nothing runs."""
    folder = tmp_path / "run" / "default"
    folder.mkdir(parents=True)
    (folder / "state.json").write_bytes(damage)
    (folder / "lock").write_text("999999999 1")
    env = at_home(tmp_path)
    check_one_line(run(env, "status"), "no mesh named 'default' runs here")
    done = run(env, "down")
    assert (done.returncode, done.stdout) == (0, "nothing to stop: no mesh named 'default' runs here\n")
    assert not (folder / "state.json").exists()


def test_a_mesh_whose_record_is_damaged_is_seen_and_stopped(tmp_path: Path) -> None:
    """The process that holds its name is known by the lock: `status` says what to do, `down` ends it."""
    folder = tmp_path / "run" / "default"
    folder.mkdir(parents=True)
    (folder / "state.json").write_bytes(b"{")
    env = at_home(tmp_path)
    holds = (
        "import time\nfrom spotwise.cli.launch.run_folder import run_folder\n"
        "with run_folder('default').claimed():\n    print('held', flush=True)\n    time.sleep(300)\n"
    )
    with subprocess.Popen([sys.executable, "-c", holds], env=env, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            check_one_line(run(env, "status"), "state.json is damaged", "spotwise down")
            done = run(env, "down")
            assert done.returncode == 0
            assert "is stopped" in done.stdout
            assert identify(holder.pid) is None
        finally:
            holder.kill()
    assert not (folder / "state.json").exists()


def _mounted(folder: Path, options: str) -> tuple[str, ...]:
    """A command prefix under which `folder` is a small disk of its own."""
    prefix = ("unshare", "-m", "sh", "-c", f'mount -t tmpfs -o {options} none "{folder}" && exec "$@"', "sh")
    if (
        shutil.which("unshare") is None
        or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no file system can be mounted here")
    return prefix


@pytest.mark.parametrize(
    ("options", "reason"),
    [pytest.param("size=1m", "No space left", marks=pytest.mark.long), ("ro", "Read-only file system")],
)
def test_a_model_that_does_not_fit_its_cache(tmp_path: Path, options: str, reason: str) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    env = at_home(tmp_path / "home", SPOTWISE_CACHE=str(cache))
    done = run(env, "up", "--port", "0", "--detach", before=_mounted(cache, options))
    check_one_line(done, str(cache), reason, "SPOTWISE_CACHE")


@pytest.mark.parametrize(
    ("options", "fills", "reason"),
    [
        ("nr_inodes=2", False, "No space left"),
        ("ro", False, "Read-only file system"),
        ("size=64k", True, "No space left"),
    ],
    ids=["no inode", "read-only", "no byte"],
)
def test_a_state_folder_that_takes_no_file(tmp_path: Path, options: str, fills: bool, reason: str) -> None:
    """Or in which folders and names still fit, and no byte of a file."""
    home = tmp_path / "home"
    home.mkdir()
    prefix = list(_mounted(home, options))
    if fills:
        prefix[4] = prefix[4].replace("&& exec", f'&& {{ cat /dev/zero > "{home}/full" 2>/dev/null; true; }} && exec')
    done = run(at_home(home), "up", "--port", "0", "--engine", "simulated", "--detach", before=tuple(prefix))
    check_one_line(done, str(home), reason, "SPOTWISE_HOME")
