"""What each role may do on a real broker and a real store: all that it does, and nothing of the others' part."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
import redis
from nats.aio.client import Client

from spotwise.cli.launch.mesh_servers import ServerAccess
from spotwise.core.fleet.keeper.kept import KeptFleet
from spotwise.core.messages.members import Member, MemberState
from spotwise.core.messages.mesh import LedgerEntry
from spotwise.core.planner.plan import Plan
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import SamplingParams
from spotwise.mesh.embedded.servers import nats_server, redis_server, running
from spotwise.mesh.nats.bus import NatsBus
from spotwise.mesh.ports.ports import BusMessage, MeshError
from spotwise.mesh.redis.store import RedisStore
from spotwise.wire import subjects
from spotwise.wire.permissions import Principal
from spotwise.wire.roles import ROLE_OF, MeshRole
from tests.contracts.waiting import until

pytestmark = pytest.mark.mesh

GATEWAY = Principal(MeshRole.GATEWAY, "gateway-0")
SCHEDULER = Principal(MeshRole.SCHEDULER, "scheduler-0")
PLANNER = Principal(MeshRole.PLANNER, "planner-0")
WATCHER = Principal(MeshRole.WATCHER, "watcher-0")
WORKER = Principal(MeshRole.WORKER)
OPERATOR = Principal(MeshRole.OPERATOR)
PRINCIPALS = (GATEWAY, Principal(MeshRole.GATEWAY, "gateway-1"), SCHEDULER, PLANNER, WATCHER, WORKER, OPERATOR)

#: Subjects of the inboxes of some members.
INBOXES = {name: subjects.inbox(name) for name in ("token-0", "scheduler-0", "planner-0")}
OTHER_GATEWAY = subjects.inbox("gateway-1", 7)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerAccess]:
    """A broker with one user for each principal."""
    access = ServerAccess.embedded("")
    server = nats_server(tmp_path_factory.mktemp("nats"), users=access.passwords(PRINCIPALS))
    with running(server):
        yield access.model_copy(update={"url": server.url})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerAccess]:
    """A store with one user for each principal."""
    access = ServerAccess.embedded("")
    server = redis_server(tmp_path_factory.mktemp("redis"), users=access.passwords(PRINCIPALS))
    with running(server):
        yield access.model_copy(update={"url": server.url})


async def refused(url: str, act: Callable[[Client], Awaitable[object]]) -> bool:
    """Whether the broker reports a violation of the permissions for an act of the user in `url`."""
    errors: list[str] = []

    async def on_error(error: Exception) -> None:
        errors.append(str(error))

    client = Client()
    await client.connect(url, error_cb=on_error, allow_reconnect=False)
    try:
        await act(client)
        for _ in range(2):
            await client.flush()
        await asyncio.sleep(0.01)
    finally:
        await client.close()
    return any("permissions violation" in error.lower() for error in errors)


async def may_publish(broker: ServerAccess, principal: Principal, subject: str) -> bool:
    return not await refused(broker.url_of(principal), lambda client: client.publish(subject, b""))


async def may_subscribe(broker: ServerAccess, principal: Principal, subject: str) -> bool:
    return not await refused(broker.url_of(principal), lambda client: client.subscribe(subject))


def heartbeat_of(principal: Principal) -> str:
    kind = next(kind for kind, role in ROLE_OF.items() if role is principal.role)
    return subjects.heartbeat(kind, principal.member_id or "any-id")


async def test_a_member_beats_for_itself_alone(broker: ServerAccess) -> None:
    """No member can publish a heartbeat of another kind, nor one with a fixed id that of another id; the watcher can, since it
    reports members that have died."""
    members = [GATEWAY, PRINCIPALS[1], SCHEDULER, PLANNER, WATCHER, WORKER]
    for principal in members:
        for other in members:
            is_own = principal is other or principal is WATCHER
            assert await may_publish(broker, principal, heartbeat_of(other)) is is_own, (principal.name, other.name)
        assert await may_subscribe(broker, principal, subjects.HEARTBEATS), principal.name
    assert not await may_publish(broker, OPERATOR, heartbeat_of(WORKER))


async def test_no_one_else_reads_a_gateways_inbox(broker: ServerAccess) -> None:
    """Tokens of a gateway's clients reach that gateway only: neither another gateway nor any other role may subscribe."""
    assert await may_subscribe(broker, PRINCIPALS[1], OTHER_GATEWAY)
    for principal in PRINCIPALS:
        if principal.member_id != "gateway-1":
            for subject in (OTHER_GATEWAY, subjects.inbox("*.*"), "spotwise.>", ">"):
                assert not await may_subscribe(broker, principal, subject), (principal.name, subject)


