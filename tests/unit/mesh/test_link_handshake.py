"""Two ends of a link agree on keys only where both know the secret; nothing recorded, changed or mixed up is believed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.process.addresses import is_local
from spotwise.mesh.security.handshake import Handshake, LinkTerms
from spotwise.mesh.security.link_security import LinkEncryption, LinkRefusedError, LinkSecurity
from spotwise.mesh.security.seal import SEALED_BYTES, LinkSeal, sealed_copy
from spotwise.mesh.security.secrets import MeshSecret
from spotwise.wire import framing
from spotwise.wire.framing import FrameError
from spotwise.wire.link_hello import (
    HEAD_BYTES,
    HELLO_BYTES,
    HelloRefusal,
    LinkHello,
    LinkKind,
    SealWish,
    decode_hello,
    encode_hello,
    encode_refusal,
    message_bytes,
)

SECRET = MeshSecret(b"s" * 32)
AUTO, ON, OFF = LinkEncryption.AUTO, LinkEncryption.ON, LinkEncryption.OFF
HERE, ELSEWHERE = "127.0.0.1", "198.51.100.7"

#: Changes a message on its way: its number, and its bytes.
OnTheWay = Callable[[int, bytes], bytes]


LISTENER, CALLER = LinkHello("listener", 1, 7, "digest"), LinkHello("caller", 2, 7, "digest")
MESSAGE_BYTES = message_bytes(HELLO_BYTES)


def ends(listens: LinkSecurity, connects: LinkSecurity, peer_host: str | None = HERE) -> tuple[Handshake, Handshake]:
    return Handshake(listens, LinkKind.KV, peer_host), Handshake(connects, LinkKind.KV, peer_host)


def called(listener: Handshake, caller: Handshake) -> bytes:
    caller.meet(listener.offer())
    return caller.hello(encode_hello(CALLER))


def shaken(
    listener: Handshake, caller: Handshake, on_the_way: OnTheWay = lambda _, message: message
) -> tuple[LinkTerms, LinkTerms]:
    caller.meet(on_the_way(0, listener.offer()))
    assert listener.verify(on_the_way(1, caller.hello(encode_hello(CALLER))), decode_hello) == CALLER
    assert caller.verify(on_the_way(2, listener.hello(encode_hello(LISTENER))), decode_hello) == LISTENER
    return listener.terms(), caller.terms()


@pytest.mark.parametrize("secret", [SECRET, None])
def test_both_ends_know_each_other_and_the_same_tags(secret: MeshSecret | None) -> None:
    """Tags of both directions, which no other link has."""
    security = LinkSecurity(secret)
    tags: set[int] = set()
    for _ in range(3):
        listens, connects = shaken(*ends(security, security))
        assert listens.sends == connects.receives
        assert connects.sends == listens.receives
        tags |= {each for way in (listens.sends, listens.receives) for each in (way.header_tag, way.payload_tag)}
    assert len(tags) == 12


@pytest.mark.parametrize(
    ("listens", "connects"),
    [(MeshSecret(b"t" * 32), SECRET), (None, SECRET), (SECRET, None), (SECRET, MeshSecret(b"t" * 32))],
)
def test_an_end_with_another_secret_or_none_is_refused(listens: MeshSecret | None, connects: MeshSecret | None) -> None:
    """By the listener, before it says who it is."""
    with pytest.raises(LinkRefusedError, match="SPOTWISE_MESH_SECRET_FILE") as caught:
        shaken(*ends(LinkSecurity(listens), LinkSecurity(connects)))
    assert caught.value.refusal is HelloRefusal.WRONG_SECRET


def test_a_recorded_hello_is_not_believed_again() -> None:
    """At the same listener or another: each link has a new offer. Neither is a listener's, at another caller."""
    security = LinkSecurity(SECRET)
    listener, caller = ends(security, security)
    recorded = called(listener, caller)
    assert listener.verify(recorded, decode_hello) == CALLER
    reply = listener.hello(encode_hello(LISTENER))
    again, second = ends(security, security)
    called(again, second)
    for end, hello in ((again, recorded), (second, reply)):
        with pytest.raises(LinkRefusedError) as caught:
            end.verify(hello, decode_hello)
        assert caught.value.refusal is HelloRefusal.WRONG_SECRET


