"""`spotwise keys` over a real store: what it prints, what it keeps, and that no secret is kept or shown again."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from spotwise.core.access.keys import digest_of, is_secret
from spotwise.mesh.embedded.servers import redis_server, running
from spotwise.mesh.redis.keys import read_key_file
from tests.unit.cli.command_line import CommandLine, command_line

pytestmark = pytest.mark.mesh


@pytest.fixture(scope="module")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(redis_server(tmp_path_factory.mktemp("redis"))) as server:
        yield server.url


@pytest.fixture(autouse=True)
def no_gateways(monkeypatch: pytest.MonkeyPatch) -> None:
    """None has keys to write back: the first key waits for none."""
    monkeypatch.setattr("spotwise.cli.keys.RESTORED_WITHIN_S", 0.0)


@pytest.fixture
def spotwise(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> CommandLine:
    monkeypatch.setenv("SPOTWISE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    return command_line(monkeypatch, capfd)


@pytest.fixture
def keys(spotwise: CommandLine, server_url: str) -> CommandLine:
    """`spotwise keys` with an emptied store."""
    with redis.Redis.from_url(server_url) as server:
        server.flushall()
    return lambda *arguments: spotwise("keys", *arguments, "--redis-url", server_url)


def stored(server_url: str) -> str:
    with redis.Redis.from_url(server_url, decode_responses=True) as server:
        return json.dumps([server.hgetall("spotwise:keys"), list(server.keys("*"))])  # type: ignore[arg-type]


def test_a_secret_is_shown_once_and_kept_as_its_digest(keys: CommandLine, server_url: str) -> None:
    """Alone on standard output, so that a script can take it; the store and the lists have the digest at most."""
    made = keys("create", "acme", "--expires", "30d", "--scope", "read", "--scope", "generate", "--max-streams", "4")
    assert made.status == 0, made.stderr
    secret = made.stdout.strip()
    assert is_secret(secret) and secret not in made.stderr
    assert secret not in stored(server_url) and digest_of(secret.encode()) in stored(server_url)
    (shown,) = json.loads(keys("list", "--json").stdout)["keys"]
    assert (shown["name"], shown["state"], shown["scopes"]) == ("acme", "active", ["generate", "read"])
    assert (shown["limits"]["max_streams"], shown["last_use"]) == (4, None)
    assert shown["expires"] > shown["created"]
    listed = keys("list").stdout
    assert "acme" in listed and "4 at once" in listed and "29 d" in listed
    for text in (listed, json.dumps(shown)):
        assert secret not in text and digest_of(secret.encode()) not in text


def test_a_name_is_taken_once(keys: CommandLine) -> None:
    assert keys("create", "acme").status == 0
    again = keys("create", "acme")
    assert again.status == 1 and "keys rotate" in again.stderr


def test_the_first_key_waits_for_those_that_gateways_know(
    keys: CommandLine, server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store without any may have forgotten them: a name that comes back is taken."""
    monkeypatch.setattr("spotwise.cli.keys.RESTORED_WITHIN_S", 10.0)
    assert keys("create", "acme").status == 0
    with redis.Redis.from_url(server_url) as server:
        names = "spotwise:keys", "spotwise:keys:changed", "spotwise:keys:revision"
        dumps = [(name, server.dump(name)) for name in names]
        server.flushall()

        def restore() -> None:
            for name, dump in dumps:
                server.restore(name, 0, dump)

        restoring = threading.Timer(1.0, restore)
        restoring.start()
        again = keys("create", "acme")
        restoring.join()
    assert again.status == 1 and "keys rotate" in again.stderr


def test_rotation_and_revocation(keys: CommandLine, server_url: str) -> None:
    """A rotated key has both secrets for the overlap; a revoked one has left nothing."""
    old = json.loads(keys("create", "acme", "--json").stdout)["key"]
    rotated = json.loads(keys("rotate", "acme", "--overlap", "2h", "--json").stdout)
    assert rotated["state"] == "rotating" and rotated["old_secret_until"] is not None
    for secret in (old, rotated["key"]):
        assert digest_of(secret.encode()) in stored(server_url)
    at_once = json.loads(keys("rotate", "acme", "--overlap", "0s", "--json").stdout)
    assert at_once["state"] == "active"
    assert digest_of(rotated["key"].encode()) not in stored(server_url)
    assert keys("revoke", "acme").status == 0
    assert "acme" not in stored(server_url)
    for command in (("revoke", "acme"), ("rotate", "acme"), ("limits", "acme")):
        unknown = keys(*command)
        assert unknown.status == 1 and "keys list" in unknown.stderr


def test_limits_change_one_by_one(keys: CommandLine) -> None:
    """Those that are not named stay; 0 takes one away."""
    keys("create", "acme", "--requests-per-minute", "60", "--tokens-per-day", "1000000")
    changed = json.loads(
        keys("limits", "acme", "--tokens-per-minute", "5000", "--tokens-per-day", "0", "--json").stdout
    )
    assert changed == {
        "requests_per_minute": 60,
        "tokens_per_minute": 5000,
        "tokens_per_day": None,
        "max_streams": None,
    }
    assert "5,000 tokens/min" in keys("limits", "acme").stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("create", "a b"), "NAME"),
        (("create", "a", "--expires", "soon"), "--expires"),
        (("create", "a", "--scope", "admin"), "--scope"),
        (("create", "a", "--max-streams", "-1"), "--max-streams"),
        (("rotate", "a", "--overlap", "1"), "--overlap"),
    ],
)
def test_wrong_arguments_are_named(keys: CommandLine, arguments: tuple[str, ...], named: str) -> None:
    ended = keys(*arguments)
    assert ended.status == 2 and named in ended.stderr
    assert json.loads(keys("list", "--json").stdout) == {"keys": []}


def test_a_line_for_a_file(spotwise: CommandLine, tmp_path: Path) -> None:
    """Without a store: the line can be appended to the file, the secret is beside it."""
    made = spotwise("keys", "hash", "acme", "--expires", "1h", "--tokens-per-minute", "100")
    assert made.status == 0
    secret = made.stderr.strip()
    path = tmp_path / "keys.jsonl"
    path.touch(mode=0o600)
    path.write_text(made.stdout)
    (record,) = read_key_file(path)
    assert record.admits(digest_of(secret.encode()), time.time())
    assert not record.admits(digest_of(secret.encode()), time.time() + 3601)
    assert (record.name, record.limits.tokens_per_minute) == ("acme", 100)
    assert secret not in made.stdout
