"""The watcher's service over the in-memory mesh, with a fake metadata server on loopback."""

from __future__ import annotations

import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from spotwise.core.messages.members import Member, MemberKind
from spotwise.core.messages.members import MemberState as State
from spotwise.core.messages.mesh import DrainReply, InterruptionKind
from spotwise.core.messages.worker import Drain
from spotwise.mesh.embedded.servers import LOOPBACK, free_port
from spotwise.mesh.grpc.control import ControlServer
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.replay.journal_replay import find_journals, replay
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.metrics_server import served_metrics
from spotwise.spot_watcher.clouds import cloud_of_this_machine
from spotwise.spot_watcher.metrics import WatcherMetrics
from spotwise.spot_watcher.settings import SpotWatcherSettings
from spotwise.spot_watcher.watcher import SpotWatcher
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode
from tests.contracts.waiting import PATIENCE_S, until
from tests.fakes.memory import MemoryBroker, MemoryBus, MemoryStore
from tests.fakes.metadata_server import NODE_TOKEN, Fault, MetadataServer
from tests.fakes.notices import Published

HOST = "machine-0"


class Mesh(Published):
    """A watcher, and the messages it sends to the others."""

    def __init__(self, watcher: SpotWatcher, host: ServiceHost, metrics: WatcherMetrics) -> None:
        super().__init__()
        self.watcher = watcher
        self.host = host
        self.metrics = metrics

    async def beat(self, worker_id: str, state: State = State.READY) -> None:
        member = Member(worker_id, MemberKind.TOKEN_WORKER, 1, state, HOST, 1, "h:1")
        await self.host.bus.publish(subjects.heartbeat(member.kind, worker_id), encode(member))

    def counted(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


def settings_of(server: MetadataServer | None = None, **given: object) -> SpotWatcherSettings:
    url = server.url if server is not None else f"http://{LOOPBACK}:{free_port()}"
    quick = {"cloud_poll_s": 0.01, "cloud_backoff_s": 0.02, "service_id": "watcher-0"}
    return SpotWatcherSettings(**{"metadata_url": url, "kubernetes_url": url, **quick, **given})  # type: ignore[arg-type]


@asynccontextmanager
async def watching(settings: SpotWatcherSettings) -> AsyncIterator[Mesh]:
    broker, metrics = MemoryBroker(), WatcherMetrics()
    member = Member(settings.service_id, MemberKind.SPOT_WATCHER, 1, State.STARTING, HOST, 1, f"{LOOPBACK}:1")
    host = ServiceHost(settings, MemoryBus(broker), MemoryStore(), ControlServer(LOOPBACK, 0), member)
    async with host.joined():
        watcher = SpotWatcher(host, settings, metrics)
        mesh = Mesh(watcher, host, metrics)
        await mesh.listen(host.bus)
        await watcher.start()
        host.spawn(watcher.watch(cloud_of_this_machine(settings)), "watch")
        yield mesh


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure", "auto"])
async def test_a_sign_becomes_one_notice_with_the_clouds_deadline(cloud: str) -> None:
    """A sign becomes one notice and one report; Google's, without a time, has 30 seconds from its first sight."""
    async with MetadataServer(HOST) as server, watching(settings_of(server, cloud=cloud)) as mesh:
        await mesh.beat("w")
        # Two answers: the first question of Google's is plain, and the second waits.
        await until(
            lambda: mesh.counted("spotwise_spot_questions_total", cloud=mesh_cloud(cloud), outcome="answered") > 0
        )
        seen_s = mesh.host.clock.now()
        deadline_s = server.announce(seen_s + 100)
        await until(lambda: mesh.drains and mesh.interruptions)
        (notice,), (report,) = mesh.drains, mesh.interruptions
        assert (notice.worker_id, notice.reason.partition(":")[0]) == ("w", mesh_cloud(cloud))
        if cloud == "gcp":
            assert seen_s + 30 <= notice.deadline_s <= mesh.host.clock.now() + 30
        else:
            assert notice.deadline_s == deadline_s
        assert (report.kind, report.worker_ids) == (InterruptionKind.NOTICE, ("w",))
        assert report.deadline_s == notice.deadline_s


def mesh_cloud(cloud: str) -> str:
    """Without a configured cloud the first that answers is used."""
    return "aws" if cloud == "auto" else cloud


async def test_a_taint_becomes_a_notice(tmp_path: Path) -> None:
    """A taint becomes a notice; the service account's token may appear late."""
    token = tmp_path / "token"
    async with MetadataServer(clouds=("kubernetes",)) as server:
        settings = settings_of(
            server, cloud="kubernetes", node_name="node-0", kubernetes_token_file=token, node_grace_s=45
        )
        async with watching(settings) as mesh:
            await mesh.beat("w")
            await until(lambda: mesh.counted("spotwise_spot_questions_total", cloud="kubernetes", outcome="failed"))
            token.write_text(f"{NODE_TOKEN}\n")
            await until(lambda: mesh.counted("spotwise_spot_questions_total", cloud="kubernetes", outcome="answered"))
            server.announce(server.clock() + 30)
            await until(lambda: mesh.drains)
            assert mesh.drains[0].deadline_s == float(int(server._announced_s)) + 45


async def test_azure_is_answered_when_the_last_worker_has_left() -> None:
    async with MetadataServer(HOST) as server, watching(settings_of(server, cloud="azure")) as mesh:
        await mesh.beat("a")
        await mesh.beat("b")
        server.announce(mesh.host.clock.now() + 100)
        await until(lambda: len(mesh.drains) == 2)
        await mesh.beat("a", State.LEFT)
        await mesh.beat("b", State.DRAINING)
        polled = len(server.questions)
        await until(lambda: len(server.questions) > polled + 5)
        assert server.acknowledged == []
        assert [question for question in server.questions if question.method == "POST"] == []
        # Every other question fails: also the POST, whichever it is.
        server.faults += [Fault("/metadata/scheduledevents", status=500) for _ in range(3)]
        await mesh.beat("b", State.LEFT)
        await until(lambda: server.acknowledged)
        assert len(server.acknowledged) == 1
        await until(lambda: mesh.counted("spotwise_spot_acknowledgements_total", outcome="answered") == 1)
        assert [report.kind for report in mesh.interruptions] == [InterruptionKind.NOTICE]


FAULTS = [
    Fault(status=500, times=2),
    Fault(status=404, times=2),
    Fault(hang_up=True, times=2),
    Fault(body=b'{"Events": [', times=2),
    Fault(body=b"\x00\xff", times=2),
    Fault(truncated=True, times=2),
    Fault(raw=b"what?", times=2),
    Fault(slow_s=5.0, times=2),
]


async def test_failing_metadata_is_reported_once_and_costs_no_notice() -> None:
    """Every fault is logged once, one after the other; the sign that follows is noticed."""
    async with MetadataServer(HOST) as server:
        server.faults += FAULTS
        with capture_logs() as logs:
            async with watching(settings_of(server, cloud="azure", cloud_timeout_s=0.2)) as mesh:
                await until(lambda: not any(fault.times for fault in FAULTS))
                await until(lambda: any(line["event"] == "metadata_readable" for line in logs))
                await mesh.beat("w")
                server.announce(mesh.host.clock.now() + 100)
                await until(lambda: mesh.drains)
                assert len(mesh.drains) == 1
                assert mesh.counted("spotwise_spot_questions_total", cloud="azure", outcome="failed") >= 16
        problems = [line["problem"] for line in logs if line["event"] == "metadata_unreadable"]
        assert 4 <= len(problems) <= len(FAULTS)
        assert all(one != other for one, other in pairwise(problems))


async def test_an_absent_server_is_polled_again_and_again() -> None:
    async with watching(settings_of(cloud="gcp")) as mesh:
        await until(lambda: mesh.counted("spotwise_spot_questions_total", cloud="gcp", outcome="failed") >= 3)
        await mesh.beat("w")
        order = Drain("w", mesh.host.clock.now() + 5, "spotwise drain")
        reply = await mesh.host.bus.request(subjects.DRAIN, encode(order), PATIENCE_S)
        assert decode(reply) == DrainReply(True, "")
        await until(lambda: mesh.drains == [order])


async def test_without_a_cloud_nothing_is_polled_and_operators_are_answered() -> None:
    async with MetadataServer(HOST) as server, watching(settings_of(server)) as mesh:
        await mesh.beat("w")
        reply = await mesh.host.bus.request(subjects.DRAIN, encode(Drain("x", 1.0)), PATIENCE_S)
        assert decode(reply) == DrainReply(False, "no worker or device x; there are: w")
        assert server.questions == []


async def test_a_machine_of_no_cloud_is_reported_as_such() -> None:
    async with MetadataServer(HOST, clouds=()) as server:
        with capture_logs() as logs:
            async with watching(settings_of(server, cloud="auto", node_name="node-0")):
                await until(lambda: any(line["event"] == "no_cloud" for line in logs))
    assert [line["queried"] for line in logs if line["event"] == "no_cloud"] == ["aws, gcp, azure, kubernetes"]


async def test_a_journal_is_decided_again(tmp_path: Path) -> None:
    async with MetadataServer(HOST) as server, watching(settings_of(server, cloud="azure", journal=tmp_path)) as mesh:
        await mesh.beat("w")
        server.announce(mesh.host.clock.now() + 100)
        await until(lambda: mesh.drains)
        await mesh.beat("w", State.LEFT)
        await until(lambda: server.acknowledged)
        server.faults.append(Fault(status=500))
        await until(lambda: mesh.counted("spotwise_spot_questions_total", cloud="azure", outcome="failed"))
    (journal,) = find_journals(tmp_path)
    assert (journal.role, journal.parameters["policy"]["host"]) == ("SpotWatcherRole", HOST)
    done = replay(journal)
    assert done.difference is None
    assert {"Member", "MetadataAnswered", "AcknowledgementAnswered", "WatchStarted"} <= set(done.decision_s)


def test_metrics_are_served_where_a_port_is_named() -> None:
    metrics, port = WatcherMetrics(), free_port()
    metrics.notices.inc()
    with served_metrics(metrics.registry, LOOPBACK, port, "SPOTWISE_METRICS_PORT"):
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics") as page:
            assert "spotwise_spot_notices_total 1.0" in page.read().decode()
        with (
            pytest.raises(MeshError, match="SPOTWISE_METRICS_PORT"),
            served_metrics(metrics.registry, LOOPBACK, port, "SPOTWISE_METRICS_PORT"),
        ):
            pass


async def test_certificates_that_are_missing_are_named(tmp_path: Path) -> None:
    settings = settings_of(
        cloud="kubernetes", node_name="n", kubernetes_url="https://127.0.0.1:1", kubernetes_ca_file=tmp_path / "none"
    )
    with pytest.raises(MeshError, match="SPOTWISE_KUBERNETES_CA_FILE"):
        async with cloud_of_this_machine(settings):
            pass


def test_kubernetes_needs_a_node_and_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ValidationError) as wrong:
        SpotWatcherSettings(cloud="kubernetes")
    assert {each["loc"] for each in wrong.value.errors()} == {("node_name",), ("kubernetes_url",)}
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    assert SpotWatcherSettings(cloud="kubernetes", node_name="n").api_server == "https://[fd00::1]:6443"


def test_watched_workers_are_each_named_once() -> None:
    """Without any the machine's name decides."""
    assert SpotWatcherSettings(watched_workers="b,a,b").policy("h").workers == ("b", "a")
    assert SpotWatcherSettings().policy("h").workers == ()