async def test_no_one_else_reads_a_control_services_inbox(broker: ServerAccess) -> None:
    """The scheduler's and the planner's inboxes are theirs; workers share those of workers, and no others (ADR 36)."""
    for principal in (GATEWAY, WATCHER, OPERATOR, SCHEDULER, PLANNER, WORKER):
        for name, subject in INBOXES.items():
            is_own = principal.member_id == name or (principal is WORKER and name == "token-0")
            assert await may_subscribe(broker, principal, subject) is is_own, principal.name


@pytest.mark.parametrize("pattern", [subjects.inbox("*"), subjects.inbox_from(MeshRole.SCHEDULER, "*")])
async def test_a_wildcard_delivers_no_control_services_messages(broker: ServerAccess, pattern: str) -> None:
    """Workers may subscribe to a pattern of all inboxes, since their ids are not known; others' messages are left out."""
    worker = await NatsBus.connect(broker.url_of(WORKER), "a-worker")
    scheduler = await NatsBus.connect(broker.url_of(SCHEDULER), "scheduler-0")
    received: list[str] = []

    async def take(message: BusMessage) -> None:
        received.append(message.subject)

    await worker.subscribe(pattern, take)
    of = {name: subjects.inbox_from(MeshRole.SCHEDULER, name) for name in (*INBOXES, "token-1")}
    for subject in of.values():
        await scheduler.publish(subject, b"a message")
    await until(lambda: len(received) >= 2)
    assert received == [of["token-0"], of["token-1"]]
    for bus in (worker, scheduler):
        await bus.close()


@pytest.mark.parametrize(
    ("subject", "publishers", "subscribers"),
    [
        (subjects.REQUESTS, {GATEWAY}, {SCHEDULER}),
        (subjects.LOAD, {GATEWAY}, {PLANNER}),
        (subjects.NOTICES, {PLANNER, WATCHER}, {WORKER}),
        (subjects.INTERRUPTIONS, {WATCHER}, {PLANNER, WATCHER}),
        (subjects.DRAIN, {OPERATOR}, {WATCHER}),
        (subjects.FLEET, {WATCHER}, {SCHEDULER, PLANNER}),
        (subjects.FLEET_ORDERS, {PLANNER}, {WATCHER}),
        (subjects.SHOW_FLEET, {OPERATOR}, {PLANNER}),
        (subjects.RESHAPE, {OPERATOR}, {PLANNER}),
        (subjects.inbox("token-0"), set(), {WORKER}),
        (OTHER_GATEWAY, set(), set()),
        (subjects.inbox_from(MeshRole.WORKER, subjects.operator_id(1)), {WORKER}, {OPERATOR}),
        (subjects.simulated_kv("token-0"), {WORKER}, {WORKER}),
    ],
)
async def test_each_subject_has_its_roles(
    broker: ServerAccess, subject: str, publishers: set[Principal], subscribers: set[Principal]
) -> None:
    """Who sends there and who receives there may; all others are refused by the broker."""
    for principal in (GATEWAY, SCHEDULER, WORKER, PLANNER, WATCHER, OPERATOR):
        assert await may_publish(broker, principal, subject) is (principal in publishers), principal.name
        assert await may_subscribe(broker, principal, subject) is (principal in subscribers), principal.name


