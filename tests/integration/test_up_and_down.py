"""`spotwise up` and `down` over real processes: real broker, real store, and services that only register and answer health."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import redis

from spotwise.cli.launch.options import MeshOptions
from spotwise.cli.launch.supervision.run_state import RecordedService, RunState, ServiceState, read_state
from spotwise.mesh.embedded.servers import free_port, nats_answers, nats_server, redis_server, running
from tests.death_watch import death_watch
from tests.integration.running_services import wait_for

pytestmark = pytest.mark.mesh

SERVICES = ("gateway", "cluster_scheduler", "migration_planner", "spot_watcher", "prompt_worker", "token_worker")
PROGRAM = "from fake_service import main\n\nif __name__ == '__main__':\n    main()\n"
SERVICE_IDS = {"gateway-0", "scheduler-0", "planner-0", "watcher-0", "prompt-0", "token-0"}
SERVER_IDS = {"nats-server", "redis-server"}

# What the `up` command does once the model is resolved.
RUN = """
import sys
from rich.console import Console
from spotwise.cli.launch.options import MeshOptions
from spotwise.cli.report import Report
from spotwise.cli.launch.up import run_mesh
detach = sys.argv[2] == "--detach"
sys.exit(run_mesh(MeshOptions.model_validate_json(sys.argv[1]), Report(Console()), detach=detach))
"""


class Home:
    """One test's meshes: nothing it starts is seen by another test, and nothing may be left of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        modules = path / "modules" / "fake_mesh"
        modules.mkdir(parents=True)
        for service in SERVICES:
            (modules / f"{service}.py").write_text(PROGRAM)
        self.env = {
            **os.environ,
            "SPOTWISE_HOME": str(path),
            "PYTHONPATH": f"{modules.parent}:{Path(__file__).parent}",
            "COLUMNS": "200",
        }
        self.options = MeshOptions(
            name="test",
            model_folder=path,
            model_name="tiny",
            port=free_port(),
            service_modules="fake_mesh.",
            start_timeout_s=60.0,
        )

    def command(self, *arguments: str, options: MeshOptions | None = None) -> list[str]:
        """The command line of `up` with these options."""
        return [sys.executable, "-c", RUN, (options or self.options).model_dump_json(), *(arguments or ("",))]

    def up(self, options: MeshOptions | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run(self.command("--detach", options=options), env)

    def spotwise(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The real command line."""
        return self.run([sys.executable, "-m", "spotwise.cli", *arguments], {})

    def goes_down(self) -> None:
        """`spotwise down` stops the mesh, and leaves nothing."""
        assert self.spotwise("down", "--name", "test").returncode == 0
        assert self.left() == []

    def state(self) -> RunState:
        state = read_state(self.path / "run" / "test" / "state.json")
        assert state is not None
        return state

    def service(self, service_id: str) -> RecordedService:
        return self.state().services[service_id]

    def pid(self, service_id: str) -> int:
        """The pid of a running one."""
        process = self.service(service_id).process
        assert process is not None
        return process.pid

    def left(self) -> list[str]:
        """Every process with this SPOTWISE_HOME in its environment, or working in it (Redis overwrites its environment)."""
        found = []
        for process in psutil.process_iter():
            try:
                given = process.environ().get("SPOTWISE_HOME") == str(self.path)
                if given or Path(process.cwd()).is_relative_to(self.path):
                    found.append(f"{process.pid} {' '.join(process.cmdline())}")
            except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
                continue
        return found

    def run(self, command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        # Pipes would stay open, and `run` wait, if a detached process held on to them.
        return subprocess.run(command, env=self.env | env, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A SPOTWISE_HOME whose processes are killed at the end, even after a failed test."""
    home = Home(tmp_path)
    with death_watch(tmp_path):
        yield home
    for line in home.left():
        psutil.Process(int(line.split()[0])).kill()


def test_detached_mesh_comes_up_and_goes_down_without_a_trace(home: Home) -> None:
    """`up --detach` returns 0 with every process healthy.

    `down` returns 0 with no process left, and reports that on a second call. Its processes are executed, not forked.
    """
    up = home.up(SPOTWISE_FORK_SERVER="0")
    assert up.returncode == 0, up.stdout + up.stderr
    assert f"http://127.0.0.1:{home.options.port}/v1" in up.stdout
    assert "down --name test" in up.stdout
    state = home.state()
    assert state.ready
    assert set(state.services) == SERVICE_IDS | SERVER_IDS
    assert all(service.state is ServiceState.HEALTHY for service in state.services.values())
    assert len(home.left()) == 1 + len(state.services)
    with redis.Redis.from_url(state.redis_url) as store:
        assert len(list(store.scan_iter("spotwise:member:*"))) == len(SERVICE_IDS)
    secret = home.path / "run" / "test" / "mesh.secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    for service_id in SERVICE_IDS:
        assert psutil.Process(home.pid(service_id)).environ()["SPOTWISE_MESH_SECRET_FILE"] == str(secret)

    down = home.spotwise("down", "--name", "test")
    assert (down.returncode, down.stdout) == (0, "mesh 'test' is stopped\n")
    assert home.left() == []
    again = home.spotwise("down", "--name", "test")
    assert again.returncode == 0
    assert "nothing to stop" in again.stdout


def test_a_second_mesh_of_the_same_name_is_refused(home: Home) -> None:
    assert home.up().returncode == 0
    before = home.state()
    second = home.spotwise("up", "--name", "test", "--port", str(free_port()))
    assert second.returncode == 1
    assert "already runs" in second.stderr
    assert home.state() == before
    other = home.options.model_copy(update={"name": "other", "port": free_port()})
    assert home.up(other).returncode == 0
    assert home.spotwise("down", "--name", "other").returncode == 0
    assert home.state() == before
    home.goes_down()


def wait_for_restart(home: Home, service_id: str, times: int = 1) -> None:
    wait_for(lambda: home.service(service_id).restarts == times, f"{service_id} restarts")
    wait_for(lambda: home.service(service_id).state is ServiceState.HEALTHY, "it is healthy")


def test_a_killed_child_is_started_again(home: Home) -> None:
    """kill -9 of a service or of an embedded server: it comes back healthy, the servers where they were."""
    assert home.up().returncode == 0
    nats_port = int(home.state().nats_url.rsplit(":", 1)[1])
    for service_id in ("token-0", "nats-server"):
        killed = home.pid(service_id)
        os.kill(killed, signal.SIGKILL)
        wait_for_restart(home, service_id)
        assert home.pid(service_id) != killed
    assert nats_answers(nats_port)
    log = (home.path / "run" / "test" / "logs" / "supervisor.log").read_text()
    assert "token-0 died (signal 9)" in log
    assert "token-0 is healthy again" in log
    home.goes_down()


def test_without_its_fork_servers_a_mesh_mends_itself_still(home: Home) -> None:
    """Killed, they take no service along; the next one to start is executed, and the one after it forked again."""
    assert home.up().returncode == 0
    pids = {service_id: home.pid(service_id) for service_id in SERVICE_IDS - {"gateway-0"}}
    for line in home.left():
        if "embedded.forking" in line:
            os.kill(int(line.split()[0]), signal.SIGKILL)
    for restarts in (1, 2):
        os.kill(home.pid("gateway-0"), signal.SIGKILL)
        wait_for_restart(home, "gateway-0", restarts)
    assert {service_id: home.pid(service_id) for service_id in pids} == pids
    log = (home.path / "run" / "test" / "logs" / "supervisor.log").read_text()
    assert log.count("gateway-0 is executed, which takes longer") == 1
    home.goes_down()


def test_a_drained_worker_is_not_started_again_but_a_gateway_is(home: Home) -> None:
    """Exit status 0 is how a worker leaves; no other service has a reason to."""
    assert home.up().returncode == 0
    os.kill(home.pid("token-0"), signal.SIGUSR1)
    wait_for(lambda: home.service("token-0").state is ServiceState.LEFT, "the worker has left")
    os.kill(home.pid("gateway-0"), signal.SIGUSR1)
    wait_for_restart(home, "gateway-0")
    assert home.service("token-0") == RecordedService(state=ServiceState.LEFT)
    home.goes_down()


def test_a_killed_supervisor_leaves_nothing(home: Home) -> None:
    """kill -9 of the supervisor takes every child along; `down` clears the record, and `up` works as before."""
    assert home.up().returncode == 0
    os.kill(home.state().supervisor.pid, signal.SIGKILL)
    wait_for(lambda: home.left() == [], "every child is gone")
    assert home.up().returncode == 0
    os.kill(home.state().supervisor.pid, signal.SIGKILL)
    wait_for(lambda: home.left() == [], "every child is gone")
    down = home.spotwise("down", "--name", "test")
    assert down.returncode == 0
    assert "had lost its supervisor" in down.stdout
    assert "nothing to stop" in home.spotwise("down", "--name", "test").stdout


@pytest.mark.parametrize("arguments", [("--detach",), ()])
def test_a_service_that_cannot_start_fails_the_command_and_shows_why(home: Home, arguments: tuple[str, ...]) -> None:
    """Exit status 1, the end of that service's log, and nothing left."""
    result = home.run(home.command(*arguments), {"FAKE_FAILS": "prompt-0"})
    assert result.returncode == 1
    assert "prompt-0 ended while starting (exit status 1)" in result.stdout
    assert "prompt-0 has no weights" in result.stdout
    assert home.left() == []


def test_a_service_that_never_gets_healthy_fails_the_command(home: Home) -> None:
    """After --timeout: exit status 1, its name and log, and nothing left."""
    hurried = home.options.model_copy(update={"start_timeout_s": 5.0})
    result = home.up(hurried, FAKE_SILENT="watcher-0")
    assert result.returncode == 1
    [problem] = [line for line in result.stdout.splitlines() if "not healthy after 5 s (--timeout)" in line]
    assert "watcher-0" in problem
    assert "watcher-0 starts" in result.stdout
    assert home.left() == []


def test_ctrl_c_stops_in_order_and_a_second_one_at_once(home: Home) -> None:
    """A stubborn worker holds up the stop until its grace is over or Ctrl-C comes again; exit status 0 and nothing left."""
    env = home.env | {"FAKE_STUBBORN": "token-0"}
    with subprocess.Popen(home.command(), env=env, stdout=subprocess.PIPE, text=True) as mesh:
        assert mesh.stdout is not None
        seen = ""
        while "Logs:" not in seen:
            seen += mesh.stdout.readline()
        assert {f"{service_id} is up" for service_id in SERVICE_IDS} <= {
            line.split(" (")[0] for line in seen.splitlines()
        }
        gateway, scheduler = psutil.Process(home.pid("gateway-0")), psutil.Process(home.pid("scheduler-0"))
        mesh.send_signal(signal.SIGINT)
        gateway.wait(10)
        assert scheduler.is_running()
        mesh.send_signal(signal.SIGINT)
        rest = mesh.stdout.read()
    assert mesh.returncode == 0
    assert "token-0 did not leave by itself" in rest
    assert home.left() == []
    assert read_state(home.path / "run" / "test" / "state.json") is None


def test_ctrl_c_while_starting_leaves_nothing(home: Home) -> None:
    """Exit status 130, as for any command that was interrupted, detached or not."""
    for arguments in ((), ("--detach",)):
        env = home.env | {"FAKE_SILENT": "watcher-0"}
        with subprocess.Popen(home.command(*arguments), env=env, stdout=subprocess.PIPE, text=True) as mesh:
            assert mesh.stdout is not None
            while "gateway-0 is up" not in mesh.stdout.readline():
                pass
            mesh.send_signal(signal.SIGINT)
            mesh.stdout.read()
        assert mesh.returncode == 130
        assert home.left() == []


def test_a_closed_terminal_stops_the_mesh(home: Home) -> None:
    """SIGHUP, with nowhere left to write to: an ordered stop, and nothing left."""
    controller, terminal = pty.openpty()
    take_terminal = (
        "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
        "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
    )
    mesh = subprocess.Popen(
        [sys.executable, "-c", take_terminal, *home.command()],
        env=home.env,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    seen = b""
    while b"Logs:" not in seen:
        seen += os.read(controller, 4096)
    assert b"healthy" in seen
    os.close(controller)
    assert mesh.wait(30) == 0
    assert home.left() == []


@pytest.mark.parametrize("given", [["nats_url", "redis_url"], ["nats_url"], ["redis_url"]], ids="+".join)
def test_given_servers_are_used_and_not_stopped(home: Home, tmp_path: Path, given: list[str]) -> None:
    """--nats-url and --redis-url, together or alone, start no embedded server; `down` leaves them running."""
    make_server = {"nats_url": nats_server, "redis_url": redis_server}
    with ExitStack() as stack:
        servers = {name: stack.enter_context(running(make_server[name](tmp_path / name))) for name in given}
        shared = home.options.model_copy(update={name: server.url for name, server in servers.items()})
        assert home.up(shared).returncode == 0
        assert set(home.state().services) == SERVICE_IDS | SERVER_IDS - {server.name for server in servers.values()}
        assert home.spotwise("down", "--name", "test").returncode == 0
        assert all(server.answers(server.port) for server in servers.values())
    assert home.left() == []


def test_a_server_that_is_not_there_is_named_with_its_option(home: Home) -> None:
    absent = home.options.model_copy(update={"nats_url": f"nats://127.0.0.1:{free_port()}"})
    result = home.up(absent)
    assert result.returncode == 1
    assert "--nats-url" in result.stdout
    assert home.left() == []


def test_a_taken_port_is_refused_before_anything_starts(home: Home, redis_url: str) -> None:
    taken = redis_url.rsplit(":", 1)[1].split("/")[0]
    result = home.spotwise("up", "--name", "test", "--port", taken)
    assert result.returncode == 1
    assert "--port" in result.stderr
    assert home.left() == []
