"""Tests of tenant and priority: what the API key and the body set for the request."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from pydantic import ValidationError

from spotwise.gateway.access.auth import ApiKey, parse_api_keys, tenant_of
from spotwise.gateway.settings import GatewaySettings
from tests.unit.gateway.apps import Http, Json, MakeApp, connect
from tests.unit.gateway.fake_mesh import BOTH, COMPLETION, COMPLETIONS, FakeMesh


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

    @pytest.mark.parametrize(("path", "body"), BOTH.items())
    async def test_it_goes_with_every_sequence(self, make_app: MakeApp, mesh: FakeMesh, path: str, body: Json) -> None:
        app = make_app(api_keys=(ApiKey("key-1", "acme"), ApiKey("key-2")))
        for key, user, tenant in (("key-1", "bob", "acme"), ("key-2", "bob", "user:bob"), ("key-2", None, "")):
            mesh.specs.clear()
            async with connect(app, Authorization=f"Bearer {key}") as client:
                assert (await client.post(path, json=body | {"user": user, "n": 2})).status_code == 200
            assert [spec.tenant for spec in mesh.specs.values()] == [tenant, tenant]
            assert "key-" not in repr(mesh.specs)

    async def test_without_keys_users_are_distinguished_all_the_same(self, client: Http, mesh: FakeMesh) -> None:
        """An open API trusts the `user` parameter."""
        await client.post(COMPLETIONS, json=COMPLETION | {"user": "bob"})
        assert mesh.spec.tenant == "user:bob"


class TestPrefixSalt:
    """Whose prompts share the KV of their beginnings."""

    KEYS = (ApiKey("key-1", "acme"), ApiKey("key-2", "acme"), ApiKey("key-3", "other"), ApiKey("key-4"))

    @pytest.mark.parametrize("shares_prefixes", [False, True])
    async def test_keys_of_one_name_and_equal_salts_share_and_no_others(
        self, make_app: MakeApp, mesh: FakeMesh, shares_prefixes: bool
    ) -> None:
        """Whatever `user` says: a client chooses it. A mesh may share all prompts but for those with a `cache_salt`."""
        app = make_app(api_keys=self.KEYS, shares_prefixes=shares_prefixes)
        found: dict[tuple[str, str], set[str]] = {}
        for key in self.KEYS:
            async with connect(app, Authorization=f"Bearer {key.key}") as client:
                for salt, user in itertools.product(("", "s", "t"), ("bob", "eve")):
                    mesh.specs.clear()
                    given = {"user": user} | ({"cache_salt": salt} if salt else {})
                    answer = await client.post(COMPLETIONS, json=COMPLETION | given)
                    assert answer.status_code == 200, answer.text
                    group = "" if shares_prefixes else key.name, salt
                    found.setdefault(group, set()).add(mesh.spec.prefix_salt)
        assert all(len(salts) == 1 for salts in found.values())
        assert len(set.union(*found.values())) == len(found)
        assert found["", ""] == {""}


class TestPriority:
    """vLLM's parameter `priority`."""

    @pytest.mark.parametrize(("path", "body"), BOTH.items())
    @pytest.mark.parametrize(
        ("given", "priority"),
        [({}, 0), ({"priority": None}, 0), ({"priority": -(2**31)}, -(2**31)), ({"priority": 7}, 7)],
    )
    async def test_it_goes_with_every_sequence(
        self, client: Http, mesh: FakeMesh, path: str, body: Json, given: Json, priority: int
    ) -> None:
        assert (await client.post(path, json=body | given | {"n": 2})).status_code == 200
        assert [spec.priority for spec in mesh.specs.values()] == [priority, priority]

    @pytest.mark.parametrize(("path", "body"), BOTH.items())
    async def test_the_server_bounds_it(self, make_app: MakeApp, mesh: FakeMesh, path: str, body: Json) -> None:
        """A client can put itself before others down to that number, which the API's description has."""
        async with connect(make_app(least_priority=-3)) as client:
            refused = await client.post(path, json=body | {"priority": -4})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "priority")
            assert "at least -3" in refused.json()["error"]["message"]
            for priority in (-3, None):
                assert (await client.post(path, json=body | {"priority": priority})).status_code == 200
            assert (
                '"priority":{"anyOf":[{"maximum":2147483647,"minimum":-3,' in (await client.get("/openapi.json")).text
            )
        assert [spec.priority for spec in mesh.specs.values()] == [-3, 0]
