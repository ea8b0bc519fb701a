"""The names of subjects and keys."""

from __future__ import annotations

from fnmatch import fnmatchcase

from spotwise.core.messages.members import MemberKind
from spotwise.wire import subjects
from spotwise.wire.roles import MeshRole


def test_each_member_has_an_inbox_and_a_heartbeat_of_its_own() -> None:
    names = [subjects.inbox(member) for member in ("a", "b")]
    names += [subjects.heartbeat(kind, member) for kind in MemberKind for member in ("a", "b")]
    assert len(set(names)) == 2 + 2 * len(MemberKind)
    assert subjects.inbox("w") == "spotwise.v1.inbox.w.from.*"
    assert subjects.inbox("g", 7) == "spotwise.v1.inbox.g.7.from.*"


def test_an_inbox_receives_from_every_role_and_knows_which() -> None:
    """The subject that a role publishes on matches the receiver's pattern, and no other member's; it gives the role back."""
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
