"""The names of subjects and keys, and the table of who may use them."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from spotwise.core.access.store_budget import Kind
from spotwise.core.messages.members import MemberKind
from spotwise.wire import subjects
from spotwise.wire.permissions import KEY_RULES, Principal, store_rule, subject_rule
from spotwise.wire.roles import ROLE_OF, MeshRole

ALL = [Principal(role) for role in MeshRole]
_OF_SERVICES = ("lease_key", "term_key", "term_holder_key")
_OF_KINDS = ("room_key", "room_bytes_key")


def test_every_kind_of_member_has_a_role() -> None:
    assert set(ROLE_OF) == set(MemberKind)
    assert set(ROLE_OF.values()) == set(MeshRole) - {MeshRole.OPERATOR}


def keys_of_the_mesh() -> list[str]:
    """Every key that `subjects` names, for some id, or some service with terms."""
    names = [name for name in vars(subjects) if name.endswith("_KEY")]
    known = {**dict.fromkeys(_OF_SERVICES, subjects.PLANNER), **dict.fromkeys(_OF_KINDS, Kind.RESPONSES.value)}
    functions = {name: known.get(name, "an-id") for name in vars(subjects) if name.endswith("_key")}
    return [getattr(subjects, name) for name in names] + [getattr(subjects, name)(of) for name, of in functions.items()]


@pytest.mark.parametrize("key", keys_of_the_mesh())
def test_every_key_has_a_rule(key: str) -> None:
    """A key without a rule could be used by no service of a mesh with users: add one to `KEY_RULES`."""
    writers = [each for each in ALL if _access(each, key)[1]]
    assert writers, f"no role may write {key}: add a rule to KEY_RULES in libs/spotwise/wire/permissions.py"
    assert any(_access(each, key)[0] for each in ALL), f"no role may read {key}"


def _access(principal: Principal, key: str) -> tuple[bool, bool]:
    found = [access for pattern, access in store_rule(principal).access.items() if fnmatchcase(key, pattern)]
    return any(reads for reads, _ in found), any(writes for _, writes in found)


SUBJECTS = [
    value
    for name, value in vars(subjects).items()
    if name[0].isupper() and name.isupper() and isinstance(value, str) and value.startswith("spotwise.v1.")
]


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_subject_has_a_sender_and_a_receiver(subject: str) -> None:
    """A subject that no role may use would lose its messages without an error."""
    assert any(subject in subject_rule(each).publish for each in ALL), f"add {subject} to wire/permissions.py"
    assert any(subject in subject_rule(each).subscribe for each in ALL), f"add {subject} to wire/permissions.py"


def test_a_member_with_a_fixed_id_is_held_to_it() -> None:
    """No pattern of a control service or a gateway leaves its own id open."""
    rule = subject_rule(Principal(MeshRole.GATEWAY, "gateway-0"))
    assert subjects.heartbeat(MemberKind.GATEWAY, "gateway-0") in rule.publish
    assert subjects.inbox("gateway-0.*") in rule.subscribe
    assert "_INBOX.gateway.gateway-0.>" in rule.subscribe
    keys = store_rule(Principal(MeshRole.GATEWAY, "gateway-0")).access
    assert keys[subjects.member_key("gateway-0")] == (True, True)
    assert keys[subjects.MEMBER_KEYS] == (True, False)


def test_no_template_is_left_open() -> None:
    for principal in (*ALL, *(Principal(role, "x") for role in MeshRole)):
        rule = subject_rule(principal)
        patterns = (*rule.publish, *rule.subscribe, *store_rule(principal).access)
        assert not [each for each in patterns if "{" in each]


def test_no_role_may_all() -> None:
    """No rule has a command that reaches beyond the mesh's keys, or a pattern of all of them."""
    dangerous = {"flushall", "flushdb", "config", "acl", "keys", "shutdown", "debug", "eval_ro", "script"}
    assert not dangerous & {word for rule in KEY_RULES for words in rule.commands.values() for word in words.split()}
    assert not [key for rule in KEY_RULES for key in rule.keys if key in ("*", "spotwise:*")]


def test_each_member_has_an_inbox_and_a_heartbeat_of_its_own() -> None:
    names = [subjects.inbox(member) for member in ("a", "b")]
    names += [subjects.heartbeat(kind, member) for kind in MemberKind for member in ("a", "b")]
    assert len(set(names)) == 2 + 2 * len(MemberKind)
    assert subjects.inbox("w") == "spotwise.v1.inbox.w.from.*"
    assert subjects.inbox("g", 7) == "spotwise.v1.inbox.g.7.from.*"


def test_an_inbox_receives_from_every_role_and_knows_which() -> None:
    for role in MeshRole:
        for incarnation in (None, 7):
            subject = subjects.inbox_from(role, "w", incarnation)
            assert fnmatchcase(subject, subjects.inbox("w", incarnation))
            assert not fnmatchcase(subject, subjects.inbox("v", incarnation))
            assert subjects.is_inbox(subject)
            assert subjects.sender_of(subject) is role
    for subject in ("spotwise.v1.inbox.w", subjects.inbox("w"), "spotwise.v1.inbox.w.from.root"):
        assert subjects.sender_of(subject) is None
    assert not subjects.is_inbox(subjects.REQUESTS)


def test_the_wildcard_matches_every_heartbeat_and_nothing_else() -> None:
    """A NATS `*` stands for one part of a subject, so the wildcard matches every heartbeat and nothing else."""
    prefix, *stars = subjects.HEARTBEATS.rsplit(".", 2)
    assert stars == ["*", "*"]
    assert subjects.heartbeat(MemberKind.GATEWAY, "w").rsplit(".", 2) == [prefix, "gateway", "w"]
    assert subjects.heartbeats_of("w").rsplit(".", 2) == [prefix, "*", "w"]
    for other in (subjects.inbox("w"), subjects.REQUESTS, subjects.NOTICES, subjects.DRAIN):
        assert not fnmatchcase(other, subjects.HEARTBEATS)


def test_choices_share_their_ledger_and_have_records_of_their_own() -> None:
    """`n` choices are one API request in the ledger."""
    assert subjects.ledger_key("api#0") == subjects.ledger_key("api#1") == subjects.ledger_key("api")
    assert subjects.ledger_key("api") != subjects.ledger_key("other")
    assert subjects.request_key("api#0") != subjects.request_key("api#1")


def test_keys_of_different_kinds_never_meet() -> None:
    assert len({subjects.request_key("x"), subjects.ledger_key("x"), subjects.member_key("x")}) == 3
    assert fnmatchcase(subjects.member_key("w"), subjects.MEMBER_KEYS)
    assert not fnmatchcase(subjects.request_key("w"), subjects.MEMBER_KEYS)