async def test_each_role_writes_to_inboxes_in_its_own_name(broker: ServerAccess) -> None:
    """A gateway may not publish as a scheduler, nor any role as another; a watcher writes to no inbox, and to gateways' only
    schedulers and workers do.
    """
    writers = (GATEWAY, SCHEDULER, WORKER, PLANNER, OPERATOR)
    for principal in (*writers, WATCHER):
        for role in MeshRole:
            is_own = principal.role is role
            for member_id in ("token-0", "scheduler-0"):
                subject = subjects.inbox_from(role, member_id)
                expected = is_own and principal in writers
                assert await may_publish(broker, principal, subject) is expected, (principal.name, subject)
            subject = subjects.inbox_from(role, "gateway-1", 7)
            expected = is_own and principal in (SCHEDULER, WORKER)
            assert await may_publish(broker, principal, subject) is expected, (principal.name, subject)


async def test_what_a_member_receives_lets_it_publish_nowhere(broker: ServerAccess) -> None:
    """The sender of a message chooses where its reply goes, and a member may send to itself: it may reply there all the same
    only where it may publish.
    """
    own = {
        SCHEDULER: subjects.inbox_from(MeshRole.SCHEDULER, "scheduler-0"),
        WORKER: subjects.simulated_kv("token-0"),
        PLANNER: subjects.inbox_from(MeshRole.PLANNER, "planner-0"),
        WATCHER: subjects.INTERRUPTIONS,
    }
    forbidden = subjects.inbox_from(MeshRole.OPERATOR, "token-0")

    async def reply_to_itself(client: Client, subject: str) -> None:
        received = await client.subscribe(subject)
        await client.publish(subject, b"", reply=forbidden)
        await (await received.next_msg(5.0)).respond(b"forged")

    for principal, subject in own.items():
        assert await refused(broker.url_of(principal), lambda client, to=subject: reply_to_itself(client, to)), (  # type: ignore[misc]
            principal.name
        )


async def test_replies_reach_who_asked_and_no_one_else(broker: ServerAccess) -> None:
    """Only who receives a role's requests may reply to them; no other user may listen to replies."""
    scheduler = await NatsBus.connect(broker.url_of(SCHEDULER), "scheduler-0")
    gateway = await NatsBus.connect(broker.url_of(GATEWAY), "gateway-0")

    async def reply(message: BusMessage) -> None:
        assert message.respond is not None
        await message.respond(b"taken")

    await scheduler.subscribe(subjects.REQUESTS, reply)
    assert await gateway.request(subjects.REQUESTS, b"submit", 5.0) == b"taken"
    for bus in (gateway, scheduler):
        await bus.close()
    for principal in (SCHEDULER, WORKER, PRINCIPALS[1], OPERATOR, PLANNER, WATCHER):
        assert not await may_subscribe(broker, principal, "_INBOX.gateway.gateway-0.>")
        replies_to_gateways = principal is SCHEDULER
        assert await may_publish(broker, principal, "_INBOX.gateway.gateway-0.a.b") is replies_to_gateways, (
            principal.name
        )
        replies_to_operators = principal in (PLANNER, WATCHER)
        assert await may_publish(broker, principal, "_INBOX.operator.a.b") is replies_to_operators, principal.name


async def test_strangers_and_wrong_passwords_are_refused(broker: ServerAccess, store: ServerAccess) -> None:
    other = ServerAccess.embedded(broker.url)
    for url in (broker.url, other.url_of(GATEWAY)):
        with pytest.raises(MeshError, match="Authorization"):
            await NatsBus.connect(url, "stranger", connect_timeout_s=0.5)
    for url in (store.url, ServerAccess.embedded(store.url).url_of(GATEWAY)):
        with redis.Redis.from_url(url) as client, pytest.raises(redis.exceptions.AuthenticationError):
            client.ping()


RECORD = RequestRecord("r#0", 1, "gateway-0", 1, "m", (1, 2), (), SamplingParams(), StopCriteria(5), 1.0)


@asynccontextmanager
async def opened(store: ServerAccess, principal: Principal) -> AsyncIterator[RedisStore]:
    opened = await RedisStore.connect(store.url_of(principal))
    try:
        yield opened
    finally:
        await opened.close()


