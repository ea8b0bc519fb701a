"""A message that says what the last one of its subject said is not decoded again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.mesh.ports.ports import BusMessage
from spotwise.mesh.service.outbox import RepeatedMessages
from spotwise.wire.codec import encode
from spotwise.wire.message_codec import MalformedMessageError

MEMBER = Member("device-1", MemberKind.DEVICE, 1, MemberState.READY, "a-host", 1, "a:1")


def _beat(member: Member, subject: str = "beat.device-1") -> BusMessage:
    return BusMessage(subject, encode(member))


def test_the_same_bytes_are_the_same_message() -> None:
    repeated = RepeatedMessages()
    first = repeated.decode(_beat(MEMBER))
    assert first == MEMBER
    assert repeated.decode(_beat(MEMBER)) is first


def test_news_replaces_it_and_other_subjects_are_their_own() -> None:
    repeated = RepeatedMessages()
    repeated.decode(_beat(MEMBER))
    news = replace(MEMBER, leader_id="mixed-0")
    assert repeated.decode(_beat(news)) == news
    assert repeated.decode(_beat(MEMBER, "beat.device-2")) == MEMBER
    assert repeated.decode(_beat(MEMBER)) == MEMBER


def test_what_is_no_message_is_refused_each_time() -> None:
    repeated = RepeatedMessages()
    for _ in range(2):
        with pytest.raises(MalformedMessageError):
            repeated.decode(BusMessage("beat.device-1", b"\xff"))
