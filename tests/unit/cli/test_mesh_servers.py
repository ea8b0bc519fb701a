"""What each process of a mesh logs in to broker and store with."""

from __future__ import annotations

from urllib.parse import urlsplit

from spotwise.cli.launch.mesh_processes import mesh_processes
from spotwise.cli.launch.mesh_servers import OPERATOR, WORKER, MeshServers, ServerAccess, principal_of, principals_of
from spotwise.cli.launch.service_process import ServiceProcess
from spotwise.wire.permissions import ADMIN
from tests.unit.cli.builders import local_host, mesh_options

SERVERS = MeshServers(
    broker=ServerAccess.embedded("nats://127.0.0.1:1"), store=ServerAccess.embedded("redis://127.0.0.1:2/0")
)


def services(servers: MeshServers = SERVERS) -> dict[str, ServiceProcess]:
    options = mesh_options(mixed_workers=1)
    planned = mesh_processes(options, *servers.urls(WORKER), local_host())
    return {each.service_id: servers.logged_in(each) for each in planned}


def users(service: ServiceProcess, prefix: str = "SPOTWISE_") -> set[str | None]:
    return {urlsplit(service.env[f"{prefix}{name}"]).username for name in ("NATS_URL", "REDIS_URL")}


def test_each_service_has_a_user_of_its_own_and_workers_share_one() -> None:
    """Ids of gateways and control services are fixed, those of workers are chosen while the mesh runs."""
    found = {service_id: users(service) for service_id, service in services().items()}
    assert found == {
        "gateway-0": {"gateway.gateway-0"},
        "scheduler-0": {"scheduler.scheduler-0"},
        "planner-0": {"planner.planner-0"},
        "watcher-0": {"watcher.watcher-0"},
        "prompt-0": {"worker"},
        "token-0": {"worker"},
        "mixed-0": {"worker"},
    }


def test_no_service_has_anothers_password() -> None:
    planned = services()
    passwords: dict[str, set[str]] = {}
    for service in planned.values():
        for name in ("NATS_URL", "REDIS_URL"):
            url = urlsplit(service.env[f"SPOTWISE_{name}"])
            assert url.username and url.password
            passwords.setdefault(url.username, set()).add(url.password)
    assert all(len(each) == 2 for each in passwords.values())
    assert len({password for each in passwords.values() for password in each}) == 2 * len(passwords)
    roots = [SERVERS.broker.root, SERVERS.store.root]
    assert not [root for root in roots if root is None or root in str(planned)]


def test_a_watchers_instances_are_workers() -> None:
    """Devices that the watcher starts get the workers' user, never the watcher's own."""
    planned = services()
    assert users(planned["watcher-0"], "SPOTWISE_FLEET_") == {"worker"}
    assert "SPOTWISE_FLEET_NATS_URL" not in planned["planner-0"].env


def test_the_servers_get_all_users() -> None:
    """Those of all services, of workers that may join, of commands, and of who looks into the servers by hand."""
    planned = list(services().values())
    principals = principals_of(planned)
    assert {principal_of(each) for each in planned} | {WORKER, OPERATOR, ADMIN} == set(principals)
    assert set(SERVERS.broker.passwords(principals)) == set(principals)


def test_servers_of_the_users_own_keep_their_urls() -> None:
    given = MeshServers(broker=ServerAccess(url="nats://a:b@h:1"), store=ServerAccess(url="redis://:c@h:2/0"))
    for service in services(given).values():
        assert service.env["SPOTWISE_NATS_URL"] == "nats://a:b@h:1"
        assert service.env["SPOTWISE_REDIS_URL"] == "redis://:c@h:2/0"
