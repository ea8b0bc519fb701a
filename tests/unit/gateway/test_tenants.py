"""Tests of tenant and priority: what the API key and the body set for the request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from pydantic import ValidationError
from starlette.applications import Starlette

from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.core.messages.mesh import CloseRequest, RejectCode, RequestRejected, SubmitRequest
from spotwise.core.requests.prefixes import prefix_spans
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import SamplingParams
from spotwise.gateway.access.auth import ApiKey, parse_api_keys, tenant_of
from spotwise.gateway.generate.generation import SequenceSpec
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.mesh.client import MeshGeneration
from spotwise.gateway.settings import GatewaySettings
from spotwise.http.errors import GenerationError
from spotwise.mesh.embedded.servers import LOOPBACK
from spotwise.mesh.grpc.control import ControlServer
from spotwise.mesh.ports.ports import BusMessage
from spotwise.mesh.service.host import ServiceHost
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode
from tests.fakes.memory import MemoryBroker, MemoryBus, MemoryStore
from tests.unit.gateway.fake_mesh import CHAT, COMPLETION, MODEL, FakeMesh

MakeApp = Callable[..., Starlette]
BOTH = [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)]


class TestListedKeys:
    """The setting `SPOTWISE_API_KEYS`."""

    @pytest.mark.parametrize(
        ("listed", "keys"),
        [
            ("", ()),
            (" , ", ()),
            ("k1,k2", (ApiKey("k1"), ApiKey("k2"))),
            ("acme:k1, k2 ,", (ApiKey("k1", "acme"), ApiKey("k2"))),
            ("acme:k1,acme:k2", (ApiKey("k1", "acme"), ApiKey("k2", "acme"))),
            ("acme:k1,acme:k1", (ApiKey("k1", "acme"),)),
            ("a : QUJD+/==", (ApiKey("QUJD+/==", "a"),)),
        ],
    )
    def test_a_key_may_have_a_name(self, listed: str, keys: tuple[ApiKey, ...]) -> None:
        """A name may have several keys, so that one can take another's place; keys may be base64."""
        assert parse_api_keys(listed) == keys

    @pytest.mark.parametrize(
        ("listed", "says"),
        [
            (":secret", "entry 1: a key's name"),
            ("k1,ac me:secret", "entry 2: a key's name"),
            ("a:b:secret", "entry 1: a key's name"),
            ("x" * 65 + ":secret", "entry 1: a key's name"),
            ("acme:", "entry 1: there is no key"),
            ("secret,acme:secret", "entry 2: the same key"),
        ],
    )
    def test_a_wrong_entry_is_named_by_its_place(self, model_dir: Path, listed: str, says: str) -> None:
        """A wrong entry is reported at the gateway's start by its place, so that the log contains no part of a key."""
        with pytest.raises(ValidationError) as caught:
            GatewaySettings(service_id="gateway-0", model_dir=model_dir, api_keys=listed)
        (problem,) = caught.value.errors()
        assert problem["loc"] == ("api_keys",) and says in problem["msg"]
        assert "secret" not in str(caught.value) and "ac me" not in str(caught.value)

    def test_keys_are_not_shown(self, model_dir: Path) -> None:
        settings = GatewaySettings(service_id="gateway-0", model_dir=model_dir, api_keys="acme:keykey,yekyek")
        assert settings.bearer_keys == (ApiKey("keykey", "acme"), ApiKey("yekyek"))
        for shown in (repr(settings), repr(settings.bearer_keys)):
            assert "keykey" not in shown and "yekyek" not in shown


