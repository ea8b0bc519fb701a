"""Tests of the prefix memory: which worker was sent which prefix of a prompt."""

from __future__ import annotations

from spotwise.core.scheduler.assigner import HOLDERS, PrefixMemory


def first_incarnation(_: str) -> int:
    return 1


def test_the_longest_common_prefix_is_returned() -> None:
    """Spans of 64 tokens at first: of three, two are the same."""
    memory = PrefixMemory(100)
    memory.sent((1, 2, 3), "p", 1)
    assert memory.held((1, 2, 9), first_incarnation) == {"p": 128}
    assert memory.held((1, 2, 3, 4), first_incarnation) == {"p": 192}
    assert memory.held((9, 2), first_incarnation) == {
        "p": 128
    }  # names are of whole prefixes: the second implies the first
    assert memory.held((9,), first_incarnation) == {}
    assert memory.held((), first_incarnation) == {}


def test_each_holder_is_named_with_its_most() -> None:
    memory = PrefixMemory(100)
    memory.sent((1,), "a", 1)
    memory.sent((1, 2), "b", 1)
    assert list(memory.held((1, 2, 3), first_incarnation).items()) == [("b", 128), ("a", 64)]


def test_the_latest_holders_are_remembered() -> None:
    """Only the latest holders of a prefix are kept: every worker soon holds a common one, and a few suffice."""
    memory = PrefixMemory(100)
    for number in range(HOLDERS + 3):
        memory.sent((1,), f"w{number}", 1)
    memory.sent((1,), "w4", 1)
    assert sorted(memory.held((1,), first_incarnation)) == ["w3", "w4", "w5", "w6"]


def test_what_was_not_used_for_longest_is_forgotten() -> None:
    """Never more spans than there is place for."""
    memory = PrefixMemory(3)
    memory.sent((1, 2), "p", 1)
    memory.sent((3,), "p", 1)
    memory.sent((1,), "p", 1)
    memory.sent((4,), "p", 1)
    assert [bool(memory.held((span,), first_incarnation)) for span in (1, 2, 3, 4)] == [True, False, True, True]


def test_another_incarnation_holds_nothing_of_it() -> None:
    """The prefixes of an earlier incarnation, or of a worker that is gone, are not held."""
    memory = PrefixMemory(100)
    memory.sent((1,), "p", 1)
    assert memory.held((1,), lambda _: 2) == {}
    assert memory.held((1,), lambda _: None) == {}


def test_without_capacity_nothing_is_remembered() -> None:
    """A capacity of 0 switches the prefix memory off."""
    memory = PrefixMemory(0)
    memory.sent((1,), "p", 1)
    assert memory.held((1,), first_incarnation) == {}
