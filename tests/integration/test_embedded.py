"""The embedded broker and store as real processes."""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from spotwise.mesh.embedded import servers as embedded
from spotwise.mesh.embedded.child_process import ProcessIdentity, identify, is_alive, send_signal, start_child
from spotwise.mesh.embedded.servers import (
    EmbeddedServer,
    EmbeddedServerError,
    free_port,
    nats_server,
    redis_server,
    running,
)
from spotwise.wire import subjects
from spotwise.wire.permissions import ADMIN, Principal
from spotwise.wire.roles import MeshRole
from tests.integration.running_services import wait_for

pytestmark = pytest.mark.mesh

OPERATOR = Principal(MeshRole.OPERATOR)


#: Makes an embedded server whose files are in a folder.
MakeServer = Callable[..., EmbeddedServer]


@pytest.mark.parametrize("make_server", [nats_server, redis_server])
def test_a_stopped_server_is_gone_and_can_start_again_on_its_port(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server(tmp_path, port=free_port())
    first = server.start()
    first.stop()
    assert not is_alive(first.identity)
    assert not server.answers(server.port)
    with running(server):
        assert server.answers(server.port)
    assert not server.answers(server.port)


def test_the_store_writes_no_file_but_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the working folder nor the server's own holds data afterwards, also not after SIGTERM, when Redis saves."""
    working_folder = tmp_path / "working"
    working_folder.mkdir()
    monkeypatch.chdir(working_folder)
    with running(redis_server(tmp_path / "server")) as server, redis.Redis.from_url(server.url) as store:
        store.set("key", "value")
    assert list(working_folder.iterdir()) == []
    assert [path.name for path in (tmp_path / "server").iterdir()] == ["redis-server.log"]


def test_a_kept_store_begins_with_what_it_held(tmp_path: Path) -> None:
    """Also where it was killed; the file is the next server's."""
    kept_in = tmp_path / "kept"
    kept_in.mkdir()
    server = redis_server(tmp_path / "server", kept_in=kept_in)
    child = server.start()
    try:
        with redis.Redis.from_url(server.url) as store:
            store.set("key", "value")
    finally:
        child.kill()
    with running(server), redis.Redis.from_url(server.url) as store:
        assert store.get("key") == b"value"


WRITE = "redis.call('set', KEYS[1], 'x')"


@pytest.mark.parametrize("first", ["", WRITE], ids=["", "has written"])
def test_a_script_that_never_ends_is_no_sign_of_life(tmp_path: Path, first: str) -> None:
    """It is ended, and the store serves again; one that has written cannot be, and its store is replaced as any that hangs."""
    users = {OPERATOR: "operators-password", ADMIN: "admins-password"}
    server = redis_server(tmp_path, users=users)
    server = replace(server, argv=(*server.argv, "--lua-time-limit", "100"))
    child = server.start()
    try:
        assert server.shows_life()
        url = f"redis://{OPERATOR.name}:{users[OPERATOR]}@127.0.0.1:{server.port}/0"
        with redis.Redis.from_url(url) as store, ThreadPoolExecutor(1) as thread:
            blocked = thread.submit(store.eval, f"{first} while true do end", 1, subjects.KEYS_KEY)
            wait_for(lambda: not server.shows_life())
            if first:
                time.sleep(0.3)
                assert not server.shows_life()
                child.kill()
            else:
                wait_for(server.shows_life)
            with pytest.raises(redis.RedisError):
                blocked.result()
    finally:
        child.kill()


def test_a_taken_port_is_refused_not_shared(tmp_path: Path) -> None:
    """A second server on a port would look healthy because the first one answers."""
    with (
        running(redis_server(tmp_path / "first")) as first,
        pytest.raises(EmbeddedServerError, match=f"port {first.port}"),
    ):
        redis_server(tmp_path / "second", port=first.port).start()


def test_a_server_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    broken = redis_server(tmp_path)
    broken = embedded.EmbeddedServer(
        broken.name, (*broken.argv, "--no-such-option", "1"), broken.port, broken.url, broken.folder, broken.answers
    )
    with pytest.raises(EmbeddedServerError, match="no-such-option"):
        broken.start()


def test_a_missing_program_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wheel and without the program on PATH, the message names the extra."""
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmbeddedServerError, match=r"spotwise\[embedded\]"):
        nats_server(tmp_path)


def test_a_child_does_not_hear_the_terminals_ctrl_c(tmp_path: Path) -> None:
    """A child is not in the process group that a terminal interrupts."""
    child = start_child(["sleep", "600"], log_path=tmp_path / "log")
    try:
        assert os.getpgid(child.pid) == child.pid
        assert os.getsid(child.pid) == child.pid
    finally:
        child.kill()
    assert child.exit_code() == -signal.SIGKILL


def test_a_program_that_does_not_exist_says_so_in_the_log(tmp_path: Path) -> None:
    child = start_child(["/no/such/program"], log_path=tmp_path / "log")
    assert child.wait(10)
    assert child.exit_code() == 1
    assert "/no/such/program" in (tmp_path / "log").read_text()


def test_a_child_that_ignores_the_request_to_leave_is_ended(tmp_path: Path) -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    log_path = tmp_path / "log"
    child = start_child([sys.executable, "-c", stubborn], log_path=log_path)
    while "ready" not in log_path.read_text():
        time.sleep(0.01)
    child.stop(grace_s=0.05)
    assert child.exit_code() == -signal.SIGKILL


def test_a_signal_never_reaches_another_process_with_the_same_pid(tmp_path: Path) -> None:
    """A pid with another start time is a stranger: it gets no signal."""
    child = start_child(["sleep", "600"], log_path=tmp_path / "log")
    try:
        stranger = ProcessIdentity(child.pid, child.identity.start_ticks + 1)
        assert not send_signal(stranger, signal.SIGKILL)
        assert is_alive(child.identity)
        assert send_signal(child.identity, signal.SIGTERM)
        assert child.wait(10)
        assert not send_signal(child.identity, signal.SIGTERM)
        assert identify(child.pid) is None
    finally:
        child.kill()


def test_a_server_gets_of_the_environment_what_any_program_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SPOTWISE_API_KEYS", "AWS_SECRET_ACCESS_KEY", "A_NAME_OF_NO_LIST"):
        monkeypatch.setenv(name, "canary")
    log = tmp_path / "it.log"

    def has_said(_port: int) -> bool:
        return log.exists() and "said" in log.read_text()

    server = EmbeddedServer("it", ("sh", "-c", "env; echo said; exec sleep 600"), free_port(), "", tmp_path, has_said)
    server.start().kill()
    assert f"PATH={os.environ['PATH']}" in log.read_text().splitlines()
    assert "canary" not in log.read_text()