def test_a_hello_that_is_sent_back_proves_nothing() -> None:
    """To its sender, with its key or that of the listener's offer: a proof names the role of its sender."""
    security = LinkSecurity(SECRET)
    listener, caller = ends(security, security)
    hello = called(listener, caller)
    for head in (hello[:HEAD_BYTES], listener.hello(b"")[:HEAD_BYTES]):
        with pytest.raises(LinkRefusedError) as caught:
            caller.verify(head + hello[HEAD_BYTES:], decode_hello)
        assert caught.value.refusal is HelloRefusal.WRONG_SECRET
    # An end that connects to itself through a peer without the secret: the offer is its own, and what it answers as well.
    mirror, _ = ends(security, security)
    mirror.meet(mirror.offer())
    with pytest.raises(LinkRefusedError) as caught:
        mirror.verify(mirror.hello(encode_hello(CALLER)), decode_hello)
    assert caught.value.refusal is HelloRefusal.WRONG_SECRET


@pytest.mark.parametrize("which", range(3))
def test_an_end_of_another_version_is_refused_with_both(which: int) -> None:
    def other(number: int, message: bytes) -> bytes:
        if number != which:
            return message
        body = bytearray(message[: HEAD_BYTES - framing.SEAL_BYTES])
        body[4] += 1
        return framing.seal(bytes(body)) + message[HEAD_BYTES:]

    security = LinkSecurity(SECRET)
    said = rf"version {framing.VERSION + 1} .* this process {framing.VERSION}"
    with pytest.raises(LinkRefusedError, match=said) as caught:
        shaken(*ends(security, security), other)
    assert caught.value.refusal is HelloRefusal.MALFORMED


def test_ends_whose_links_carry_something_else_are_refused() -> None:
    """By the caller, at the offer; a listener refuses such a hello, too."""
    security = LinkSecurity(SECRET)
    caller, groups = Handshake(security, LinkKind.KV, HERE), Handshake(security, LinkKind.GROUP, HERE)
    with pytest.raises(LinkRefusedError, match="KV, the peer for GROUP") as caught:
        caller.meet(groups.offer())
    assert caught.value.refusal is HelloRefusal.INCOMPATIBLE
    hello = called(*ends(security, security))
    with pytest.raises(LinkRefusedError, match="GROUP, the peer for KV"):
        groups.verify(hello, decode_hello)


@given(st.integers(0, 2), st.integers(0, MESSAGE_BYTES - 1))
def test_a_message_that_is_cut_off_is_refused(which: int, size: int) -> None:
    security = LinkSecurity(SECRET)
    cut = size % HEAD_BYTES if which == 0 else size
    with pytest.raises(LinkRefusedError):
        shaken(*ends(security, security), lambda number, message: message[:cut] if number == which else message)


def test_a_body_that_its_sender_has_proved_and_that_cannot_be_read_is_malformed() -> None:
    """Its sender is of the mesh, and the link is refused all the same."""
    listener, caller = ends(LinkSecurity(SECRET), LinkSecurity(SECRET))
    caller.meet(listener.offer())
    with pytest.raises(LinkRefusedError, match="cannot be read") as caught:
        listener.verify(caller.hello(bytes(HELLO_BYTES)), decode_hello)
    assert caught.value.refusal is HelloRefusal.MALFORMED


def test_a_key_that_is_none_is_refused() -> None:
    """It would make the keys of the link known to a peer that only records."""
    listener, caller = ends(LinkSecurity(SECRET), LinkSecurity(SECRET))
    listener._mine = replace(listener._mine, public_key=bytes(32))
    with pytest.raises(LinkRefusedError, match="public key is none"):
        shaken(listener, caller)