async def test_every_member_registers_and_writes_its_ledger(store: ServerAccess) -> None:
    kinds = {role: kind for kind, role in ROLE_OF.items()}
    for principal in (GATEWAY, SCHEDULER, PLANNER, WATCHER, WORKER):
        async with opened(store, principal) as mesh:
            member_id = principal.member_id or "token-0"
            incarnation = await mesh.next_incarnation(member_id, 5)
            member = Member(member_id, kinds[principal.role], incarnation, MemberState.READY, "h", 1, "h:1")
            await mesh.register(member, 60.0)
            assert member_id in {each.id for each in await mesh.members()}
            assert [each.id for each in await mesh.registered([member_id])] == [member_id]
            await mesh.append_ledger(LedgerEntry("r#0", 1, "queued", member_id, 1.0, ()))
            await mesh.unregister(member_id)


async def test_each_role_does_its_part_in_the_store(store: ServerAccess) -> None:
    """Gateways write records, workers read them; the planner writes plans, workers and commands read them; the keeper keeps its
    fleet; commands read ledgers."""
    plan = Plan(1, 1, 1)
    async with opened(store, GATEWAY) as gateway, opened(store, WORKER) as worker:
        await gateway.put_record(RECORD)
        assert await worker.get_record("r#0") == RECORD
        await gateway.delete_record("r#0")
        await gateway.get_ledger("r")
        assert await gateway.get_request("r") is None
    async with opened(store, SCHEDULER) as scheduler:
        assert await scheduler.hold_term(subjects.SCHEDULER, "scheduler-0/1", 1, 30.0) is not None
        await scheduler.end_term(subjects.SCHEDULER, "scheduler-0/1")
    async with opened(store, PLANNER) as planner, opened(store, WORKER) as worker, opened(store, OPERATOR) as operator:
        assert await planner.hold_term(subjects.PLANNER, "planner-0/1", 1, 30.0) is not None
        assert await planner.put_plan("planner-0/1", plan)
        for reader in (planner, worker, operator):
            assert await reader.get_plan() == plan
        await planner.end_term(subjects.PLANNER, "planner-0/1")
        assert await operator.members() == []
        await operator.get_ledger("r")
    async with opened(store, WATCHER) as watcher:
        assert await watcher.get_fleet("default") is None
        assert await watcher.put_fleet("default", KeptFleet(incarnation=1))


async def test_no_role_does_anothers_part_in_the_store(store: ServerAccess) -> None:
    """A key of another role is refused, with an error that names where roles and keys are written down."""
    acts: list[tuple[Principal, Callable[[RedisStore], Awaitable[object]]]] = [
        (GATEWAY, lambda mesh: mesh.get_plan()),
        (GATEWAY, lambda mesh: mesh.hold_term(subjects.SCHEDULER, "gateway-0/1", 1, 30.0)),
        (SCHEDULER, lambda mesh: mesh.get_ledger("r")),
        (SCHEDULER, lambda mesh: mesh.get_record("r#0")),
        (SCHEDULER, lambda mesh: mesh.put_record(RECORD)),
        (WORKER, lambda mesh: mesh.put_plan("planner-0/1", Plan(1, 1, 1))),
        (WORKER, lambda mesh: mesh.put_fleet("default", KeptFleet(incarnation=1))),
        (PLANNER, lambda mesh: mesh.get_record("r#0")),
        (WATCHER, lambda mesh: mesh.get_record("r#0")),
        (WATCHER, lambda mesh: mesh.end_term(subjects.PLANNER, "planner-0/1")),
        (OPERATOR, lambda mesh: mesh.put_record(RECORD)),
        (OPERATOR, lambda mesh: mesh.get_record("r#0")),
    ]
    for principal, act in acts:
        async with opened(store, principal) as mesh:
            with pytest.raises(MeshError, match=r"wire/permissions\.py"):
                await act(mesh)


def test_no_role_touches_the_server_or_other_programs_keys(store: ServerAccess) -> None:
    for principal in PRINCIPALS:
        with redis.Redis.from_url(store.url_of(principal)) as client:
            for command in (("FLUSHALL",), ("CONFIG", "GET", "*"), ("ACL", "LIST"), ("KEYS", "*"), ("SHUTDOWN",)):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.execute_command(*command)
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command("GET", "another-programs-key")