class TestTenant:
    """The key's name, else the user that the body names."""

    @pytest.mark.parametrize(
        ("key_name", "user", "tenant"),
        [
            ("", None, ""),
            ("", "", ""),
            ("acme", None, "acme"),
            ("acme", "bob", "acme"),
            ("", "bob", "user:bob"),
            ("", "ü" * 32, "user:" + "ü" * 32),
        ],
    )
    def test_a_key_takes_precedence_over_a_body(self, key_name: str, user: str | None, tenant: str) -> None:
        """A key's name takes precedence over the body's user, and no user can be taken for a key's name."""
        assert tenant_of(key_name, user) == tenant

    def test_long_users_are_bounded_and_stay_apart(self) -> None:
        """A long user is replaced by its hash, which is the same on every gateway."""
        tenants = [tenant_of("", "x" * 10_000 + end) for end in "ab"]
        assert tenants[0] != tenants[1] and max(map(len, tenants)) < 80
        assert tenants[0] == tenant_of("", "x" * 10_000 + "a")

    @pytest.mark.parametrize(("path", "body"), BOTH)
    async def test_it_goes_with_every_sequence(
        self, make_app: MakeApp, mesh: FakeMesh, path: str, body: dict[str, Any]
    ) -> None:
        """Every sequence has the tenant of its key or user, and the key itself is in none."""
        app = make_app(api_keys=(ApiKey("key-1", "acme"), ApiKey("key-2")))
        for key, user, tenant in (("key-1", "bob", "acme"), ("key-2", "bob", "user:bob"), ("key-2", None, "")):
            mesh.specs.clear()
            transport, headers = httpx.ASGITransport(app), {"Authorization": f"Bearer {key}"}
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
                assert (await client.post(path, json=body | {"user": user, "n": 2}, headers=headers)).status_code == 200
            assert [spec.tenant for spec in mesh.specs.values()] == [tenant, tenant]
            assert "key-" not in repr(mesh.specs)

    async def test_without_keys_users_are_distinguished_all_the_same(
        self, client: httpx.AsyncClient, mesh: FakeMesh
    ) -> None:
        """An open API trusts the `user` parameter."""
        await client.post("/v1/completions", json=COMPLETION | {"user": "bob"})
        assert mesh.spec.tenant == "user:bob"


class TestPrefixSalt:
    """Whose prompts share the KV of their beginnings."""

    KEYS = (ApiKey("key-1", "acme"), ApiKey("key-2", "acme"), ApiKey("key-3", "other"), ApiKey("key-4"))

    async def salts(self, app: Starlette, mesh: FakeMesh, *requests: tuple[str, dict[str, Any]]) -> list[str]:
        """The salts of completions with these keys and parameters."""
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            for key, given in requests:
                headers = {"Authorization": f"Bearer {key}"}
                answer = await client.post("/v1/completions", json=COMPLETION | given, headers=headers)
                assert answer.status_code == 200, answer.text
        return [spec.prefix_salt for spec in mesh.specs.values()]

    async def test_keys_of_one_name_share_and_no_others(self, make_app: MakeApp, mesh: FakeMesh) -> None:
        """Whatever `user` says: a client chooses it."""
        requests = [(f"key-{number}", {"user": user}) for number in (1, 2, 3, 4) for user in ("bob", "eve")]
        one, again, two, two_again, other, other_again, plain, plain_again = await self.salts(
            make_app(api_keys=self.KEYS), mesh, *requests
        )
        assert one == again == two == two_again != ""
        assert other == other_again != one
        assert plain == plain_again == ""

    async def test_a_cache_salt_divides_further(self, make_app: MakeApp, mesh: FakeMesh) -> None:
        """Equal salts of two tenants are not equal; those of one are."""
        given = {"cache_salt": "s"}
        without, salted, again, other, mine = await self.salts(
            make_app(api_keys=self.KEYS),
            mesh,
            ("key-1", {}),
            ("key-1", given),
            ("key-2", given),
            ("key-3", given),
            ("key-1", {"cache_salt": "t"}),
        )
        assert salted == again
        assert len({without, salted, other, mine}) == 4

    async def test_a_mesh_may_share_them_all(self, make_app: MakeApp, mesh: FakeMesh) -> None:
        """But for prompts with a `cache_salt`."""
        one, other, salted = await self.salts(
            make_app(api_keys=self.KEYS, shares_prefixes=True),
            mesh,
            ("key-1", {}),
            ("key-3", {}),
            ("key-3", {"cache_salt": "s"}),
        )
        assert one == other == "" != salted

    @pytest.mark.parametrize("salt", ["", "x" * 1025, 7, [], {}], ids=repr)
    async def test_a_wrong_cache_salt_is_refused(self, client: httpx.AsyncClient, salt: Any) -> None:
        """As vLLM does, an empty one, too."""
        answer = await client.post("/v1/completions", json=COMPLETION | {"cache_salt": salt})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "cache_salt")


