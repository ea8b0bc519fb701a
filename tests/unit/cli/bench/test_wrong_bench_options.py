"""Options that are wrong whatever runs here: exit status 2, one line, nothing started."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwise.cli.bench.servers import up_arguments
from tests.unit.cli.command_line import CommandLine


def test_an_absent_peer_is_reported_at_once(spotwise: CommandLine, tmp_path: Path) -> None:
    ended = spotwise("bench", "peer", "--vllm", str(tmp_path / "vllm"))
    assert ended.status == 1
    assert "scripts/peer.sh" in ended.stderr


def test_arguments_for_up_are_words_of_a_shell() -> None:
    assert up_arguments("") == []
    assert up_arguments("--kv-cache 1GiB --model 'my model'") == ["--kv-cache", "1GiB", "--model", "my model"]


@pytest.mark.parametrize("given", ["--name x", "--name=x", "--kv-cache 1GiB --detach"])
def test_what_would_lose_the_commands_mesh_is_refused(spotwise: CommandLine, tmp_path: Path, given: str) -> None:
    """With a name of its own, or apart from the command, it would be waited for in vain, or never be ended."""
    ended = spotwise("profile", str(tmp_path / "profile.json"), "--up-args", given)
    assert ended.status == 2, ended.stderr
    assert f"leave out {'--detach' if 'detach' in given else '--name'}; " in ended.stderr
    assert not list(tmp_path.rglob("*.log"))
    assert up_arguments("--model-name --named") == ["--model-name", "--named"]
