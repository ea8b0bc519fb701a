"""Tests of API keys: who is let in, to what, for how long, and what is kept of a secret."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.access.keys import (
    KeyRecord,
    KeyScope,
    KeySecret,
    KeyState,
    digest_of,
    is_secret,
    requires_key,
    secret_of,
)
from spotwise.core.access.quotas import KeyLimits

FIRST, SECOND, THIRD = (digest_of(name.encode()) for name in ("first", "second", "third"))
KEY = KeyRecord("acme", (KeySecret(FIRST),), (KeyScope.GENERATE,), 100.0)


def test_a_secret_has_256_bits_and_only_its_digest_is_kept() -> None:
    """What does not look like a secret needs no look-up."""
    secret = secret_of(base64.urlsafe_b64encode(bytes(range(32))).rstrip(b"=").decode())
    assert is_secret(secret) and secret.startswith("sw-")
    assert len(digest_of(secret.encode())) == 64
    for other in (
        "",
        "sw-",
        secret[:-1],
        secret + "x",
        secret.replace("sw-", "sk-"),
        secret[:-1] + "\n",
        "sw-" + "é" * 43,
    ):
        assert not is_secret(other)
    with pytest.raises(ValueError, match="32 bytes"):
        secret_of("short")


def test_a_key_admits_by_its_secret_until_it_expires() -> None:
    """To the moment; another secret never."""
    expiring = replace(KEY, expires_unix_s=200.0)
    assert expiring.admits(FIRST, 199.9) and not expiring.admits(FIRST, 200.0)
    assert not KEY.admits(SECOND, 150.0)
    assert (expiring.state(150.0), expiring.state(200.0)) == (KeyState.ACTIVE, KeyState.EXPIRED)


def test_after_a_rotation_both_secrets_admit_for_a_while() -> None:
    """The old one until the overlap ends; a further rotation ends the oldest at once."""
    rotated = KEY.rotated(SECOND, 1000.0, 60.0)
    assert rotated.admits(FIRST, 1059.9) and rotated.admits(SECOND, 1059.9)
    assert (rotated.state(1059.9), rotated.state(1060.0)) == (KeyState.ROTATING, KeyState.ACTIVE)
    assert not rotated.admits(FIRST, 1060.0) and rotated.admits(SECOND, 9e9)
    again = rotated.rotated(THIRD, 1010.0, 60.0)
    assert not again.admits(FIRST, 1010.0) and again.admits(SECOND, 1069.9) and again.admits(THIRD, 1010.0)


def test_a_rotation_without_overlap_ends_the_old_secret() -> None:
    rotated = KEY.rotated(SECOND, 1000.0, 0.0)
    assert rotated.secrets == (KeySecret(SECOND),)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 500)), min_size=1, max_size=6), st.floats(0, 1000))
def test_rotations_keep_the_newest_and_at_most_one_more(rotations: list[tuple[float, float]], later_s: float) -> None:
    """Whenever they come; the key's own end is the end of all, and a rotation never extends it."""
    key, now_s = replace(KEY, expires_unix_s=400.0), 0.0
    for number, (pause_s, overlap_s) in enumerate(rotations):
        now_s += pause_s
        newest = digest_of(str(number).encode())
        key = key.rotated(newest, now_s, overlap_s)
        assert key.secrets[0] == KeySecret(newest) and len(key.secrets) <= 2
    assert key.admits(newest, now_s + later_s) == (now_s + later_s < 400.0)


@pytest.mark.parametrize(
    ("scopes", "allowed"),
    [
        ((KeyScope.GENERATE,), {KeyScope.GENERATE, KeyScope.READ}),
        ((KeyScope.READ,), {KeyScope.READ}),
        ((KeyScope.METRICS,), {KeyScope.METRICS}),
        ((KeyScope.READ, KeyScope.METRICS), {KeyScope.READ, KeyScope.METRICS}),
    ],
)
def test_a_scope_admits_to_what_it_names(scopes: tuple[KeyScope, ...], allowed: set[KeyScope]) -> None:
    key = replace(KEY, scopes=scopes)
    assert {scope for scope in KeyScope if key.allows(scope)} == allowed


@pytest.mark.parametrize(
    ("has_had_keys", "is_loopback", "allow_anonymous", "required"),
    [
        (False, True, None, False),
        (False, True, True, False),
        (False, False, True, False),
        (False, False, None, None),
        (False, True, False, True),
        (False, False, False, True),
        *((True, is_loopback, allow, True) for is_loopback in (True, False) for allow in (None, True, False)),
    ],
)
def test_who_needs_a_key(
    has_had_keys: bool, is_loopback: bool, allow_anonymous: bool | None, required: bool | None
) -> None:
    """With keys, all; without, only this machine's clients need none, unless it is said; where it is not, nothing starts."""
    assert requires_key(has_had_keys, is_loopback, allow_anonymous) is required


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: replace(KEY, name="a b"),
        lambda: replace(KEY, name="x" * 65),
        lambda: replace(KEY, secrets=()),
        lambda: replace(KEY, scopes=()),
        lambda: KeySecret("plain"),
        lambda: KeyLimits(max_streams=0),
        lambda: KeyLimits(tokens_per_day=10**13),
    ],
)
def test_what_is_no_key_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError):
        wrong()  # type: ignore[operator]