class TestPriority:
    """vLLM's parameter `priority`."""

    @pytest.mark.parametrize(("path", "body"), BOTH)
    @pytest.mark.parametrize(
        ("given", "priority"),
        [({}, 0), ({"priority": None}, 0), ({"priority": -(2**31)}, -(2**31)), ({"priority": 7}, 7)],
    )
    async def test_it_goes_with_every_sequence(
        self,
        client: httpx.AsyncClient,
        mesh: FakeMesh,
        path: str,
        body: dict[str, Any],
        given: dict[str, Any],
        priority: int,
    ) -> None:
        assert (await client.post(path, json=body | given | {"n": 2})).status_code == 200
        assert [spec.priority for spec in mesh.specs.values()] == [priority, priority]

    @pytest.mark.parametrize(("path", "body"), BOTH)
    async def test_the_server_bounds_it(
        self, make_app: MakeApp, mesh: FakeMesh, path: str, body: dict[str, Any]
    ) -> None:
        """A client can put itself before others down to that number, which the API's description has."""
        transport = httpx.ASGITransport(make_app(least_priority=-3))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            refused = await client.post(path, json=body | {"priority": -4})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "priority")
            assert "at least -3" in refused.json()["error"]["message"]
            for priority in (-3, None):
                assert (await client.post(path, json=body | {"priority": priority})).status_code == 200
            assert (
                '"priority":{"anyOf":[{"maximum":2147483647,"minimum":-3,' in (await client.get("/openapi.json")).text
            )
        assert [spec.priority for spec in mesh.specs.values()] == [-3, 0]


async def test_scheduler_and_workers_learn_of_it(model_dir: Path) -> None:
    """The scheduler the priority, by which requests wait; workers both, from the record, which is written before."""
    reported: list[tuple[SubmitRequest, RequestRecord | None]] = []
    settings = GatewaySettings(service_id="gateway-0", model_dir=model_dir, model_name=MODEL)
    broker, store, control = MemoryBroker(), MemoryStore(), ControlServer(LOOPBACK, 0)
    member = Member("gateway-0", MemberKind.GATEWAY, 1, MemberState.STARTING, "a-host", 1, "a-host:1")

    async def refuse(message: BusMessage) -> None:
        order = decode(message.payload)
        if isinstance(order, CloseRequest):
            return
        assert isinstance(order, SubmitRequest) and message.respond is not None
        reported.append((order, await store.get_record(order.choice_id)))
        await message.respond(encode(RequestRejected(order.choice_id, 1, RejectCode.MESH_FULL, "full", 1.0)))

    async with ServiceHost(settings, MemoryBus(broker), store, control, member).joined() as host:
        await MemoryBus(broker).subscribe(subjects.REQUESTS, refuse)
        generation = MeshGeneration(host, settings.submission, GatewayMetrics(CollectorRegistry(), MODEL))
        await generation.start()
        spec = SequenceSpec(
            tuple(range(64)), SamplingParams(), StopCriteria(8), priority=-4, tenant="acme", prefix_salt="salt"
        )
        with pytest.raises(GenerationError, match="full"):
            async for _ in generation.generate("r", spec):
                pass
    ((order, record),) = reported
    assert order.priority == -4
    assert record is not None and (record.priority, record.tenant, record.prefix_salt) == (-4, "acme", "salt")
    assert order.prefix_spans == prefix_spans(MODEL, range(64), "salt") != prefix_spans(MODEL, range(64))
