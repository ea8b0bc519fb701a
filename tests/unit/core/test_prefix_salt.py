"""Whose prompts share the KV of their beginnings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.requests.names import AdapterRef
from spotwise.core.requests.prefixes import prefix_salt, root_hash

NAMES = st.text(max_size=4)


@given(NAMES, NAMES, NAMES, NAMES)
def test_only_equal_tenants_with_equal_salts_share(tenant: str, cache_salt: str, other: str, other_salt: str) -> None:
    """However the two are cut: a client cannot choose a salt that makes its tenant another one."""
    is_equal = (tenant, cache_salt) == (other, other_salt)
    assert (prefix_salt(tenant, cache_salt) == prefix_salt(other, other_salt)) == is_equal


@given(NAMES, NAMES, st.none() | st.builds(AdapterRef, NAMES, st.sampled_from(["1", "2"])))
def test_an_adapter_shares_with_itself_alone(tenant: str, cache_salt: str, adapter: AdapterRef | None) -> None:
    """By its weights, whatever it is called, and with the same tenant and the same client's salt."""
    renamed = None if adapter is None else AdapterRef("another name", adapter.digest)
    others = [AdapterRef("a", digest) for digest in "123" if adapter is None or digest != adapter.digest]
    salt = prefix_salt(tenant, cache_salt, adapter)
    assert prefix_salt(tenant, cache_salt, renamed) == salt
    assert all(prefix_salt(tenant, cache_salt, other) != salt for other in others)
    assert prefix_salt(tenant + "x", cache_salt, adapter) != salt != prefix_salt(tenant, cache_salt + "x", adapter)
    assert (prefix_salt(tenant, cache_salt) == salt) == (adapter is None)


def test_a_salt_tells_neither_tenant_nor_what_the_client_adds() -> None:
    """It travels in records, which others may read."""
    salt = prefix_salt("acme", "secret")
    assert "acme" not in salt and "secret" not in salt
    assert len(salt) == 32


def test_without_tenant_and_salt_all_share() -> None:
    assert prefix_salt("") == ""
    assert root_hash("m", "") != root_hash("m", prefix_salt("a")) != root_hash("n", prefix_salt("a"))
