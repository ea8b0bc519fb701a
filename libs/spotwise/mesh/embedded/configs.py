"""Configuration of nats-server and redis-server that lets each principal do what `wire.permissions` says, and nothing else."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence

from spotwise.wire import subjects
from spotwise.wire.permissions import ADMIN, Principal, store_rule, subject_rule


def derived_password(root: str, principal: Principal) -> str:
    """Return a principal's password at one server, from which neither `root` nor another's can be computed."""
    return hmac.new(root.encode(), principal.name.encode(), hashlib.sha256).hexdigest()


def broker_config(passwords: Mapping[Principal, str]) -> str:
    """Return the `authorization` of nats-server's configuration: one user for each principal, and none for strangers."""
    fixed_ids = [principal.member_id for principal in passwords if principal.member_id is not None]
    fixed = [subjects.inbox(of) for each in fixed_ids for of in (each, f"{each}.*")]
    users = [_broker_user(principal, password, fixed) for principal, password in passwords.items()]
    # Its format includes JSON.
    return "authorization: {\n  users: [\n    " + ",\n    ".join(map(json.dumps, users)) + "\n  ]\n}\n"


def _broker_user(principal: Principal, password: str, fixed_inboxes: Sequence[str]) -> dict[str, object]:
    rule = subject_rule(principal)
    subscribe = {"allow": rule.subscribe}
    if principal.member_id is None:  # its pattern of inboxes matches those of members with users of their own
        subscribe["deny"] = tuple(fixed_inboxes)
    permissions = {"publish": {"allow": rule.publish}, "subscribe": subscribe}
    return {"user": principal.name, "password": password, "permissions": permissions}


def store_acl(passwords: Mapping[Principal, str], *, separates_reads: bool) -> str:
    """Return the ACL of redis-server, one line for each user, with hashes of the passwords; the default user is off.

    Args:
        separates_reads: the server is Redis 7 or newer, where reading and writing a key are separate permissions. An
            older one lets a principal use all its commands on all its keys.
    """
    lines = ["user default off"]
    for principal, password in passwords.items():
        rule = store_rule(principal)
        keys = [_key_pattern(key, *access, separates_reads) for key, access in rule.access.items()]
        commands = [f"+{command}" for command in rule.commands]
        password_hash = hashlib.sha256(password.encode()).hexdigest()
        if principal == ADMIN:
            lines.append(f"user {principal.name} on #{password_hash} ~* &* +@all")
            continue
        lines.append(" ".join([f"user {principal.name} on #{password_hash} resetchannels -@all", *commands, *keys]))
    return "\n".join(lines) + "\n"


def _key_pattern(key: str, reads: bool, writes: bool, separates_reads: bool) -> str:
    if not separates_reads or (reads and writes):
        return f"~{key}"
    return f"%{'R' if reads else 'W'}~{key}"