def test_a_further_secret_gives_other_keys() -> None:
    """An end without it has no part in the link."""
    listener, caller = ends(LinkSecurity(SECRET), LinkSecurity(SECRET))
    shaken(listener, caller)
    assert listener.terms(b"a").sends == caller.terms(b"a").receives
    assert listener.terms(b"a").sends != caller.terms(b"b").receives
    assert listener.terms().sends != caller.terms(b"a").receives


@given(st.integers(0, 2), st.integers(0, 8 * MESSAGE_BYTES - 1))
def test_no_bit_can_be_changed_on_the_way(which: int, bit: int) -> None:
    """By who is between the ends: not in the offer, a hello or a proof."""

    def changed(number: int, message: bytes) -> bytes:
        if number != which:
            return message
        damaged = bytearray(message)
        place = bit % (8 * len(message))
        damaged[place // 8] ^= 1 << (place % 8)
        return bytes(damaged)

    security = LinkSecurity(SECRET)
    with pytest.raises(LinkRefusedError):
        shaken(*ends(security, security), changed)


@given(st.integers(0, 2), st.binary(max_size=2 * HELLO_BYTES))
def test_noise_instead_of_a_message_is_refused(which: int, noise: bytes) -> None:
    """Of any length, and as nothing but a refusal."""
    security = LinkSecurity(SECRET)
    with pytest.raises(LinkRefusedError):
        shaken(*ends(security, security), lambda number, message: noise if number == which else message)


def test_a_refusal_tells_the_other_end_why() -> None:
    """Also one that cannot prove anything."""
    listener, caller = ends(LinkSecurity(SECRET), LinkSecurity(SECRET))
    called(listener, caller)
    with pytest.raises(LinkRefusedError) as caught:
        caller.verify(encode_refusal(HelloRefusal.TOO_MANY_LINKS, MESSAGE_BYTES), decode_hello)
    assert caught.value.refusal is HelloRefusal.TOO_MANY_LINKS


@pytest.mark.parametrize(
    ("mine", "theirs", "peer_host", "is_sealed"),
    [
        (AUTO, AUTO, HERE, False),
        (AUTO, AUTO, ELSEWHERE, True),
        (AUTO, AUTO, None, True),
        (ON, AUTO, HERE, True),
        (AUTO, ON, HERE, True),
        (OFF, OFF, ELSEWHERE, False),
        (OFF, AUTO, HERE, False),
        (OFF, AUTO, ELSEWHERE, None),
        (ON, OFF, HERE, None),
        (OFF, ON, HERE, None),
    ],
)
def test_what_is_encrypted(
    mine: LinkEncryption, theirs: LinkEncryption, peer_host: str | None, is_sealed: bool | None
) -> None:
    """By default between hosts; where one end must and the other must not, there is no link, and never a plain one."""
    listener, caller = ends(LinkSecurity(SECRET, mine), LinkSecurity(SECRET, theirs), peer_host)
    if is_sealed is None:
        with pytest.raises(LinkRefusedError, match="SPOTWISE_LINK_ENCRYPTION"):
            shaken(listener, caller)
        return
    for terms in shaken(listener, caller):
        assert [way.seal is not None for way in (terms.sends, terms.receives)] == [is_sealed] * 2


def test_encryption_needs_a_secret_and_payloads_that_can_be_encrypted() -> None:
    """Without a secret `auto` encrypts nothing; a device's memory cannot be, and is not sent in the clear instead."""
    with pytest.raises(MeshError, match="SPOTWISE_MESH_SECRET_FILE"):
        LinkSecurity(None, ON)
    assert not shaken(*ends(LinkSecurity(), LinkSecurity(), ELSEWHERE))[0].sends.seal
    assert LinkSecurity(SECRET).encrypts_from("0.0.0.0") and not LinkSecurity(SECRET).encrypts_from("127.0.0.1")
    Handshake(LinkSecurity(SECRET), LinkKind.KV, HERE, can_seal=False)
    with pytest.raises(LinkRefusedError, match="SPOTWISE_LINK_ENCRYPTION"):
        Handshake(LinkSecurity(SECRET), LinkKind.KV, ELSEWHERE, can_seal=False)


def test_a_wish_cannot_be_taken_back_on_the_way() -> None:
    """Who is between the ends cannot make both send in the clear: the wishes are under the proofs."""
    security = LinkSecurity(SECRET)
    listener, caller = ends(security, security, ELSEWHERE)
    other, _ = ends(LinkSecurity(SECRET, OFF), security, HERE)
    with pytest.raises(LinkRefusedError):
        shaken(listener, caller, lambda number, message: other.offer() if number == 0 else message)


def test_a_listener_that_must_encrypt_refuses_a_caller_that_ignores_its_offer() -> None:
    """Before it says who it is."""
    listener, caller = ends(LinkSecurity(SECRET, ON), LinkSecurity(SECRET))
    caller.meet(listener.offer())
    caller._mine = replace(caller._mine, wish=SealWish.NEVER)
    with pytest.raises(LinkRefusedError) as caught:
        listener.verify(caller.hello(encode_hello(CALLER)), decode_hello)
    assert caught.value.refusal is HelloRefusal.ENCRYPTION_DIFFERS


def test_a_listener_that_answers_with_another_key_is_refused() -> None:
    """Although it knows the secret: its offer was another one."""
    security = LinkSecurity(SECRET)
    listener, caller = ends(security, security)
    listener.verify(called(listener, caller), decode_hello)
    listener._mine = replace(listener._mine, public_key=bytes(31) + b"\x09")
    with pytest.raises(LinkRefusedError, match="not that of its offer"):
        caller.verify(listener.hello(encode_hello(LISTENER)), decode_hello)


def seals() -> tuple[LinkSeal, LinkSeal]:
    listens, connects = shaken(*ends(LinkSecurity(SECRET, ON), LinkSecurity(SECRET, ON)))
    assert connects.sends.seal is not None and listens.receives.seal is not None
    return connects.sends.seal, listens.receives.seal


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=5), st.randoms())
def test_payloads_are_opened_in_any_order(payloads: list[bytes], random: object) -> None:
    """By their numbers; equal payloads are sealed differently."""
    sends, receives = seals()
    sealed = [(payload, *sealed_copy(sends, payload)) for payload in [*payloads, payloads[0]]]
    assert bytes(sealed[0][1]) != bytes(sealed[-1][1])
    for payload, data, number in reversed(sealed):
        assert data.nbytes == len(payload) + SEALED_BYTES
        into = bytearray(len(payload))
        assert receives.open_payload(number, data, into)
        assert bytes(into) == payload
        assert not receives.open_payload(number + 100, data, into)
        data[len(payload) // 2] ^= 1
        assert not receives.open_payload(number, data, into)
    assert not receives.open_payload(2**64 - 1, np.zeros(40, np.uint8), bytearray(24))


def test_messages_in_order_are_opened_once_and_in_order() -> None:
    """One that is repeated, left out, moved or damaged is refused, and so is one with something else in the clear."""
    messages = [bytes([number]) * 40 for number in range(3)]
    for order in ((0, 0), (1,), (0, 2)):
        sends, receives = seals()
        sealed = [bytearray(40 + SEALED_BYTES) for _ in messages]
        for message, into in zip(messages, sealed, strict=True):
            sends.seal_next(message, into, b"clear")
        opened = bytearray(40)
        for number in order[:-1]:
            receives.open_next(sealed[number], opened, b"clear")
            assert opened == messages[number]
        with pytest.raises(FrameError, match="changed, repeated or left out"):
            receives.open_next(sealed[order[-1]], opened, b"clear")
    sends, receives = seals()
    sends.seal_next(messages[0], sealed[0], b"clear")
    with pytest.raises(FrameError, match="changed, repeated or left out"):
        receives.open_next(sealed[0], opened, b"other")


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("[::1]", True),
        ("::ffff:127.0.0.1", True),
        ("198.51.100.7", False),
        ("::ffff:198.51.100.7", False),
        ("2001:db8::1", False),
        ("localhost", False),
        ("", False),
        (None, False),
    ],
)
def test_an_address_is_this_hosts_or_not(host: str | None, local: bool) -> None:
    """A name or nothing does not count as this host."""
    assert is_local(host) is local
