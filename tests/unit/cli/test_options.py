"""Sizes, addresses and names as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwise.cli.errors import CommandError
from spotwise.cli.launch.given_options import parse_size
from spotwise.cli.launch.run_folder import cache_folder, run_folder
from tests.unit.cli.builders import mesh_options


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4GiB", 4 * 1024**3),
        ("512 MiB", 512 * 1024**2),
        ("2GB", 2 * 1000**3),
        ("1.5gib", 3 * 1024**3 // 2),
        ("4096", 4096),
    ],
)
def test_sizes_are_read_as_written(text: str, size_bytes: int) -> None:
    """GiB is binary, GB decimal; a bare number is bytes."""
    assert parse_size(text, "--kv-cache") == size_bytes


@pytest.mark.parametrize("text", ["", "much", "4XiB", "-1GiB", "0", "0GiB", "GiB"])
def test_what_is_no_size_is_refused_with_the_option_and_an_example(text: str) -> None:
    with pytest.raises(CommandError, match=r"--kv-cache.*4GiB"):
        parse_size(text, "--kv-cache")


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("::1", "http://[::1]:8000"),
        ("mesh.example", "http://mesh.example:8000"),
    ],
)
def test_the_url_is_one_that_a_client_here_can_reach(host: str, url: str) -> None:
    """An address that means 'all interfaces' is none to connect to."""
    assert mesh_options(host=host).url == url


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b", "x" * 65])
def test_a_name_that_is_no_folder_name_is_refused(name: str) -> None:
    """A mesh's name must not lead out of the run folder."""
    with pytest.raises(CommandError, match="--name"):
        run_folder(name)


def test_folders_follow_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SPOTWISE_HOME, then XDG_STATE_HOME, then the user's own; SPOTWISE_CACHE for models."""
    for variable in ("SPOTWISE_HOME", "XDG_STATE_HOME", "SPOTWISE_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run_folder("a").path == tmp_path / ".local/state/spotwise/run/a"
    assert cache_folder() == tmp_path / ".cache/spotwise"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert run_folder("a").path == tmp_path / "state/spotwise/run/a"
    monkeypatch.setenv("SPOTWISE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SPOTWISE_CACHE", str(tmp_path / "cache"))
    assert run_folder("a").path == tmp_path / "home/run/a"
    assert cache_folder() == tmp_path / "cache"


def test_a_name_is_held_by_one_process_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPOTWISE_HOME", str(tmp_path))
    folder = run_folder("a")
    with folder.claimed(), pytest.raises(CommandError, match="spotwise down --name a"), run_folder("a").claimed():
        pass
    with folder.claimed(), run_folder("b").claimed():
        pass
