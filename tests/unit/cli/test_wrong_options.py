"""An option that is wrong: exit status 2, one line that names it, and nothing started."""

from __future__ import annotations

import contextlib
import shlex
import socket
from pathlib import Path

import pytest

from spotwise.cli.errors import CommandError, OptionError
from spotwise.cli.launch.gateway_options import open_ports
from tests.unit.cli.builders import write_profile
from tests.unit.cli.command_line import CommandLine, RefusalOf


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("up --kv-cache foo", "--kv-cache"),
        ("up --name a/b", "--name"),
        ("up --prompt-workers 0", "--prompt-workers"),
        ("up --host 300.1.1.1", "--host"),
        ("up --host 300.1.1.1 --port 0", "--host"),
        ("up --host 192.0.2.1", "--host"),
        ("up --host 192.0.2.1 --port 0", "--host"),
        ("up --host a..b", "--host"),
        ("up --host 0.0.0.0", "--host"),
        ("up --tls-cert README.md", "--tls-key"),
        ("up --tls-cert README.md --tls-key no-such-file", "--tls-key"),
        ("up --tls-cert README.md --tls-key README.md", "--tls-key"),
        ("chat hello --url https://127.0.0.1:1 --ca README.md", "--ca"),
        ("up --dtype foo", "--dtype"),
        ("up --device foo", "--device"),
        ("up --nats-url foo", "--nats-url"),
        ("up --redis-url redis://h:port", "--redis-url"),
        ("up --redis-url redis://127.0.0.1:6379/0 --keep-store", "--keep-store"),
        ("up --engine foo", "--engine"),
        ("up --speed 2", "--speed"),
        ("up --profile README.md", "--profile"),
        ("up --simulated-kv real", "--simulated-kv"),
        ("up --policy srpt", "--policy"),
        ("up --kv-host 1GiB", "--kv-host"),
        ("up --policy mlfq --kv-host foo", "--kv-host"),
        ("up --policy mlfq --profile README.md", "--profile"),
        ("up --engine simulated --speed 0", "--speed"),
        ("up --engine simulated --simulated-kv foo", "--simulated-kv"),
        ("up --engine simulated --profile README.md", "--profile"),
        ("up --engine simulated --profile /no/such/file", "--profile"),
        ("profile .", "FILE"),
        ("down --name a/b", "--name"),
        ("bench load --streams 0", "--streams"),
        ("bench load --streams 1,x", "--streams"),
        ("join mixed --id a/b", "--id"),
        ("join mixed --kv-cache 0", "--kv-cache"),
        ("up --adapter law", "--adapter"),
        ("up --adapter law=/no/such/folder", "--adapter"),
        ("up --adapter law=README.md,x=y", "--adapter"),
        ("up --adapter 'a b=README.md'", "--adapter"),
        ("bench peer --workloads w11", "--workloads"),
        ("bench peer --skip-peer nowhere.json", "--skip-peer"),
        ("bench dev batching --rates=-1", "--rates"),
        ("bench dev batching --plot curve.txt", "--plot"),
        ('bench dev memory "--up-args=--kv-cache \'1GiB"', "--up-args"),
        ("bench dev memory --json .", "--json"),
        ("bench dev transfer --lengths 0,128", "--lengths"),
        ("bench dev policy --policies mlfq", "--policies"),
    ],
)
def test_a_wrong_option_is_named_and_ends_with_status_2(
    spotwise: CommandLine, tmp_path: Path, command: str, option: str
) -> None:
    """Before a model is looked for or a server started; in one line without a regular expression."""
    ended = spotwise(*shlex.split(command))
    assert ended.status == 2, ended.stderr
    assert option in ended.stderr
    assert ended.stderr.startswith("Usage: ") or len(ended.stderr.splitlines()) == 1
    assert "^" not in ended.stderr
    assert "model" not in ended.stdout
    assert not list(tmp_path.rglob("*.log"))


def test_a_profile_without_hand_offs_is_refused_where_workers_would_make_some(
    refusal_of: RefusalOf, tmp_path: Path
) -> None:
    write_profile(tmp_path / "own.json", link=None)
    refusal = refusal_of("up --engine simulated --profile @own.json")
    assert "has no cost of hand-offs; serve with mixed workers alone (--prompt-workers 0" in refusal


def test_a_taken_port_is_no_wrong_option_and_0_means_a_free_one() -> None:
    """Exit status 1, for it may get free again; both ports are on the requested host."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        with pytest.raises(CommandError, match="--port") as refusal:
            open_ports("127.0.0.1", taken)
        assert refusal.value.exit_status == 1
        (free,) = open_ports("127.0.0.1", 0)
        assert free not in (0, taken)
    assert open_ports("127.0.0.1", free) == (free,)


def two_ports_in_a_row() -> tuple[int, int]:
    """A free port whose next one is free, too: other tests may hold any of them."""
    while True:
        (first,) = open_ports("127.0.0.1", 0)
        with contextlib.suppress(CommandError):
            open_ports("127.0.0.1", first, 2)
            return first, first + 1


def test_gateways_take_ports_that_follow_each_other_or_free_ones() -> None:
    """A port further on that is taken is refused, too."""
    assert len({*open_ports("127.0.0.1", 0, 3)}) == 3
    first, taken = two_ports_in_a_row()
    with socket.create_server(("127.0.0.1", taken)), pytest.raises(CommandError, match=f":{taken}"):
        open_ports("127.0.0.1", first, 2)
    with pytest.raises(OptionError, match="--gateways 2"):
        open_ports("127.0.0.1", 65535, 2)


def test_what_cannot_be_done_ends_with_status_1(spotwise: CommandLine) -> None:
    """No mesh runs: that is no option's fault."""
    for command in (
        "status",
        "explain x",
        "drain token-0",
        "join mixed",
        "chat hi",
        "bench load",
        "fleet",
        "reshape 1,2,1",
    ):
        ended = spotwise(*command.split())
        assert (ended.status, ended.stdout) == (1, "")
        assert "no mesh named 'default' runs here" in ended.stderr
