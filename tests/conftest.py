"""What tests of every kind share: a real broker and a real store, brought along or in containers.

A test that uses `nats_url` or `redis_url` runs twice: against the embedded programs, and in `make test-compose` against
containers, where a Docker engine answers and has the images, or can pull them. `NATS_IMAGE` and `REDIS_IMAGE` name the images,
as they do for docker-compose.yml.
"""

from __future__ import annotations

import gc
import os
import time
import warnings
from collections.abc import Callable, Generator, Iterator

# Before testcontainers is imported, which reads it then. Its reaper is one more image; what is started here is removed here.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
# Tests look into the sources, and change them; `test_compiled_simulator.py` compares what is compiled from them.
os.environ.setdefault("SPOTWISE_COMPILED", "0")

import docker
import pytest
import redis
import structlog
from docker.errors import DockerException, ImageNotFound
from hypothesis import settings
from testcontainers.core.container import DockerContainer

from spotwise.mesh.embedded.servers import LOOPBACK, nats_answers, nats_server, redis_answers, redis_server, running
from tests.example_budget import BUDGET_S, limit_examples

pytest.register_assert_rewrite("tests.contracts")
# An example may take as long as a busy machine lets it. `make test` tries the same ones each time, so that its failure comes of
# a change; `make test-properties` searches for others.
settings.register_profile("patient", deadline=None, derandomize=BUDGET_S > 0)
settings.load_profile("patient")

NATS_COMMAND = "nats-server"
REDIS_COMMAND = "redis-server --bind 0.0.0.0 --protected-mode no --save '' --appendonly no"
PATIENCE_S = 30.0


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage meanwhile: modules and tests stay, and each process would look at them over and over."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    limit_examples(items)
    for item in items:  # folders have marked theirs
        if not any(item.get_closest_marker(name) for name in ("parallel", "paired", "alone")):
            item.add_marker(pytest.mark.parallel)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    gc.freeze()  # the next collection looks at what this test makes only, and takes a millisecond


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    gc.collect()  # a socket that a test forgot fails this test, not any later one


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A command or a service in this process sets up its logging, and its test says nothing of that of later ones."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture(scope="session", params=["embedded", pytest.param("container", marks=pytest.mark.compose)])
def servers_run_as(request: pytest.FixtureRequest) -> str:
    """How broker and store run: `embedded` or `container`; both alike in one test."""
    return str(request.param)


@pytest.fixture(scope="session")
def nats_url(servers_run_as: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real broker of the test session."""
    if servers_run_as == "embedded":
        with running(nats_server(tmp_path_factory.mktemp("nats"))) as server:
            yield server.url
    else:
        with _container(os.environ.get("NATS_IMAGE", "nats:2-alpine"), NATS_COMMAND, 4222) as container:
            yield f"nats://{LOOPBACK}:{_answering_port(container, 4222, nats_answers)}"


@pytest.fixture(scope="session")
def _store_url(servers_run_as: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if servers_run_as == "embedded":
        with running(redis_server(tmp_path_factory.mktemp("redis"))) as server:
            yield server.url
    else:
        with _container(os.environ.get("REDIS_IMAGE", "redis:7"), REDIS_COMMAND, 6379) as container:
            yield f"redis://{LOOPBACK}:{_answering_port(container, 6379, redis_answers)}/0"


@pytest.fixture
def redis_url(_store_url: str) -> str:
    """A real store of the test session, empty at the start of each test."""
    with redis.Redis.from_url(_store_url) as store:
        store.flushall()
    return _store_url


def _container(image: str, command: str, port: int) -> DockerContainer:
    """A container to be started by `with`, its port published on loopback; skips where it cannot be had."""
    client = _engine()
    if client is None:
        pytest.skip("no Docker engine answers")
    try:
        client.images.get(image)
    except ImageNotFound:
        try:
            client.images.pull(image)
        except DockerException:
            pytest.skip(f"the Docker engine neither has nor can pull {image}")
    finally:
        client.close()
    container = DockerContainer(image, command=command)
    # `with_exposed_ports` would publish a store without a password on every interface.
    container.ports[f"{port}/tcp"] = (LOOPBACK, None)  # type: ignore[assignment]
    return container


def _engine() -> docker.DockerClient | None:
    with warnings.catch_warnings():
        # Without a server the client leaves its socket to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            return docker.from_env(timeout=60)
        except DockerException:
            return None
        finally:
            gc.collect()


def _answering_port(container: DockerContainer, port: int, answers: Callable[[int], bool]) -> int:
    """The port of this machine behind which the server in the container answers."""
    published = int(container.get_exposed_port(port))
    deadline_s = time.monotonic() + PATIENCE_S
    while not answers(published):
        assert time.monotonic() < deadline_s, container.get_logs()
        time.sleep(0.05)
    return published
