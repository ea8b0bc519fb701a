"""Configuration of broker and store from the table of permissions."""

from __future__ import annotations

import hashlib

from spotwise.mesh.embedded.configs import broker_config, derived_password, store_acl
from spotwise.wire import subjects
from spotwise.wire.permissions import Principal
from spotwise.wire.roles import MeshRole

GATEWAY = Principal(MeshRole.GATEWAY, "gateway-0")
USERS = {GATEWAY: "for-a-gateway", Principal(MeshRole.WORKER): "for-workers"}


def test_passwords_differ_by_user_and_mesh() -> None:
    """One user's password is none of another, nor of the same one in another mesh."""
    passwords = {derived_password(root, principal) for root in ("a", "b") for principal in USERS}
    assert len(passwords) == 4
    assert derived_password("a", GATEWAY) == derived_password("a", GATEWAY)
    assert all(len(each) == 64 for each in passwords)


def test_an_acl_has_hashes_alone_and_the_default_user_off() -> None:
    """The store's users are named, and a reader of the file learns no password."""
    default, gateway, worker = store_acl(USERS, separates_reads=False).splitlines()
    assert default == "user default off"
    assert gateway.startswith("user gateway.gateway-0 on #" + hashlib.sha256(b"for-a-gateway").hexdigest())
    assert " -@all +" in gateway
    assert "for-" not in gateway + worker
    assert f"~{subjects.request_key('*')}" in gateway.split()


def test_redis_7_separates_reading_and_writing() -> None:
    """A gateway lists members and writes its own registration; a worker only reads records and plans."""
    _, gateway, worker = store_acl(USERS, separates_reads=True).splitlines()
    assert f"~{subjects.request_key('*')}" in gateway.split()
    assert f"%R~{subjects.MEMBER_KEYS}" in gateway.split()
    assert f"~{subjects.member_key('gateway-0')}" in gateway.split()
    assert f"%R~{subjects.request_key('*')}" in worker.split()
    assert f"%R~{subjects.PLAN_KEY}" in worker.split()


def test_a_broker_has_no_user_without_permissions() -> None:
    """Each user has lists of what it may publish and subscribe."""
    config = broker_config(USERS)
    assert config.count('"user"') == config.count('"permissions"') == 2
    assert "allow_responses" not in config  # a user that sends to itself could have it for any subject
